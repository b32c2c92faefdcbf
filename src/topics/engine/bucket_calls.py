"""What the key-value store asks of its engine: the records of one topic, by seq, and their removal.

A bucket's index is a fold over its records; nothing of it is kept here. What is published is read
from the blocks, what is only assigned from the frames on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from topics.configs import BucketInput
from topics.engine.commit.ticket import T, Ticket
from topics.engine.lifecycle import Lifecycle
from topics.engine.ops import catalog, deleting, repeats
from topics.engine.ops.deleting import Listed
from topics.engine.ops.growth import Brought, Growth
from topics.engine.state.record import data_of
from topics.engine.state.topic import Topic
from topics.errors import StorageError
from topics.storage import frames
from topics.storage.columns import Columns, Spans
from topics.storage.segment import DEAD
from topics.types import DELETED, Deleted, TopicConfig, convert


class Reader(NamedTuple):
    """Somebody who has to see a marker before it goes: a cursor or a router, and its place."""

    name: str
    kind: Literal["cursor", "router"]
    seq: int


# Some records of a block: the seq of its first one, its spans with their keys, and a run
# [start, stop) of them.
Run = tuple[int, Spans, int, int]


class BucketCalls(Lifecycle):
    """A mixin of Engine."""

    def find_bucket(self, name: str) -> Topic | None:
        """The topic of a bucket, recovered; None when there is none."""
        self._check_open()
        topic = self.core.by_name.get(name)
        return None if topic is None else self._topic(name)

    def put_bucket(self, topic: str, config: Mapping[str, object]) -> tuple[TopicConfig, bool]:
        """Creates the bucket that a topic is, or replaces its config; (config, is it new)."""
        self._check_writable()
        given: BucketInput = convert(dict(config), BucketInput, "config")
        if topic in self.core.by_name:
            self._topic(topic)
        put = catalog.put(self.core, topic, given)
        self._wait(put.ticket)
        return put.topic.config, put.created

    def buckets(self) -> list[Topic]:
        """The topics that are buckets."""
        return [topic for topic in self.core.by_id.values() if topic.config.is_bucket]

    def is_recovered(self, topic: Topic) -> bool:
        """Whether a topic has all that it is going to have; of class memory it may come later."""
        return topic.id not in self._recovery.replay.deferred

    def recover(self, topic: Topic) -> None:
        """Brings a topic back that was left for after readiness. Raises StorageError."""
        if not self.is_recovered(topic):
            self._finish_topic(topic.id)

    # -- records -----------------------------------------------------------------------------

    def value_at(self, topic: Topic, seq: int) -> tuple[bytes, int]:
        """Data and time of a live record. Raises ColdMiss."""
        self._check_open()
        block = topic.blocks[topic.block_at(seq)]
        columns, place = self.core.segments.columns(block), seq - block.first
        return _data(columns, place), columns.time_of(place)

    def data_at_hand(self, topic: Topic, seq: int) -> bytes | None:
        """The data of a live record that is in memory; None for any other."""
        if self._is_closed:
            self._check_open()
        blocks = topic.blocks
        block = blocks[-1]
        if seq < block.first:
            block = blocks[topic.block_at(seq)]
        columns = block.columns
        return None if columns is None else _data(columns, seq - block.first)

    def time_at(self, topic: Topic, seq: int) -> int:
        """When a live record was committed; never waits for the cold store."""
        block = topic.blocks[topic.block_at(seq)]
        spans = block.columns or self.core.segments.spans(block)
        return spans.time_of(seq - block.first)

    def is_at_hand(self, topic: Topic, seq: int) -> bool:
        """Whether a record is in memory."""
        return topic.blocks[topic.block_at(seq)].columns is not None

    def runs_after(self, topic: Topic, seq: int, head: int) -> tuple[int, list[Run]]:
        """The live records of the next block after a seq, up to a head; and up to where it goes.

        Does not ask the cold store: what is there has its keys here. Raises StorageError.
        """
        position = topic.block_at(seq + 1)
        if position >= len(topic.blocks):
            return head, []
        block = topic.blocks[position]
        start = max(seq + 1, topic.floor, block.first) - block.first
        stop = min(block.stop, head + 1) - block.first
        live = [] if block.is_ghost else list(block.live_runs(start, stop))
        if not live:
            return block.first + stop - 1, []
        spans = self.core.segments.exact_spans(block)
        return block.first + stop - 1, [(block.first, spans, a, b) for a, b in live]

    def on_their_way(self, topic: Topic, after: int) -> Iterator[Brought]:
        """Records after a seq that are assigned and not published, in order."""
        committer = self.core.committer
        if topic.next_seq > topic.head + 1 and (
            topic.durability == "ephemeral"
            or any(frame.kind == frames.COMMIT for frame in committer.on_their_way(topic))
        ):
            # They stand behind a config that is on its way, without frames of their own, or in
            # stages: seldom enough to wait for.
            committer.sync()
        for frame in committer.on_their_way(topic):
            if isinstance(frame, Growth):
                for brought in frame.brings():
                    if brought[0] > after:
                        yield brought

    def in_turn(self, topic: Topic, ticket: Ticket[None]) -> None:
        """Ends a ticket once everything that is on its way to the topic now is published."""
        self.core.committer.flush()
        self.core.committer.answer(topic, lambda: None, ticket)

    def repeated(self, topic: Topic, idempotency_key: str) -> int | None:
        """How many records an earlier call with this key wrote; None: there is none."""
        digest = repeats.digest(self.core, idempotency_key)
        return repeats.known_count(topic, digest, self.core.clock.wall_ms())

    def note_empty(self, topic: Topic, idempotency_key: str) -> None:
        """Remembers a call that had nothing to write."""
        self._check_writable()
        repeats.note_empty(self.core, topic, repeats.digest(self.core, idempotency_key))

    # -- compaction --------------------------------------------------------------------------

    def readers(self, topic: Topic) -> list[Reader]:
        """Who reads a bucket: its named cursors, and the routers from it."""
        standing = () if topic.cursors is None else topic.cursors.standing.values()
        cursors = [Reader(each.name, "cursor", topic.place(each)) for each in standing]
        routers = self.core.routers.from_topic(topic)
        found = cursors + [Reader(each.name, "router", each.place.cursor) for each in routers]
        return sorted(found, key=lambda reader: (reader.kind, reader.name.encode()))

    def wait(self, ticket: Ticket[T]) -> T:
        """Waits for a ticket: its result, or raises its error."""
        return self._wait(ticket)

    def fetching(self, read: Callable[[], T]) -> T:
        """Repeats a read until the cold store has given all that it misses."""
        return self._fetching(read)

    def pause(self) -> None:
        """Lets background work go on, for a caller that waits for it."""
        self.core.background.jobs.pause()

    def until_durable(self) -> Iterator[None]:
        """Waits, a step at a time, until all that was submitted so far is durable."""
        self.flush()
        return self.core.until_durable()

    def submit_removal(self, topic: Topic, listed: Listed) -> Ticket[Deleted]:
        """Begins the permanent delete of records that a bucket needs no more.

        Routers that are not past the markers among them wait until those are gone.
        """
        self._check_writable()
        ticket: Ticket[Deleted] = Ticket()
        routers = self.core.routers
        routers.unmarking[topic.id] = listed.lacking.unmarked_seq

        def ended(_ticket: Ticket[Deleted]) -> None:
            del routers.unmarking[topic.id]
            routers.note(topic.id)

        ticket.callback = ended
        try:
            deleting.remove(self.core, topic, listed, ticket)
        except StorageError:
            ended(ticket)
            raise
        return ticket

    def removed_of(self, topic: Topic) -> tuple[int, int]:
        """The lowest and the highest seq that were deleted; zeros for none."""
        lowest = highest = 0
        if topic.account is not None:
            for first, last, state in topic.account.ranges(1, topic.floor - 1):
                if state == DELETED:
                    lowest, highest = lowest or first, last
        for block in topic.blocks:
            if block.dead is not None and block.dead_count:
                start = max(topic.floor - block.first, 0)
                at = block.dead.find(DEAD, start)
                if at >= 0:
                    lowest = lowest or block.first + at
                    highest = block.first + block.dead.rfind(DEAD)
        return lowest, highest


def _data(columns: Columns, place: int) -> bytes:
    ends, metas = columns.ends, columns.metas
    raw = bytes(columns.payload[ends[place - 1] if place else 0 : ends[place]])
    return data_of(raw, has_meta=metas is not None and bool(metas[place]))
