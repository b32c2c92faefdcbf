"""Runs of records put together anew, so that each is about as large as a block may be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from topics.storage import columns as columns_codec
from topics.storage.columns import Columns


def reblock(held: Iterable[tuple[int, Columns]], bytes_max: int) -> Iterator[tuple[int, Columns]]:
    """Runs of neighbouring seqs of at most about `bytes_max`, whole records each."""
    gathered: Columns | None = None
    first = 0
    for block_first, columns in held:
        start = 0
        while start < len(columns):
            stop = _stop_within(columns, start, bytes_max)
            whole = start == 0 and stop == len(columns)
            part = columns if whole else columns.cut(start, stop)
            at, start = block_first + start, stop
            follows = gathered is not None and first + len(gathered) == at
            if gathered is not None and follows and _fits(gathered, part, bytes_max):
                gathered.extend(part)
                continue
            if gathered is not None:
                yield first, gathered
            first = at
            gathered = _growable(part) if len(part.payload) < bytes_max // 2 else None
            if gathered is None:
                yield first, part
    if gathered is not None:
        yield first, gathered


def _stop_within(columns: Columns, start: int, bytes_max: int) -> int:
    """The end of the records from `start` on that have `bytes_max` together; one in any case.

    What is half as large again stays whole: cutting it would copy all of it.
    """
    base = columns.start(start)
    if columns.ends[-1] - base <= bytes_max + bytes_max // 2:
        return len(columns)
    return bisect_right(columns.ends, base + bytes_max, start + 1)


def _fits(gathered: Columns, part: Columns, bytes_max: int) -> bool:
    return len(gathered.payload) + len(part.payload) <= bytes_max


def _growable(part: Columns) -> Columns:
    grown = columns_codec.empty()
    grown.extend(part)
    return grown
