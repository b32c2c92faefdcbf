"""Keys in byte order, in short lists: cheap to add to, to scan, and to cut a whole prefix out of.

Texts compare by code point, and that is the order of their UTF-8. A list has at most `CHUNK_MAX`
keys, so a change moves few of them; what a prefix covers is whole lists and two ends, so hiding it
costs its lists and not its keys.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

CHUNK_MAX = 1024
_LAST = 0x10FFFF

Chunk = list[str]


class SortedKeys:
    """Each key once. A scan may be left and gone on with after its last key, whatever changed."""

    __slots__ = ("_chunks", "_count", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        # The last key of each chunk.
        self._lasts: list[str] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Memory beside the keys themselves."""
        return sum(map(sys.getsizeof, self._chunks)) + sys.getsizeof(self._lasts)

    def add(self, key: str) -> None:
        """Adds a key that is not there."""
        self._count += 1
        lasts = self._lasts
        at = bisect_left(lasts, key)
        if at == len(lasts):
            if not lasts:
                self._chunks.append([key])
                lasts.append(key)
                return
            at -= 1
            lasts[at] = key
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > CHUNK_MAX:
            # In order they come one behind the other: full lists stay so.
            keep = CHUNK_MAX if chunk[-1] is key else CHUNK_MAX // 2
            self._chunks.insert(at + 1, chunk[keep:])
            del chunk[keep:]
            lasts.insert(at, chunk[-1])

    def discard(self, key: str) -> None:
        """Removes a key, if it is there."""
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            return
        chunk = self._chunks[at]
        index = bisect_left(chunk, key)
        if chunk[index] != key:
            return
        self._count -= 1
        del chunk[index]
        if not chunk:
            del self._chunks[at], self._lasts[at]
        elif index == len(chunk):
            self._lasts[at] = chunk[-1]

    def after(self, start: str, *, is_included: bool) -> Iterator[str]:
        """Keys from `start` on, or after it, in order. Not to be changed meanwhile."""
        find = bisect_left if is_included else bisect_right
        at = find(self._lasts, start)
        if at == len(self._lasts):
            return
        chunk = self._chunks[at]
        yield from chunk[find(chunk, start) :]
        for chunk in self._chunks[at + 1 :]:
            yield from chunk

    def count_under(self, prefix: str) -> int:
        """How many keys begin with a prefix; costs the lists they are in."""
        first, last = self._place(prefix), self._place(end_of(prefix))
        if first[0] == last[0]:
            return last[1] - first[1]
        whole = sum(map(len, self._chunks[first[0] + 1 : last[0]]))
        return len(self._chunks[first[0]]) - first[1] + whole + last[1]

    def cut(self, prefix: str) -> list[Chunk]:
        """Takes out all keys that begin with a prefix, in order."""
        first, last = self._place(prefix), self._place(end_of(prefix))
        if first == last:
            return []
        chunks, lasts = self._chunks, self._lasts
        if first[0] == last[0]:
            chunk = chunks[first[0]]
            taken = [chunk[first[1] : last[1]]]
            left = [chunk[: first[1]] + chunk[last[1] :]]
        else:
            taken = [chunks[first[0]][first[1] :], *chunks[first[0] + 1 : last[0]]]
            left = [chunks[first[0]][: first[1]]]
            if last[0] < len(chunks):
                taken.append(chunks[last[0]][: last[1]])
                left.append(chunks[last[0]][last[1] :])
        kept = [chunk for chunk in left if chunk]
        chunks[first[0] : last[0] + 1] = kept
        lasts[first[0] : last[0] + 1] = [chunk[-1] for chunk in kept]
        taken = [chunk for chunk in taken if chunk]
        self._count -= sum(map(len, taken))
        return taken

    def _place(self, key: str | None) -> tuple[int, int]:
        """The chunk and the index in it of the first key from this one on; None: behind all."""
        at = len(self._lasts) if key is None else bisect_left(self._lasts, key)
        if key is None or at == len(self._lasts):
            return len(self._lasts), 0
        return at, bisect_left(self._chunks[at], key)


def end_of(prefix: str) -> str | None:
    """The first text after all that begin with a prefix; None when there is none."""
    stem = prefix.rstrip(chr(_LAST))
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None
