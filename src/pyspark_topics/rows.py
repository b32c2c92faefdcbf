"""Rows to records: which columns a sink takes, and the JSON that a request has.

`data` is JSON text and goes into the request as it is, so it is parsed here first: text that is not
exactly one JSON value could otherwise end its record and begin another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark_topics.errors import BadRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = ("topic", "data", "tag", "node", "meta")
_TEXT = ("string", "varchar", "char")


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises BadRow when rows of this schema can be no records. Other columns are left out."""
    types = {one.name: one.dataType.simpleString() for one in schema.fields}
    if "data" not in types:
        raise BadRow("the rows have no column data, which is the record's JSON text")
    if topic is None and "topic" not in types:
        raise BadRow("the rows have no column topic, and there is no option topic")
    for name in COLUMNS:
        wanted = "map<string,string>" if name == "meta" else "string"
        found = types.get(name, wanted)
        is_text = name != "meta" and found.partition("(")[0] in _TEXT
        if found not in (wanted, "void") and not is_text:
            raise BadRow(f"the column {name} is {found}, not {wanted}")


def records(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, bytes]]:
    """The topic of each row and its record as JSON. Raises BadRow."""
    names = set(batch.schema.names)
    nothing: list[None] = [None] * batch.num_rows
    columns = [batch.column(name).to_pylist() if name in names else nothing for name in COLUMNS]
    for to, data, tag, node, meta in zip(*columns, strict=True):
        if data is None:
            raise BadRow("a row has null for data; a record's data is JSON text, such as null")
        if topic is None and to is None:
            raise BadRow("a row has null for topic, and there is no option topic")
        rest: dict[str, Any] = {}
        if tag is not None:
            rest["tag"] = tag
        if node is not None:
            rest["node"] = node
        if meta is not None:
            rest["meta"] = _meta(meta)
        said = json.dumps(rest)[1:-1]
        record = f'{{"data":{_checked(data)}{"," if said else ""}{said}}}'
        yield topic or to, record.encode()


def _checked(data: str) -> str:
    try:
        json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BadRow(f"data is not JSON: {data[:100]!r}") from None
    return data


def _refuse(constant: str) -> None:
    # Python reads NaN and Infinity, which are none.
    raise ValueError(constant)


def _meta(pairs: list[tuple[str, str | None]]) -> dict[str, str]:
    found = {}
    for key, value in pairs:
        if value is None:
            raise BadRow(f"meta has null for {key!r}; its values are texts")
        found[key] = value
    return found
