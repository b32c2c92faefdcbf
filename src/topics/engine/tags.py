"""The tag index: which seqs carry a tag, so that a match delete touches only what matches.

Entries may name seqs that are gone since; the caller checks each against its block. They are
swept when they outnumber the live records, a slice at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TypeAlias

from sortedcontainers import SortedList

Seqs: TypeAlias = "int | array[int]"


class TagIndex:
    __slots__ = ("_fresh", "_left", "_seqs", "_sorted", "entries")

    def __init__(self) -> None:
        self._seqs: dict[str, Seqs] = {}
        # Keys in byte order for prefix scans; new ones wait in `_fresh` until one is asked for.
        # Every key is in one of the two, once: who finds it twice deletes what is in between.
        self._sorted: SortedList = SortedList(key=_utf8)
        self._fresh: list[str] = []
        # Those in `_fresh` that have no seqs any more.
        self._left: set[str] = set()
        self.entries = 0

    def add(self, tags: list[str | None], first: int) -> None:
        """Enters the tags of consecutive seqs from `first` on."""
        seqs = self._seqs
        fresh = self._fresh
        for seq, tag in enumerate(tags, first):
            if tag is None:
                continue
            self.entries += 1
            held = seqs.get(tag)
            if held is None:
                seqs[tag] = seq
                if tag in self._left:
                    self._left.discard(tag)
                else:
                    fresh.append(tag)
            elif isinstance(held, int):
                seqs[tag] = array("Q", (held, seq))
            else:
                held.append(seq)

    def fold(self, keys_max: int) -> bool:
        """Sorts up to `keys_max` new keys in; True when none are left."""
        if self._fresh:
            batch, self._fresh = self._fresh[:keys_max], self._fresh[keys_max:]
            self._sorted.update([tag for tag in batch if tag in self._seqs])
            self._left.difference_update(batch)
        return not self._fresh

    def exact(self, tag: str) -> list[int]:
        held = self._seqs.get(tag)
        return [] if held is None else [held] if isinstance(held, int) else held.tolist()

    def under(self, prefix: str) -> Iterator[str]:
        """Tags with a prefix, in byte order."""
        self.fold(len(self._fresh))
        for tag in self._sorted.irange_key(min_key=prefix.encode()):
            if not tag.startswith(prefix):
                return
            yield tag

    def forget(self, tag: str, kept: list[int]) -> None:
        """Replaces the seqs of a tag."""
        before = self._seqs.get(tag)
        if before is None:
            return
        self.entries -= (1 if isinstance(before, int) else len(before)) - len(kept)
        if kept:
            self._seqs[tag] = kept[0] if len(kept) == 1 else array("Q", kept)
            return
        del self._seqs[tag]
        if tag in self._sorted:
            self._sorted.remove(tag)
        else:
            # Not folded yet: dropped when its turn comes, unless it is needed again before.
            self._left.add(tag)

    def sweep(self, is_live: Callable[[int], bool]) -> Iterator[None]:
        """Drops every entry that is gone; yields now and then so that the work can be sliced."""
        for step, tag in enumerate(list(self._seqs)):
            if step % 512 == 0:
                yield
            seqs = self.exact(tag)
            kept = [seq for seq in seqs if is_live(seq)]
            if len(kept) < len(seqs):
                self.forget(tag, kept)


def _utf8(tag: str) -> bytes:
    return tag.encode()
