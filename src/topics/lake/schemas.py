"""The columns that users ask for beyond those of every table: of a JSON Schema, and a VARIANT.

What was asked for once is kept in the lake (`_schemas/<name>.json`) before a row is judged by it,
so that a later sync which says nothing goes on with it. Another schema may follow: its columns join
the table, a column that it lacks is null from then on, and `_schema` of a row says which one judged
it. A column never changes its type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_topics.columns import Column
from pyspark_topics.json_values import BadSchema
from pyspark_topics.shapes import VARIANT, Shape
from topics.errors import InvalidRequest
from topics.lake.layout import Lake
from topics.lake.table import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's words for types, and Delta's.
_TYPES = {"bigint": "long"}


@dataclass(frozen=True)
class Extras:
    """What a table has behind the columns of every table."""

    shape: Shape | None = None
    has_variant: bool = False

    def __bool__(self) -> bool:
        return self.shape is not None or self.has_variant

    def added(self, frame: DataFrame) -> DataFrame:
        """Columns that Spark makes of the rows itself."""
        if self.has_variant:
            return frame.selectExpr("*", f"try_parse_json(data) AS {VARIANT}")
        return frame


def read_schema(path: Path) -> Shape:
    """The schema in a file. Raises InvalidRequest."""
    try:
        shape = Shape(json.dumps(json.loads(path.read_bytes())))
        shape.check()
    except OSError as error:
        raise InvalidRequest(f"the schema {path} can not be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidRequest(f"the schema {path} is no JSON: {error}") from None
    except BadSchema as error:
        raise InvalidRequest(f"the schema {path} can not be used: {error}") from None
    return shape


def settled(lake: Lake, topic: str, given: Extras, table: Snapshot) -> Extras:
    """What holds for a topic from now on: what is given, else what the lake keeps.

    Raises InvalidRequest where a column would have to change its type.
    """
    kept = lake.schema(topic) or {}
    shape = given.shape
    if shape is None and "schema" in kept:
        shape = Shape(json.dumps(kept["schema"]))
    found = Extras(shape, given.has_variant or kept.get("variant", False))
    if shape is not None:
        _check_columns(shape.columns, json.loads(table.table.schema().to_json()), topic)
    now = {"variant": found.has_variant}
    if shape is not None:
        now["schema"] = json.loads(shape.schema)
    if found and now != kept:
        lake.keep_schema(topic, now)
    return found


def _check_columns(columns: list[Column] | tuple[Column, ...], found: Any, topic: str) -> None:
    fields = {field["name"].lower(): field for field in found["fields"]}
    for column in columns:
        field = fields.get(column.name.lower())
        if field is not None:
            _check_type(column, field["type"], topic)


def _check_type(column: Column, found: Any, topic: str) -> None:
    kind = column.kind
    name = found["type"] if isinstance(found, dict) else found
    if kind.fields and name == "struct":
        _check_columns(kind.fields, found, topic)
    elif kind.item is not None and name == "array":
        _check_type(Column(column.name, column.key, kind.item), found["elementType"], topic)
    elif kind.fields or kind.item is not None or _TYPES.get(kind.ddl, kind.ddl) != name:
        raise InvalidRequest(
            f'column {column.name} of topic "{topic}" is of type {name} in its table, and would be '
            f"{kind.ddl} by this schema: a column keeps its type; give the property another name"
        )
