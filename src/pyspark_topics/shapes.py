"""A user's schema at work: records get columns of their own, or the reason why not.

Behind the columns that every table has stand those of the schema, then `_schema`, which schema a
record was judged by, and `_rejected`, why it was refused. Of a record that was refused the schema's
columns are null and everything else is as ever: nothing is left out of a table.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_topics.columns import Column, Unfit, columns_of, values_of
from pyspark_topics.json_schema import checking
from pyspark_topics.tasks import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_ID, REJECTED, VARIANT = "_schema", "_rejected", "data_variant"
# What no column of a schema is called.
TAKEN = (*COLUMNS, "_day", SCHEMA_ID, REJECTED, VARIANT)


@dataclass(frozen=True)
class Shape:
    """A schema as text, so that it can be sent to executors."""

    schema: str

    @property
    def id(self) -> str:
        """The same for the same schema, however it was written down."""
        text = json.dumps(json.loads(self.schema), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def columns(self) -> list[Column]:
        """Raises BadSchema."""
        return columns_of(json.loads(self.schema), TAKEN)

    @property
    def ddl(self) -> str:
        """What stands behind the columns of every table."""
        found = [column.ddl for column in self.columns]
        return ", ".join([*found, f"{SCHEMA_ID} string", f"{REJECTED} string"])

    def check(self) -> None:
        """Raises BadSchema where it can not be read."""
        _Judge(self)

    def judge(self) -> _Judge:
        return _Judge(self)


class _Judge:
    """A schema that was read."""

    def __init__(self, shape: Shape) -> None:
        self._why = checking(json.loads(shape.schema))
        self._columns = shape.columns
        self._id = shape.id

    def judged(self, text: str) -> tuple[dict[str, Any], str | None]:
        """The columns of a record, or why it has none."""
        try:
            value = json.loads(text)
            why = self._why(value)
            if why is None and self._columns and isinstance(value, dict):
                return values_of(value, self._columns), None
        except Unfit as error:
            why = str(error).removeprefix(".")
        except RecursionError:
            why = "is nested too deeply"
        except ValueError:
            # Python reads no integer of more than 4,300 digits.
            why = "has a number that is too long"
        return {}, why

    def shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the schema's columns behind them; a gap has none."""
        import pyarrow as pa

        rows: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        ids: list[str | None] = []
        for text in batch.column(COLUMNS.index("data")).to_pylist():
            values, why = ({}, None) if text is None else self.judged(text)
            rows.append(values)
            reasons.append(why)
            ids.append(None if text is None else self._id)
        for column in self._columns:
            found = [row.get(column.name) for row in rows]
            batch = batch.append_column(column.name, pa.array(found, column.kind.arrow()))
        batch = batch.append_column(SCHEMA_ID, pa.array(ids, pa.string()))
        return batch.append_column(REJECTED, pa.array(reasons, pa.string()))
