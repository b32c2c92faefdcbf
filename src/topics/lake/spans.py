"""Runs of seqs, both ends inclusive, sorted and apart: what is in them, and what is left."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Sorted, and those that touch or overlap as one."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def without(spans: Iterable[Span], taken: list[Span]) -> Iterator[Span]:
    """What of `spans` is not in `taken`; both sorted and apart."""
    at = 0
    for first, last in spans:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        index = at
        while first <= last and index < len(taken) and taken[index][0] <= last:
            if taken[index][0] > first:
                yield first, taken[index][0] - 1
            first = taken[index][1] + 1
            index += 1
        if first <= last:
            yield first, last


def common(spans: list[Span], others: list[Span]) -> Iterator[Span]:
    """What is in both; both sorted and apart."""
    at = 0
    for first, last in spans:
        while at < len(others) and others[at][1] < first:
            at += 1
        index = at
        while index < len(others) and others[index][0] <= last:
            yield max(first, others[index][0]), min(last, others[index][1])
            index += 1


def end_from(spans: list[Span], seq: int) -> int:
    """How far one comes from `seq` through spans alone."""
    at = bisect_right(spans, seq + 1, key=lambda span: span[0]) - 1
    return max(seq, spans[at][1]) if at >= 0 else seq


def within(spans: list[Span], first: int, last: int) -> list[Span]:
    """Those that have a part from `first` to `last`."""
    begin = bisect_left(spans, first, key=lambda span: span[1])
    end = bisect_right(spans, last, key=lambda span: span[0])
    return spans[begin:end]


def of_seqs(seqs: npt.NDArray[np.int64]) -> list[Span]:
    """Sorted numbers as runs."""
    if not len(seqs):
        return []
    breaks = np.flatnonzero(np.diff(seqs) > 1)
    firsts = seqs[np.concatenate(([0], breaks + 1))]
    lasts = seqs[np.concatenate((breaks, [len(seqs) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
