"""Where data and meta are in many records at once: by arithmetic over the index of a run.

The form of a record is that of record.py. What is beside data and meta has a length that follows
from seq, time, node and whether there is meta, so that their bytes are counted without the record.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from topics.engine.state.record import FRAME_BYTES, META_BYTES, digits, node_part
from topics.storage.columns import Columns, Spans

Numbers = npt.NDArray[np.int64]


def contents(spans: Spans, first: int, start: int, stop: int) -> Numbers:
    """Bytes of data and meta of each record of [start, stop); `first` is the seq of the first one.

    A deleted record whose bytes are gone has none.
    """
    ends = np.array(spans.ends[max(start - 1, 0) : stop], np.int64)
    # By hand: np.diff takes longer to begin than this takes in all.
    sizes: Numbers
    if start:
        sizes = ends[1:] - ends[:-1]
    else:
        sizes = ends.copy()
        sizes[1:] -= ends[:-1]
    if isinstance(spans, Columns):
        sizes -= beside(spans, first, start, stop)
    else:
        assert spans.beside is not None, "spans that are kept apart say what is beside"
        sizes -= np.array(spans.beside[start:stop], np.int64)
    return np.maximum(sizes, 0)


def beside(columns: Columns, first: int, start: int, stop: int) -> Numbers:
    """Bytes of each record of [start, stop) that are neither data nor meta."""
    count = stop - start
    found = np.full(count, FRAME_BYTES, np.int64)
    found += digits(first + start, count)
    widths = [len(str(ts)) for ts in columns.times]
    if min(widths) == max(widths):
        found += widths[0]
    else:
        found += np.array(widths)[runs_at(columns, np.arange(start, stop))]
    if columns.nodes is not None:
        found += _node_bytes(columns.nodes[start:stop])
    if columns.metas is not None:
        found += META_BYTES * (np.frombuffer(bytes(columns.metas[start:stop]), np.uint8) != 0)
    return found


def plain_content(
    size: int, count: int, seqs: tuple[int, int], times: tuple[int, int]
) -> int | None:
    """Bytes of data in `count` records of `size` bytes in all that have neither node nor meta.

    `seqs` and `times` are those of the first and the last; None when they differ in length.
    """
    widths = [len(str(number)) for number in (*seqs, *times)]
    if widths[0] != widths[1] or widths[2] != widths[3]:
        return None
    return size - count * (FRAME_BYTES + widths[0] + widths[2])


def runs_at(spans: Spans, rows: Numbers) -> Numbers:
    """Which of the times of a run each of these records has."""
    return np.searchsorted(np.array(spans.times_at, np.int64), rows, side="right") - 1


def times_at(spans: Spans, rows: Numbers) -> Numbers:
    """When each of these records was committed."""
    if len(spans.times) == 1:
        return np.full(len(rows), spans.times[0], np.int64)
    return np.array(spans.times, np.int64)[runs_at(spans, rows)]


def _node_bytes(nodes: Sequence[str | None]) -> Numbers | int:
    """What each record's node takes."""
    lengths = {node: len(node_part(node)) for node in set(nodes)}
    if len(lengths) == 1:
        return lengths[nodes[0]]
    return np.fromiter(map(lengths.__getitem__, nodes), np.int64, len(nodes))
