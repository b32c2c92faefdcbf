"""One bucket: its topic, the index of its records, and what reads and writes of it go by.

The index is filled from the records once, a block at a time, and follows what is published from
then on. It reads columns and no payload. A bucket whose index is not filled yet can not be used;
whoever wants it waits (`Buckets.opening`).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from topics.engine.engine import Engine
from topics.engine.state.kinds import MARKER, RANGE
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest
from topics.kv.assigned import Assigned
from topics.kv.index import Index
from topics.kv.past import Past
from topics.kv.snapshots import Snapshots
from topics.storage.columns import Spans

# Records that are folded in one piece.
FOLD_RECORDS = 1024


class Bucket:
    def __init__(self, engine: Engine, topic: Topic) -> None:
        self.topic = topic
        self.index = Index(self._history())
        self.past = Past()
        self.snapshots = Snapshots(engine.core.clock.wall_ms)
        self.assigned = Assigned(self.index)
        self.is_ready = False
        self._engine = engine
        self._taken_back = topic.taken_back
        self._filling: Iterator[None] | None = None

    def _history(self) -> int:
        history = self.topic.config.history
        return 1 if history is UNSET else history

    @property
    def grace_ms(self) -> int:
        grace_ms = self.topic.config.grace_ms
        return 0 if grace_ms is UNSET else grace_ms

    # -- the index ---------------------------------------------------------------------------

    def fill_some(self) -> bool:
        """Folds some of what is there; True when it is ready. Raises StorageError: try again."""
        filling, self._filling = self._filling or self._fill(), None
        for _ in filling:
            self._filling = filling
            return False
        return True

    def _fill(self) -> Iterator[None]:
        index, topic = self.index, self.topic
        # Before that its head is not where it was, and it looks as if there were no more.
        self._engine.recover(topic)
        while index.head < topic.head:
            upto, runs = self._engine.runs_after(topic, index.head, topic.head)
            for first, spans, start, stop in runs:
                for at in range(start, stop, FOLD_RECORDS):
                    end = min(at + FOLD_RECORDS, stop)
                    if first + at > index.head:
                        self._fold(first, spans, at, end)
                    yield
            index.head = max(index.head, upto)
            yield
        self.assigned.forget()
        lowest, highest = self._engine.removed_of(topic)
        if highest:
            self.past.note(lowest, highest, topic.compacted)
        self.is_ready = True

    def follow(self) -> None:
        """Folds what was just published; it is in memory."""
        index, topic = self.index, self.topic
        while index.head < topic.head:
            position = topic.block_at(index.head + 1)
            if position >= len(topic.blocks):
                index.head = topic.head
                break
            block = topic.blocks[position]
            start = max(index.head + 1 - block.first, 0)
            if block.columns is not None:
                for first, stop in block.live_runs(start, block.count):
                    self._fold(block.first, block.columns, first, stop)
            index.head = block.stop - 1

    def _fold(self, base: int, spans: Spans, start: int, stop: int) -> None:
        """Folds the records [start, stop) of a run whose first one has the seq `base`."""
        index, tags, kinds = self.index, spans.tags, spans.kinds
        for place in range(start, stop):
            tag = None if tags is None else tags[place]
            kind = None if kinds is None else kinds[place]
            seq = base + place
            if kind is None:
                if tag:
                    index.put(tag, seq)
            elif kind == MARKER:
                if tag:
                    index.delete(tag, seq, spans.time_of(place))
            elif kind.startswith(RANGE):
                index.delete_prefix(kind[len(RANGE) :], seq, spans.time_of(place))
            index.head = seq

    def reconfigure(self) -> Iterator[None]:
        """Takes over how many versions are kept, if that has changed."""
        history = self._history()
        if history != self.index.history:
            yield from self.index.keep(history)

    # -- what is assigned --------------------------------------------------------------------

    def look_ahead(self) -> Assigned:
        """What the bucket will be with everything that is on its way."""
        topic, assigned = self.topic, self.assigned
        if topic.taken_back != self._taken_back:
            self._taken_back = topic.taken_back
            assigned.forget()
        if topic.next_seq - 1 > max(assigned.upto, self.index.head):
            after = max(assigned.upto, self.index.head)
            assigned.note(list(self._engine.on_their_way(topic, after)))
            assigned.upto = max(assigned.upto, topic.next_seq - 1)
        return assigned

    # -- reading -----------------------------------------------------------------------------

    def check_at(self, seq: int) -> int:
        if seq > self.topic.head:
            raise InvalidRequest(
                f"at_seq is above the head, which is {self.topic.head}", head_seq=self.topic.head
            )
        return seq

    def seq_at(self, key: str, at: int | None, snapshot: str | None) -> int:
        """The version of a key that is, or was, live; 0: none. Raises Compacted."""
        if snapshot is not None:
            return max(self.index.last_event(key, self.snapshots.get(snapshot).seq), 0)
        if at is None:
            return self.index.live_seq(key)
        return max(self.past.event_at(self.index, key, self.check_at(at)), 0)
