"""Where ranges are cut into partitions: behind a live record, never inside a gap.

A range that begins inside a gap would tell the rest of it a second time. The cuts follow from the
server's account, so a batch that is planned again while nothing has changed is cut the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from pyspark_topics.accounts import Account
from pyspark_topics.offsets import Gaps


@dataclass
class Part(InputPartition):
    """What one task reads: (from_seq, to_seq] of an epoch, or what a topic had that is gone.

    `known` are the gaps that are no failure, `growing` the first seq of one that may be larger by
    now. `match` narrows it to tags.
    """

    topic: str
    epoch: str
    from_seq: int
    to_seq: int
    known: Gaps = ()
    growing: int | None = None
    is_recreated: bool = False
    match: list[str] | None = None


@dataclass(frozen=True)
class Planned:
    """A range of a topic that a batch reads, and which gaps in it are no failure."""

    topic: str
    account: Account
    known: Gaps
    growing: int | None


def split(planned: list[Planned], *, partitions_min: int, rows_max: int | None) -> list[Part]:
    """The partitions of a batch, in the order of topics and seqs."""
    total = sum(each.account.count for each in planned)
    rows = max(1, total // partitions_min)
    if rows_max is not None:
        rows = min(rows, rows_max)
    return [
        Part(each.topic, each.account.epoch, first, last, each.known, each.growing)
        for each in planned
        for first, last in _cuts(each.account, rows)
    ]


def _cuts(found: Account, rows: int) -> Iterator[tuple[int, int]]:
    at, end = found.start, found.end
    held = 0
    for item in found.items:
        if item.is_gap:
            held += 1
            continue
        first = item.first
        while held + item.last - first + 1 >= rows:
            cut = first + max(rows - held, 1) - 1
            if cut >= end:
                break
            yield at, cut
            at, first, held = cut, cut + 1, 0
        held += item.last - first + 1
    if at < end:
        yield at, end
