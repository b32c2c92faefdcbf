"""Compaction: which records of a bucket are needed no more, in what order, and why others stay.

Two kinds go. A *version* goes when `history` newer ones of its key are there and no open snapshot
sees it. A *marker* goes when it is old enough, then when no open snapshot needs it, then when every
reader has passed it; what it hid goes with it or before it. A snapshot needs every marker above its
seq that hides a key live in it.

Nothing goes because of something that a crash could take back: what supersedes a version, and a
marker, are at or below `upto`, which is durable, as are the places of the readers.

A compaction is a run of steps that are short for everybody else. Each ends in nothing, or in a
batch that the log has to delete and the index to forget before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from topics.engine.state.lacking import Lacking
from topics.kv.index import Events, Index, Marker, RangeMarker

# Events that one batch removes, and what one step looks at.
BATCH_EVENTS = 1024
STEP_EVENTS = 512


@dataclass(slots=True)
class Batch:
    """Records that go together."""

    events: dict[str, list[int]] = field(default_factory=dict)
    # The range marker that goes after all that it hid.
    marker: RangeMarker | None = None
    count: int = 0
    versions: int = 0
    markers: int = 0
    # What the past will lack; see past.py.
    whole_from: int = 0
    gapped_seq: int = 0
    # The newest marker among them.
    unmarked_seq: int = 0

    def add(self, key: str, events: list[int]) -> None:
        self.events[key] = events
        self.count += len(events)
        versions = sum(event > 0 for event in events)
        self.versions += versions
        self.markers += len(events) - versions
        self.unmarked_seq = max(self.unmarked_seq, -min(events))

    def seqs(self) -> list[int]:
        """In order."""
        found = [abs(event) for events in self.events.values() for event in events]
        if self.marker is not None:
            found.append(self.marker.seq)
        return sorted(found)

    @property
    def lacking(self) -> Lacking:
        return Lacking(self.whole_from, self.gapped_seq, self.unmarked_seq)

    def forget(self, index: Index) -> None:
        """The log has deleted them."""
        for key, events in self.events.items():
            index.forget(key, events)
        if self.marker is not None:
            index.forget_range(self.marker)


@dataclass(slots=True)
class Compacted:
    """What became of it; `kept` counts markers by the first reason that held them."""

    removed_tombstones: int = 0
    removed_versions: int = 0
    young: int = 0
    snapshots: int = 0
    readers: int = 0

    def note(self, batch: Batch) -> None:
        self.removed_versions += batch.versions
        self.removed_tombstones += batch.markers + (batch.marker is not None)


class Compaction:
    """One pass over a bucket, or over what begins with a prefix."""

    def __init__(
        self,
        index: Index,
        *,
        older_than_ts: int,
        prefix: str,
        upto: int,
        readers_seq: int,
        snapshots: Callable[[], Sequence[int]],
        done: Compacted | None = None,
    ) -> None:
        self._index = index
        self._older_than_ts = older_than_ts
        self._prefix = prefix
        self._upto = upto
        self._readers_seq = readers_seq
        # Their seqs as of now: one that opens meanwhile sees the head, and so nothing that goes.
        self._snapshots = snapshots
        self._batch = Batch()
        self._looked = 0
        self.done = done or Compacted()

    def steps(self) -> Iterator[Batch | None]:
        while self._index.tidy():
            yield None
        yield from self._versions()
        yield from self._hand_over()
        yield from self._markers()
        yield from self._hand_over()

    def _pause(self) -> Iterator[Batch | None]:
        """Where a step may end, if it has done enough."""
        if self._batch.count >= BATCH_EVENTS:
            yield from self._hand_over()
        elif self._looked >= STEP_EVENTS:
            self._looked = 0
            yield None

    def _hand_over(self) -> Iterator[Batch | None]:
        batch, self._batch = self._batch, Batch()
        if batch.count or batch.marker is not None:
            self._looked = 0
            yield batch
            self.done.note(batch)

    # -- versions ----------------------------------------------------------------------------

    def _versions(self) -> Iterator[Batch | None]:
        index = self._index
        for key in list(index.crowded):
            self._looked += 1
            if key.startswith(self._prefix):
                events = index.events(key)
                self._looked += len(events)
                self._remove_beyond(key, events)
            yield from self._pause()

    def _remove_beyond(self, key: str, events: Events) -> None:
        """Removes the versions beyond `history` that nobody sees."""
        left, after = self._index.history, 0
        removed: list[int] = []
        for event in reversed(events):
            if event > 0:
                left -= 1
                if left < 0 and self._goes(key, event, after):
                    removed.append(event)
            after = abs(event)
        if removed:
            removed.reverse()
            gone = set(removed)
            oldest = next(abs(event) for event in events if event not in gone)
            self._note_gap(key, removed, oldest)
            self._batch.add(key, removed)

    def _goes(self, key: str, seq: int, after: int) -> bool:
        """Whether a version that is followed by `after` is seen by no snapshot."""
        cover = self._index.first_cover(key, seq)
        end = min(after, cover) if cover else after
        if end > self._upto or any(seq <= at < end for at in self._snapshots()):
            return False
        self._batch.whole_from = max(self._batch.whole_from, end)
        return True

    def _note_gap(self, key: str, removed: list[int], oldest: int) -> None:
        """Something older that stays, be it a range marker, says less of a key than what goes."""
        for event in reversed(removed):
            if event > 0:
                if oldest < event or self._index.cover(key, event):
                    self._batch.gapped_seq = max(self._batch.gapped_seq, event)
                return

    # -- markers -----------------------------------------------------------------------------

    def _markers(self) -> Iterator[Batch | None]:
        index, done = self._index, self.done
        seqs = list(index.markers)
        for place, seq in enumerate(seqs):
            marker = index.markers.get(seq)
            self._looked += 1
            yield from self._pause()
            if marker is None:
                continue
            is_young = marker.ts >= self._older_than_ts or seq > self._upto
            if is_young and not self._prefix:
                done.young += len(seqs) - place
                return
            if not marker.name.startswith(self._prefix):
                continue
            if is_young:
                done.young += 1
            elif (yield from self._is_needed(seq, marker)):
                done.snapshots += 1
            elif seq > self._readers_seq:
                done.readers += 1
            elif isinstance(marker, Marker):
                if marker.key in self._batch.events:
                    # Its older events are to be forgotten first.
                    yield from self._hand_over()
                self._remove_marker(seq, marker.key)
            else:
                yield from self._hand_over()
                yield from self._remove_range(marker)

    def _is_needed(
        self, seq: int, marker: Marker | RangeMarker
    ) -> Generator[Batch | None, None, bool]:
        """Whether an open snapshot needs a marker, a piece at a time."""
        if not any(at < seq for at in self._snapshots()):
            return False
        if isinstance(marker, Marker):
            return self._was_live(marker.key, seq)
        for chunk in marker.hidden:
            if any(self._was_live(key, seq) for key in chunk):
                return True
            self._looked += len(chunk)
            yield from self._pause()
        return False

    def _was_live(self, key: str, before: int) -> bool:
        """Whether a key is live in a snapshot from before a seq."""
        seen = (at for at in self._snapshots() if at < before)
        return any(self._index.last_event(key, at) > 0 for at in seen)

    def _remove_marker(self, seq: int, key: str) -> None:
        events = [event for event in self._index.events(key) if abs(event) <= seq]
        self._looked += len(events)
        self._remove_hidden(key, events, seq)

    def _remove_range(self, marker: RangeMarker) -> Iterator[Batch | None]:
        for chunk in marker.hidden:
            for key in chunk:
                events = [e for e in self._index.events(key) if abs(e) < marker.seq]
                if events:
                    self._remove_hidden(key, events, marker.seq)
            self._looked += len(chunk)
            yield from self._pause()
        self._batch.marker, self._batch.unmarked_seq = marker, marker.seq
        yield from self._hand_over()

    def _remove_hidden(self, key: str, events: list[int], hidden_by: int) -> None:
        if any(event > 0 for event in events):
            self._batch.whole_from = max(self._batch.whole_from, hidden_by)
            self._note_gap(key, events, hidden_by)
        self._batch.add(key, events)
