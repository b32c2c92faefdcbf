"""One topic's Delta table: its columns, where it stands, and everything that needs no JVM.

A table's position is in the table: the last seq that a row of an epoch tells of. So rows and
position are one commit, and a copy or a restore takes its position along. A commit that moves the
position carries the version of the table that it was planned on, plus one, as the version of a
transaction: of two that were planned on the same one, the second is refused or passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from topics.errors import Conflicting, NotFound, Unreachable
from topics.lake.layout import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APP_ID = "topics-lake"
RECORD, GAP = "record", "gap"
RECORDS = f"_kind = '{RECORD}'"
RECREATED = "recreated"
DAY = "_day"
_TEXT, _SEQ = pa.string(), pa.int64()
SCHEMA = pa.schema(
    [
        ("topic", _TEXT), ("epoch", _TEXT), ("seq", _SEQ), ("ts", pa.timestamp("us", "UTC")),
        ("node", _TEXT), ("tag", _TEXT), ("meta", pa.map_(_TEXT, _TEXT)), ("data", _TEXT),
        ("_kind", _TEXT), ("_gap_to", _SEQ), ("_gap_reason", _TEXT),
    ]
)  # fmt: skip
# What of a row says where it stands, and nothing of what was written.
_PLACE = ("topic", "epoch", "seq", "ts", "_kind", "_gap_to", "_gap_reason", DAY)
_PROPERTIES = {
    # Statistics of other columns would keep values of records in the table's log.
    "delta.dataSkippingStatsColumns": "epoch,seq,ts,_kind,_gap_to",
    # A checkpoint costs as much as several small commits, and one more file to read little.
    "delta.checkpointInterval": "40",
}
# Below this a reader of an older version may lose its files under its hands.
RETENTION_H = 168


class Snapshot:
    """One version of a table."""

    def __init__(self, table: DeltaTable) -> None:
        self.table = table
        self.version = table.version()

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.table.schema().fields]

    def ends(self) -> dict[str, int]:
        """The last seq that is told of in each epoch."""
        rows = self.rows("epoch, max(coalesce(_gap_to, seq)) AS seq", "true GROUP BY epoch")
        return {row["epoch"]: row["seq"] for row in rows}

    def after(self, epoch: str, seq: int) -> tuple[int, int]:
        """How many rows tell of seqs after this one, and the last seq they tell of."""
        what = f"epoch = '{epoch}' AND seq > {seq}"
        (row,) = self.rows("count(*) AS rows, max(coalesce(_gap_to, seq)) AS seq", what)
        return row["rows"], seq if row["seq"] is None else row["seq"]

    def gaps(self) -> list[dict[str, Any]]:
        """Every gap, in order."""
        found = self.rows(
            "topic, epoch, seq AS first, _gap_to AS last, _gap_reason AS reason",
            f"_kind = '{GAP}'",
        )
        return sorted(found, key=lambda gap: (int(gap["epoch"]), gap["first"]))

    def seqs(self, epoch: str, first: int, last: int, only: str = RECORDS) -> npt.NDArray[np.int64]:
        """The seqs of rows from `first` to `last`, `only` of some, sorted."""
        what = f"epoch = '{epoch}' AND seq >= {first} AND seq <= {last}"
        found = self.select("seq", f"{what} AND {only}").column("seq").to_numpy()
        return np.sort(found.astype(np.int64))

    def bounds(self, what: str) -> dict[str, tuple[int, int]]:
        """The first and the last seq of such rows in each epoch."""
        rows = self.rows("epoch, min(seq) AS first, max(seq) AS last", f"{what} GROUP BY epoch")
        return {row["epoch"]: (row["first"], row["last"]) for row in rows}

    def is_restored_since(self, version: int) -> bool:
        """Whether an older version was brought back after this one, or the table made anew."""
        if version > self.version:
            return True
        since = self.table.history(self.version - version) if version < self.version else []
        return any(commit.get("operation") == "RESTORE" for commit in since)

    def rows(self, columns: str, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.select(columns, what).to_pylist()
        return found

    def select(self, columns: str, what: str) -> pa.Table:
        query = QueryBuilder().register("t", self.table)
        return pa.table(query.execute(f"SELECT {columns} FROM t WHERE {what}").read_all())


class Stored:
    """A Delta table of a topic. Whoever writes holds `Lake.writing`."""

    def __init__(self, uri: str, topic: str) -> None:
        self.uri = uri
        self.topic = topic

    @property
    def is_there(self) -> bool:
        return DeltaTable.is_deltatable(self.uri)

    def snapshot(self) -> Snapshot:
        """The table as it is now. Raises NotFound, Unreachable."""
        try:
            return Snapshot(DeltaTable(self.uri))
        except TableNotFoundError:
            raise NotFound(f'topic "{self.topic}" has no table in this lake') from None
        except (DeltaError, OSError) as error:
            raise Unreachable(f"table {self.uri} can not be read: {error}") from None

    def append(self, rows: Any, planned: Snapshot) -> None:
        """Appends rows in a commit of their own. Raises Conflicting when somebody was there."""
        with refusals(self.topic):
            # By the version it was planned on: what came since is looked at.
            write_deltalake(
                planned.table, rows, mode="append", commit_properties=_marked(planned.version)
            )

    def delete(self, epoch: str, seqs: npt.NDArray[np.int64], only: str = "true") -> int:
        """Deletes the rows of these seqs in one commit, `only` some of them; how many."""
        merger = self.snapshot().table.merge(
            pa.table({"gone": seqs}),
            f"t.seq = s.gone AND {only} AND t.epoch = '{epoch}' "
            f"AND t.seq >= {seqs[0]} AND t.seq <= {seqs[-1]}",
            source_alias="s", target_alias="t",
        )  # fmt: skip
        with refusals(self.topic):
            return int(merger.when_matched_delete().execute()["num_target_rows_deleted"])

    def optimize(self) -> dict[str, int]:
        """Makes large files of small ones."""
        with refusals(self.topic):
            found = self.snapshot().table.optimize.compact()
        return {"files_added": found["numFilesAdded"], "files_removed": found["numFilesRemoved"]}

    def vacuum(self, retention_h: int, *, is_dry: bool) -> int:
        """Removes files that no version within the retention needs; how many."""
        with refusals(self.topic):
            found = self.snapshot().table.vacuum(
                retention_h, dry_run=is_dry, full=True,
                enforce_retention_duration=retention_h >= RETENTION_H,
            )  # fmt: skip
        return len(found)


class Table(Stored):
    """The table that has every row of a topic, and the position with them."""

    def __init__(self, lake: Lake, topic: str) -> None:
        super().__init__(lake.table_uri(topic), topic)

    def make(self, *, by_day: bool) -> None:
        """An empty table, where there is none."""
        schema, days = SCHEMA, None
        if by_day:
            schema, days = SCHEMA.append(pa.field(DAY, pa.date32())), [DAY]
        with refusals(self.topic):
            DeltaTable.create(
                self.uri, schema, mode="ignore", partition_by=days, configuration=_PROPERTIES
            )

    def append_frame(self, frame: DataFrame, planned: Snapshot) -> None:
        """Appends rows of Spark in one commit, or none where somebody was there since `planned`.

        Columns that the table has not join it in the same commit.
        """
        if DAY in planned.columns:
            frame = frame.selectExpr("*", f"to_date(ts) AS {DAY}")
        writer = frame.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", APP_ID).option("txnVersion", planned.version + 1)
        writer.save(self.uri.replace("s3://", "s3a://", 1))

    def append_gaps(self, gaps: list[dict[str, Any]], planned: Snapshot) -> None:
        """Appends gaps in a commit of their own. Raises Conflicting when somebody was there."""
        rows = [{"topic": self.topic, "_kind": GAP, **gap} for gap in gaps]
        # A table may have more columns than ours.
        schema = pa.schema(planned.table.schema().to_arrow())
        self.append(pa.Table.from_pylist(rows, schema=schema), planned)

    def empty(self, what: str) -> int:
        """Takes the content of rows away and leaves their places; how many."""
        now = self.snapshot()
        nothing = {f'"{name}"': "NULL" for name in content_of(now.columns)}
        with refusals(self.topic):
            return int(now.table.update(nothing, predicate=what)["num_updated_rows"])

    def restore(self, version: int) -> int:
        """The table as it was at `version`, and its position with it; the new version."""
        now = self.snapshot()
        if not 0 <= version <= now.version:
            raise NotFound(
                f'table of topic "{self.topic}" has no version {version}: its last is {now.version}'
            )
        with refusals(self.topic):
            # It moves the position: a commit that was planned before must not follow.
            now.table.restore(version, commit_properties=_marked(now.version))
        return self.snapshot().version


def content_of(columns: Iterable[str]) -> list[str]:
    """Those of the columns that hold what was written, or was made of it."""
    return [name for name in columns if name not in _PLACE]


def _marked(planned: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(APP_ID, planned + 1)])


@contextmanager
def refusals(topic: str) -> Iterator[None]:
    """Delta's refusals as errors of ours."""
    try:
        yield
    except CommitFailedError as error:
        raise Conflicting(
            f'table of topic "{topic}" was written by somebody else: {error}'
        ) from None
    except (DeltaError, OSError) as error:
        raise Conflicting(f'table of topic "{topic}" refuses that: {error}') from None
