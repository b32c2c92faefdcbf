"""What can be said of a bucket's past, now that compaction has removed some of it.

A version is removed because of what came after it. So a read at an older seq is answered only where
nothing that it needs can have been removed, and that is known from four numbers, which go with the
log's own deletes and come back with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby

from topics.engine.state.lacking import Lacking
from topics.errors import Compacted
from topics.kv.index import Index


@dataclass(slots=True)
class Past:
    """Each only ever goes up, but for the first, which is set once."""

    # The lowest and the highest seq that compaction removed; 0: none.
    removed_min: int = 0
    compacted_seq: int = 0
    # The highest seq of what superseded a removed version: from here on every state is whole.
    whole_from: int = 0
    # The highest removed version of a key of which something older was left.
    gapped_seq: int = 0

    def note(self, lowest: int, highest: int, lacking: Lacking) -> None:
        self.removed_min = min(self.removed_min or lowest, lowest)
        self.compacted_seq = max(self.compacted_seq, highest)
        self.whole_from = max(self.whole_from, lacking.whole_from)
        self.gapped_seq = max(self.gapped_seq, lacking.gapped_seq)

    def is_whole(self, seq: int) -> bool:
        """Whether nothing is missing from the state at a seq, of any key."""
        return seq >= self.whole_from or seq < self.removed_min

    def require_whole(self, seq: int) -> None:
        if not self.is_whole(seq):
            raise self._compacted(seq)

    def event_at(self, index: Index, key: str, seq: int) -> int:
        """The newest event of a key at a seq, 0 or less when it was not live. Raises Compacted."""
        found = index.last_event(key, seq)
        if self.is_whole(seq):
            return found
        if found:
            is_known = abs(found) >= self.gapped_seq or found == index.live_seq(key)
        else:
            # A key that nothing is left of had its end, a marker, among what was removed.
            is_known = seq >= self.compacted_seq and not index.events(key)
        if not is_known:
            raise self._compacted(seq)
        return found

    def _compacted(self, seq: int) -> Compacted:
        return Compacted(
            f"what this needs of seq {seq} was compacted; the past is whole from {self.whole_from}",
            at_seq=seq, compacted_seq=self.compacted_seq,
        )  # fmt: skip


def keys_ever(index: Index, start: str, *, is_included: bool) -> Iterator[str]:
    """Every key that has events, live or not, in order; not to be changed meanwhile."""
    sources = [index.keys.after(start, is_included=is_included)]
    sources.append(index.dead.after(start, is_included=is_included))
    for marker in index.hiding:
        left = marker.hidden[marker.tidied :]
        sources.append(
            key
            for chunk in left
            if chunk[-1] >= start
            for key in chunk
            if key > start or (is_included and key == start)
        )
    return (key for key, _ in groupby(merge(*sources)))
