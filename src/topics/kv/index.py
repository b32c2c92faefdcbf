"""A bucket's index: what its records say of every key, as a fold over them in the order of seqs.

A *put* makes a key live, a *marker* hides it, a *range marker* hides every live key that begins
with its prefix. What a key has is its *events*: the seqs of its puts, and of its markers as
negative numbers, in order, as far as compaction has left them. Most keys have one put and nothing
else: those stand in `live` alone.

Always true: `keys` has exactly the live keys, so that a scan never meets a deleted one; `dead` has
exactly the others that have events and are no longer in `live`; `markers` has every marker that was
not removed, oldest first, so that sizes are counts and not sums.

A range marker is applied to the order of keys at once, and to each key's events a piece at a time
(`tidy`): until then `hiding` says which keys of `live` are not. It remembers what it hid, because
that goes with it or before it, never after.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from topics.kv.sorted_keys import Chunk, SortedKeys

Events = Sequence[int]


class RangeMarker:
    """A range marker that was not removed, with the keys that were live under it."""

    __slots__ = ("hidden", "prefix", "seq", "tidied", "ts")

    def __init__(self, seq: int, ts: int, prefix: str, hidden: list[Chunk]) -> None:
        self.seq = seq
        self.ts = ts
        self.prefix = prefix
        self.hidden = hidden
        # How many of its chunks have their events in place.
        self.tidied = 0

    @property
    def name(self) -> str:
        return self.prefix


class Marker:
    """A marker of one key."""

    __slots__ = ("key", "ts")

    def __init__(self, key: str, ts: int) -> None:
        self.key = key
        self.ts = ts

    @property
    def name(self) -> str:
        return self.key


class Index:
    def __init__(self, history: int = 1) -> None:
        self.history = history
        # Up to which seq records were folded.
        self.head = 0
        self.live: dict[str, int] = {}
        self.keys = SortedKeys()
        self.dead = SortedKeys()
        # Events of keys that have more than one live put, or none.
        self._events: dict[str, int | array[int]] = {}
        self.markers: dict[int, Marker | RangeMarker] = {}
        self.hiding: list[RangeMarker] = []
        # Range markers by prefix, and how many prefixes have each length.
        self._ranges: dict[str, list[int]] = {}
        self._lengths: Counter[int] = Counter()
        # Keys with more puts than `history` asks for.
        self.crowded: dict[str, None] = {}

    # -- the fold ----------------------------------------------------------------------------

    def put(self, key: str, seq: int) -> bool:
        """True when the key was not live."""
        before = self.live.get(key)
        self.live[key] = seq
        if before is None:
            if key in self._events:
                self.dead.discard(key)
                self._add_event(key, seq)
            self.keys.add(key)
            return True
        created = self.hiding and self._is_hidden(key, before)
        if created:
            self.keys.add(key)
        if key not in self._events:
            self._events[key] = before
        self._add_event(key, seq)
        return bool(created)

    def delete(self, key: str, seq: int, ts: int) -> None:
        before = self.live.pop(key, None)
        if before is not None:
            self.keys.discard(key)
            if key not in self._events:
                self._events[key] = before
            self.dead.add(key)
        elif key not in self._events:
            self.dead.add(key)
        self._add_event(key, -seq)
        self.markers[seq] = Marker(key, ts)

    def delete_prefix(self, prefix: str, seq: int, ts: int) -> int:
        """How many live keys it hid."""
        before = len(self.keys)
        marker = RangeMarker(seq, ts, prefix, self.keys.cut(prefix))
        self.markers[seq] = marker
        seqs = self._ranges.setdefault(prefix, [])
        if not seqs:
            self._lengths[len(prefix)] += 1
        seqs.append(seq)
        if marker.hidden:
            self.hiding.append(marker)
        return before - len(self.keys)

    def tidy(self) -> bool:
        """Puts the events of some hidden keys in their place; True when there are more."""
        if not self.hiding:
            return False
        marker = self.hiding[0]
        live, events = self.live, self._events
        for key in marker.hidden[marker.tidied]:
            seq = live.get(key)
            if seq is not None and seq < marker.seq:
                del live[key]
                if key not in events:
                    events[key] = seq
                self.dead.add(key)
        marker.tidied += 1
        if marker.tidied == len(marker.hidden):
            del self.hiding[0]
        return bool(self.hiding)

    def _is_hidden(self, key: str, seq: int) -> bool:
        return any(seq < marker.seq and key.startswith(marker.prefix) for marker in self.hiding)

    def _add_event(self, key: str, event: int) -> None:
        held = self._events.get(key)
        if held is None:
            self._events[key] = event
            return
        if isinstance(held, int):
            held = self._events[key] = array("q", (held,))
        held.append(event)
        # Counted until there are too many, and no longer: one key may be put a million times.
        if event > 0 and key not in self.crowded:
            self._note_crowd(key, held)

    def _note_crowd(self, key: str, events: Events) -> None:
        if len(events) > self.history and sum(event > 0 for event in events) > self.history:
            self.crowded[key] = None

    def keep(self, history: int) -> Iterator[None]:
        """From now on so many versions of each key are kept; looks through them in pieces."""
        self.history = history
        self.crowded = {}
        held = list(self._events)
        for at in range(0, len(held), 1024):
            for key in held[at : at + 1024]:
                events = self._events.get(key)
                if events is not None and not isinstance(events, int):
                    self._note_crowd(key, events)
            yield

    # -- reading -----------------------------------------------------------------------------

    def live_seq(self, key: str) -> int:
        """The seq of a key's live version; 0 when it is not live."""
        seq = self.live.get(key, 0)
        return 0 if self.hiding and seq and self._is_hidden(key, seq) else seq

    def events(self, key: str) -> Events:
        """Puts and markers of a key, without range markers."""
        held = self._events.get(key)
        if held is None:
            seq = self.live.get(key)
            return () if seq is None else (seq,)
        return (held,) if isinstance(held, int) else held

    def cover(self, key: str, upto: int) -> int:
        """The newest range marker up to a seq whose prefix the key begins with; 0: none."""
        newest = 0
        for length in self._lengths:
            seqs = self._ranges.get(key[:length]) if length <= len(key) else None
            if seqs:
                at = bisect_right(seqs, upto)
                if at:
                    newest = max(newest, seqs[at - 1])
        return newest

    def first_cover(self, key: str, after: int) -> int:
        """The first range marker after a seq whose prefix the key begins with; 0: none."""
        first = 0
        for length in self._lengths:
            seqs = self._ranges.get(key[:length]) if length <= len(key) else None
            if seqs:
                at = bisect_right(seqs, after)
                if at < len(seqs):
                    first = min(first or seqs[at], seqs[at])
        return first

    def last_event(self, key: str, upto: int) -> int:
        """The newest event up to a seq, range markers among them as markers; 0: none is left."""
        found = 0
        for event in reversed(self.events(key)):
            if abs(event) <= upto:
                found = event
                break
        if self._ranges:
            cover = self.cover(key, upto)
            if cover > abs(found):
                return -cover
        return found

    def history_of(self, key: str) -> list[int]:
        """What is left of a key's past, oldest first: puts, markers, what range markers hid."""
        found: list[int] = []
        for event in self.events(key):
            self._add_covers(key, found, abs(event))
            found.append(event)
        self._add_covers(key, found, self.head + 1)
        return found

    def _add_covers(self, key: str, found: list[int], before: int) -> None:
        """A range marker hid a key that was live in front of it."""
        if self._ranges and found and found[-1] > 0:
            cover = self.first_cover(key, found[-1])
            if cover and cover < before:
                found.append(-cover)

    def oldest_marker_ts(self) -> int | None:
        for marker in self.markers.values():
            return marker.ts
        return None

    # -- removal -----------------------------------------------------------------------------

    def forget(self, key: str, removed: Sequence[int]) -> None:
        """Some events of a key are gone from the log."""
        for event in removed:
            if event < 0:
                self.markers.pop(-event, None)
        held = self._events.get(key)
        if held is None:
            return
        gone = set(removed)
        kept = [
            event for event in ((held,) if isinstance(held, int) else held) if event not in gone
        ]
        self.crowded.pop(key, None)
        if not kept or (len(kept) == 1 and kept[0] == self.live.get(key)):
            del self._events[key]
            if not kept:
                self.dead.discard(key)
            return
        self._events[key] = kept[0] if len(kept) == 1 else array("q", kept)
        self._note_crowd(key, kept)

    def forget_range(self, marker: RangeMarker) -> None:
        """A range marker is gone from the log, after everything that it hid."""
        assert marker not in self.hiding
        del self.markers[marker.seq]
        seqs = self._ranges[marker.prefix]
        seqs.remove(marker.seq)
        if not seqs:
            del self._ranges[marker.prefix]
            self._lengths[len(marker.prefix)] -= 1
            if not self._lengths[len(marker.prefix)]:
                del self._lengths[len(marker.prefix)]
