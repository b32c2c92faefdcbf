"""The dead letters: records that a user's schema has rejected, as a table of their own.

A rejected record is in the topic's table as any other, its columns of the schema null and the
reason in `_rejected`: that table alone says what became of a seq. The dead letters are made of it,
after each of its commits, and are never ahead of it. A sync that was killed between the two, a
delete, a restore or an erasure leave them behind or with too much; whoever comes next compares
both, row by row, and brings them into line. So each rejected record is there exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pyspark_topics.shapes import REJECTED, SCHEMA_ID
from topics.errors import NotFound
from topics.lake.layout import Lake
from topics.lake.spans import Span, of_seqs, without
from topics.lake.table import SCHEMA, Snapshot, Stored, refusals

# Seqs that are compared together.
SEQS = 1_000_000
# Rows that are in memory together, and join in one commit.
PART_ROWS = 50_000
LOST = "rejected, and not among the dead letters"
NOT_REJECTED = "among the dead letters, and not rejected"
DOUBLE = "duplicate: more than once among the dead letters"

_KEPT = ("topic", "epoch", "seq", "ts", "node", "tag", "meta", "data")
_SCHEMA = pa.schema(
    [*(SCHEMA.field(name) for name in _KEPT), ("schema", pa.string()), ("reason", pa.string())]
)
_SELECTED = f"{', '.join(_KEPT)}, {SCHEMA_ID} AS schema, {REJECTED} AS reason"
_IS_REJECTED = f"{REJECTED} IS NOT NULL"


class DeadLetters(Stored):
    """The dead letters of a topic."""

    def __init__(self, lake: Lake, topic: str) -> None:
        super().__init__(lake.letters_uri(topic), topic)

    def make(self) -> None:
        """An empty table, where there is none."""
        with refusals(self.topic):
            DeltaTable.create(
                self.uri, _SCHEMA, mode="ignore",
                configuration={"delta.dataSkippingStatsColumns": "epoch,seq,ts"},
            )  # fmt: skip

    def follow(self, now: Snapshot, what: str = "true") -> int:
        """Brings them into line with such rows of the topic's table; how many joined."""
        if not is_judged(now) and not self.is_there:
            return 0
        added = 0
        self.make()
        for epoch, first, last in _chunks(now, self.snapshot(), what):
            there = self.snapshot()
            held = there.seqs(epoch, first, last, what)
            rejected = _rejected(now, epoch, first, last, what)
            extra = np.setdiff1d(held, rejected)
            if len(extra):
                self.delete(epoch, extra)
                there = self.snapshot()
            missing = np.setdiff1d(rejected, held)
            for part in (missing[n : n + PART_ROWS] for n in range(0, len(missing), PART_ROWS)):
                self.append(_rows(now, epoch, part), there)
                there = self.snapshot()
            added += len(missing)
        return added


def is_judged(table: Snapshot) -> bool:
    """Whether a schema has ever judged rows of it."""
    return REJECTED in table.columns


def _rejected(
    table: Snapshot, epoch: str, first: int, last: int, what: str
) -> npt.NDArray[np.int64]:
    if not is_judged(table):
        return np.empty(0, dtype=np.int64)
    return table.seqs(epoch, first, last, f"{_IS_REJECTED} AND {what}")


def _chunks(now: Snapshot, there: Snapshot, what: str) -> Iterator[tuple[str, int, int]]:
    """Where there is anything to compare."""
    wanted = now.bounds(f"{_IS_REJECTED} AND {what}") if is_judged(now) else {}
    held = there.bounds(what)
    for epoch in sorted({*wanted, *held}, key=int):
        ends = [*wanted.get(epoch, ()), *held.get(epoch, ())]
        for first in range(min(ends), max(ends) + 1, SEQS):
            yield epoch, first, min(first + SEQS - 1, max(ends))


def _rows(now: Snapshot, epoch: str, seqs: npt.NDArray[np.int64]) -> pa.Table:
    """The dead letters of these seqs."""
    what = f"epoch = '{epoch}' AND {_IS_REJECTED} AND seq >= {seqs[0]} AND seq <= {seqs[-1]}"
    found = now.select(_SELECTED, what).cast(_SCHEMA)
    return found.filter(pc.is_in(found.column("seq"), pa.array(seqs)))


def differences(
    table: Snapshot,
    letters: Snapshot | None,
    epoch: str,
    span: Span,
    upto: int,
    deleted: list[Span],
) -> Iterator[tuple[Span, str]]:
    """Where the dead letters are not what the table's rows say.

    What sync has not come to after its last commit, behind `upto`, may be missing; what the server
    has deleted may not have left yet.
    """
    if not is_judged(table) and letters is None:
        return
    rejected = _rejected(table, epoch, *span, "true")
    held = rejected[:0] if letters is None else letters.seqs(epoch, *span, "true")
    for found in of_seqs(np.unique(held[np.flatnonzero(np.diff(held) == 0)])):
        yield found, DOUBLE
    for found in of_seqs(np.setdiff1d(rejected[rejected <= upto], held)):
        yield found, LOST
    for found in without(of_seqs(np.setdiff1d(held, rejected)), deleted):
        yield found, NOT_REJECTED


def found_in(lake: Lake, topic: str) -> Snapshot | None:
    """They as they are now, where there are any."""
    try:
        return DeadLetters(lake, topic).snapshot()
    except NotFound:
        return None


def listed(lake: Lake, topic: str) -> list[dict[str, Any]]:
    """Place and reason of each, in order."""
    there = found_in(lake, topic)
    rows = [] if there is None else there.rows("topic, epoch, seq, reason", "true")
    return sorted(rows, key=lambda row: (int(row["epoch"]), row["seq"]))
