"""The account: what became of every seq below a topic's floor, as merged ranges in order.

It outlives the records and their segments. Each seq below the floor is in exactly one range, so
an audit can fail: a seq that is missing somewhere and not accounted for here is a finding.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from topics.types import DELETED


class Account:
    """Ranges are kept by their last seq; the first of one is the last of the one before plus 1."""

    __slots__ = ("_lasts", "_states", "base")

    def __init__(self, base: int) -> None:
        self.base = base
        self._lasts: array[int] = array("Q")
        self._states = bytearray()

    @property
    def next(self) -> int:
        """The first seq not accounted for yet."""
        return self._lasts[-1] + 1 if self._lasts else self.base

    def extend(self, last: int, state: int) -> None:
        """Accounts for everything from `next` up to and including `last`."""
        if last < self.next:
            return
        if self._states and self._states[-1] == state:
            self._lasts[-1] = last
        else:
            self._lasts.append(last)
            self._states.append(state)

    def ranges(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """The (first, last, state) that meet [first, last], cut to it."""
        index = bisect_left(self._lasts, first)
        at = max(first, self.base)
        while index < len(self._lasts) and at <= last:
            stop = min(self._lasts[index], last)
            if stop >= at:
                yield at, stop, self._states[index]
            at = self._lasts[index] + 1
            index += 1

    def runs(self, first: int, last: int, state: int) -> array[int]:
        """The first and last seqs of what became this in [first, last], one after the other."""
        first = max(first, self.base)
        if first > last:
            return array("Q")
        start, stop = bisect_left(self._lasts, first), bisect_left(self._lasts, last) + 1
        highs = np.minimum(np.frombuffer(self._lasts, np.uint64)[start:stop], np.uint64(last))
        lows = np.empty_like(highs)
        lows[:1] = first
        lows[1:] = highs[:-1] + np.uint64(1)
        chosen = np.frombuffer(self._states, np.uint8)[start:stop] == state
        return array("Q", np.column_stack((lows[chosen], highs[chosen])).tobytes())

    def pieces(self, first: int, last: int, ranges_max: int) -> Iterator[tuple[int, int]]:
        """[first, last] in pieces of at most so many ranges.

        Between two of them the account may go on.
        """
        first = max(first, self.base)
        while first <= last:
            at = bisect_left(self._lasts, first) + ranges_max - 1
            stop = min(self._lasts[at], last) if at < len(self._lasts) else last
            yield first, stop
            first = stop + 1

    def replace(self, first: int, last: int, state: int) -> None:
        """Says something else of a range that is accounted for."""
        parts = list(self.ranges(self.base, self.next - 1))
        self._lasts, self._states = array("Q"), bytearray()
        for _, high, known in parts:
            self.extend(min(high, first - 1), known)
            self.extend(min(high, last), state if high >= first else known)
            if high > last:
                self.extend(high, known)

    def latest(self, state: int) -> int:
        """The highest seq that became this; 0 when none did."""
        index = self._states.rfind(state)
        return self._lasts[index] if index >= 0 else 0

    def lost(self, first: int, last: int, ranges_max: int = 1000) -> int:
        """How many seqs of [first, last] were lost, not deleted; an estimate past the bound."""
        count = 0
        for steps, (low, high, state) in enumerate(self.ranges(first, last)):
            if steps == ranges_max:
                return count + last - low + 1
            if state != DELETED:
                count += high - low + 1
        return count

    def dump(self) -> tuple[int, bytes, bytes]:
        return self.base, self._lasts.tobytes(), bytes(self._states)

    @classmethod
    def load(cls, base: int, lasts: bytes, states: bytes) -> Account:
        account = cls(base)
        account._lasts = array("Q", lasts)
        account._states = bytearray(states)
        return account

    def __len__(self) -> int:
        return len(self._lasts)
