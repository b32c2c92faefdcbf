"""What a bucket will be once everything on its way is published: what a compare-and-set goes by.

Reads see what is published. A put with `if_seq` is judged by what is assigned, or two of them in
one commit would both win. This is the difference between the two: the newest event of each key that
is on its way, and the range markers that are.
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.engine.ops.growth import Brought
from topics.engine.state.kinds import MARKER, RANGE
from topics.kv.index import Index

# Entries that were published since are forgotten when there are so many.
STALE_MAX = 4096


class Assigned:
    """`upto` is the last seq that it knows of."""

    def __init__(self, index: Index) -> None:
        self._index = index
        # Events as in the index: a marker's seq is negative.
        self._events: dict[str, int] = {}
        self._ranges: list[tuple[int, str]] = []
        self.upto = index.head

    def forget(self) -> None:
        """Nothing is known to be on its way."""
        self._events.clear()
        self._ranges.clear()
        self.upto = self._index.head

    def note(self, brought: Iterable[Brought]) -> None:
        """Records that were assigned after those it knows, in order."""
        head = self._index.head
        if self.upto <= head:
            self.forget()
        elif len(self._events) > STALE_MAX:
            self._events = {k: e for k, e in self._events.items() if abs(e) > head}
            self._ranges = [pair for pair in self._ranges if pair[0] > head]
        for seq, tag, kind in brought:
            if kind is None:
                if tag:
                    self._events[tag] = seq
            elif kind == MARKER:
                if tag:
                    self._events[tag] = -seq
            elif kind.startswith(RANGE):
                self._ranges.append((seq, kind[len(RANGE) :]))
            self.upto = seq

    def live_seq(self, key: str) -> int:
        """The seq of the version that will be live; 0: none."""
        index = self._index
        if self.upto <= index.head:
            return index.live_seq(key)
        found = self._events.get(key, 0)
        if abs(found) <= index.head:
            found = index.live_seq(key)
        for seq, prefix in self._ranges:
            if seq > max(index.head, abs(found)) and key.startswith(prefix):
                return 0
        return max(found, 0)

    def count_under(self, prefix: str) -> int:
        """How many keys that begin with a prefix will be live."""
        index = self._index
        if self.upto <= index.head:
            return index.keys.count_under(prefix)
        count = self._published_under(prefix)
        for key, event in self._events.items():
            if abs(event) > index.head and key.startswith(prefix):
                count -= bool(index.live_seq(key)) and not self._is_covered(key)
                count += bool(self.live_seq(key))
        return count

    def _published_under(self, prefix: str) -> int:
        """Live keys that no range marker on its way covers."""
        index = self._index
        covers = {text for seq, text in self._ranges if seq > index.head}
        if any(prefix.startswith(text) for text in covers):
            return 0
        outer = [
            text
            for text in covers
            if text.startswith(prefix)
            and not any(text != other and text.startswith(other) for other in covers)
        ]
        count = index.keys.count_under
        return count(prefix) - sum(map(count, outer))

    def _is_covered(self, key: str) -> bool:
        head = self._index.head
        return any(seq > head and key.startswith(text) for seq, text in self._ranges)
