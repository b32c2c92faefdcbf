"""The tag index: which seqs carry a tag, so that a match delete touches only what matches.

Entries may name seqs that are gone since; the caller checks each against its block. They are
swept when they outnumber the live records. Whatever looks at many tags, or at many seqs of one,
does so a piece at a time, and others may change the index in between.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedList

from topics.errors import InvalidRequest
from topics.types import convert

Seqs: TypeAlias = "int | array[int]"
# A key that has no seqs, of which none is 0, and is not sorted in yet: in their place.
NONE_LEFT = 0
# A tag, or what it begins with.
Match = tuple[str, bool]
# Seqs by stretches of 2^STRETCH_BITS of them: each is sorted in one go.
STRETCH_BITS = 12
Found = dict[int, list[int]]

# New keys that are looked through in one piece, sorted ones, and seqs.
FRESH_PIECE, SORTED_PIECE, SEQS_PIECE = 4096, 256, 2048
# Seqs that are checked one by one in a piece; a tag costs as much as four.
CHECKED_PIECE = 128


class TagIndex:
    __slots__ = ("_fresh", "_seqs", "_sorted", "entries")

    def __init__(self) -> None:
        self._seqs: dict[str, Seqs] = {}
        # Keys in byte order for prefix scans; new ones wait in `_fresh` to be sorted in.
        # Every key is in one of the two, once.
        self._sorted: SortedList = SortedList(key=_utf8)
        self._fresh: list[str] = []
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
                fresh.append(tag)
            elif isinstance(held, int):
                seqs[tag] = seq if held == NONE_LEFT else array("Q", (held, seq))
            else:
                held.append(seq)

    def fold(self, keys_max: int) -> bool:
        """Sorts up to `keys_max` new keys in; True when none are left."""
        if self._fresh:
            # From the end: who looks through them from the front finds each here or sorted in.
            batch = self._fresh[-keys_max:]
            del self._fresh[-keys_max:]
            self._sorted.update([tag for tag in batch if self._seqs[tag] != NONE_LEFT])
            for tag in batch:
                if self._seqs[tag] == NONE_LEFT:
                    del self._seqs[tag]
        return not self._fresh

    def exact(self, tag: str) -> list[int]:
        held = self._seqs.get(tag, NONE_LEFT)
        return [] if held == NONE_LEFT else [held] if isinstance(held, int) else held.tolist()

    def under(self, match: Match) -> Iterator[list[str]]:
        """The tags that match, piece by piece; one that is sorted in meanwhile may come twice."""
        text, is_prefix = match
        if not is_prefix:
            yield [text]
            return
        at = 0
        while at < len(self._fresh):
            piece = self._fresh[at : at + FRESH_PIECE]
            yield [tag for tag in piece if tag.startswith(text)]
            at += FRESH_PIECE
        after, is_first = text.encode(), True
        while True:
            behind = self._sorted.irange_key(min_key=after, inclusive=(is_first, True))
            tags = [tag for tag in islice(behind, SORTED_PIECE) if tag.startswith(text)]
            if not tags:
                return
            after, is_first = tags[-1].encode(), False
            yield tags

    def find(self, match: Match) -> Iterator[list[int]]:
        """The seqs whose tags match, piece by piece, in no order; some may come twice."""
        for tags in self.under(match):
            few: list[int] = []
            for tag in tags:
                held = self._seqs.get(tag, NONE_LEFT)
                if isinstance(held, int):
                    if held != NONE_LEFT:
                        few.append(held)
                elif len(held) <= SEQS_PIECE:
                    few.extend(held)
                else:
                    for at in range(0, len(held), SEQS_PIECE):
                        yield held[at : at + SEQS_PIECE].tolist()
                if len(few) >= SEQS_PIECE:
                    yield few
                    few = []
            yield few

    def gather(self, match: Match, first: int, stop: int) -> Generator[None, None, Found]:
        """The seqs of [first, stop) whose tags match, piece by piece; some may be there twice."""
        found: Found = defaultdict(list)
        for seqs in self.find(match):
            for seq in seqs:
                if first <= seq < stop:
                    found[seq >> STRETCH_BITS].append(seq)
            yield
        return found

    def forget(self, tag: str, kept: list[int]) -> None:
        """Replaces the seqs of a tag."""
        before = self._seqs.get(tag, NONE_LEFT)
        if before == NONE_LEFT:
            return
        self.entries -= (1 if isinstance(before, int) else len(before)) - len(kept)
        if kept:
            self._seqs[tag] = kept[0] if len(kept) == 1 else array("Q", kept)
            return
        if tag in self._sorted:
            self._sorted.remove(tag)
            del self._seqs[tag]
        else:
            # Dropped when its turn to be sorted in comes, unless it is needed again before.
            self._seqs[tag] = NONE_LEFT

    def sweep(self, is_live: Callable[[int], bool]) -> Iterator[None]:
        """Drops every entry that is gone."""
        for tags in self.under(("", True)):
            yield from self.weed(tags, is_live)

    def weed(self, tags: list[str], is_live: Callable[[int], bool]) -> Iterator[None]:
        """Drops the entries of some tags that are gone."""
        checked = CHECKED_PIECE
        for tag in tags:
            if checked >= CHECKED_PIECE:
                checked = 0
                yield
            held = self._seqs.get(tag, NONE_LEFT)
            checked += 4
            if not isinstance(held, int):
                checked += len(held)
                yield from self._weed(tag, held, is_live)
            elif held != NONE_LEFT and not is_live(held):
                self.forget(tag, [])

    def _weed(self, tag: str, held: array[int], is_live: Callable[[int], bool]) -> Iterator[None]:
        kept: list[int] = []
        at = 0
        while at < len(held):
            if at:
                yield
            kept.extend(filter(is_live, held[at : at + CHECKED_PIECE]))
            at += CHECKED_PIECE
        # Whoever replaced them meanwhile has looked at them as well.
        if self._seqs.get(tag) is held and len(kept) < len(held):
            self.forget(tag, kept)


def within(found: Found, first: int, stop: int) -> npt.NDArray[np.int64]:
    """The seqs of [first, stop) that were found, in order, each once."""
    seqs: list[int] = []
    for stretch in range(first >> STRETCH_BITS, (stop - 1 >> STRETCH_BITS) + 1):
        seqs += found.get(stretch, ())
    unique = np.unique(np.array(seqs, np.int64))
    return unique[np.searchsorted(unique, first) : np.searchsorted(unique, stop)]


def parse_match(match: object, field: str = "match") -> Match:
    """(text, is a prefix) of a match predicate; a bare string means equality."""
    if isinstance(match, str):
        return match, False
    parts = convert(match, list[str], field) if isinstance(match, (list, tuple)) else None
    if parts is None or len(parts) != 3 or parts[0] != "tag" or parts[1] not in ("Eq", "Glob"):
        raise InvalidRequest(f'{field} must be "tag", ["tag","Eq","X"] or ["tag","Glob","X*"]')
    if parts[1] == "Eq":
        return parts[2], False
    if not parts[2].endswith("*") or "*" in parts[2][:-1]:
        raise InvalidRequest("Glob takes a literal prefix and a single * at its end")
    return parts[2][:-1], True


def _utf8(tag: str) -> bytes:
    return tag.encode()
