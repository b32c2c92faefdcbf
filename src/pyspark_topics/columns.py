"""The columns that a JSON Schema describes, and values of records as values of them.

A property becomes a column of its type: long, double, boolean, string, timestamp (`date-time`),
date, a struct of the properties it has, an array of what its items are. Where the schema leaves the
type open the column holds JSON text. All of them may be null.

Names are those of the properties, with `_` for what no plain name in SQL has, and `data_` in front
where the lake has a column of that name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_topics.json_schema import resolved
from pyspark_topics.json_values import TYPES, BadSchema, day, moment

if TYPE_CHECKING:
    import pyarrow as pa

_LONG = 1 << 63


class Unfit(Exception):
    """A value that the schema allows and a column can not hold; the place and why."""


@dataclass(frozen=True)
class Kind:
    """A type of columns: as Spark says it, as Arrow does, and how a value becomes one of it."""

    ddl: str
    arrow: Callable[[], pa.DataType]
    value: Callable[[Any], Any]
    fields: tuple[Column, ...] = ()
    item: Kind | None = None


@dataclass(frozen=True)
class Column:
    """A column and the property that it holds."""

    name: str
    key: str
    kind: Kind

    @property
    def ddl(self) -> str:
        return f"`{self.name}` {self.kind.ddl}"


def columns_of(schema: Any, taken: Iterable[str]) -> list[Column]:
    """The columns of a schema's properties, beside those that are taken. Raises BadSchema."""
    return _Kinds(schema).columns(schema, {name.lower() for name in taken}, "#")


def column_name(name: str) -> str:
    return re.sub(r"\W", "_", name) or "_"


class _Kinds:
    """The kinds of one document's schemas."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def columns(
        self, schema: Any, taken: set[str], at: str, seen: tuple[str, ...] = ()
    ) -> list[Column]:
        schema, seen = self._plain(schema, seen, at)
        found: dict[str, Column] = {}
        for name, each in schema.get("properties", {}).items():
            column = column_name(name)
            if column.lower() in taken:
                column = f"data_{column}"
            if column.lower() in found or column.lower() in taken:
                raise BadSchema(f"{at}/properties/{name}: there is another column {column}")
            kind = self._kind(each, f"{at}/properties/{name}", seen)
            found[column.lower()] = Column(column, name, kind)
        return list(found.values())

    def _plain(
        self, schema: Any, seen: tuple[str, ...], at: str
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a reference, or a choice between one schema and null, comes to."""
        while isinstance(schema, dict):
            if "$ref" in schema:
                reference = schema["$ref"]
                if reference in seen:
                    # It holds itself: there is no end to its columns.
                    return {}, seen
                seen = (*seen, reference)
                schema = resolved(self._root, reference, at)
                continue
            some = schema.get("anyOf") or schema.get("oneOf") or ()
            real = [each for each in some if each != {"type": "null"}]
            if "type" not in schema and len(real) == 1 and "properties" not in schema:
                schema = real[0]
                continue
            return schema, seen
        return {}, seen

    def _kind(self, schema: Any, at: str, seen: tuple[str, ...]) -> Kind:
        schema, seen = self._plain(schema, seen, at)
        name = _type_of(schema)
        if name == "string" and schema.get("format") == "date-time":
            return Kind("timestamp", lambda: _arrow().timestamp("us", "UTC"), moment)
        if name == "string" and schema.get("format") == "date":
            return Kind("date", lambda: _arrow().date32(), day)
        if (
            name == "array"
            and isinstance(schema.get("items"), dict)
            and "prefixItems" not in schema
        ):
            return _list_of(self._kind(schema["items"], f"{at}/items", seen))
        if name == "object":
            fields = self.columns(schema, set(), at, seen)
            if fields:
                return _struct_of(fields)
        return _SCALARS.get(name or "", _TEXT)


def _type_of(schema: dict[str, Any]) -> str | None:
    """The one type that its values have, null aside; None where there are several."""
    if "type" in schema:
        found = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    else:
        values = (
            schema["enum"] if "enum" in schema else [schema[n] for n in ("const",) if n in schema]
        )
        found = [next(n for n, (test, _) in TYPES.items() if test(value)) for value in values]
    names = {name for name in found if name != "null"}
    if names == {"integer", "number"}:
        return "number"
    return names.pop() if len(names) == 1 else None


def _arrow() -> Any:
    import pyarrow

    return pyarrow


# -- values --------------------------------------------------------------------------------------


def _long(value: Any) -> int:
    found = int(value)
    if not -_LONG <= found < _LONG:
        raise Unfit(": does not fit into 64 bits")
    return found


def _double(value: Any) -> float:
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise Unfit(": is too large for a double")
    return found


def _string(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit(": is no text of Unicode") from None
    return value


def _json(value: Any) -> str:
    try:
        found = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        # JSON has no word for what is beyond the largest double.
        raise Unfit(": has a number that is too large for a double") from None
    try:
        return _string(found)
    except Unfit:
        return json.dumps(value, separators=(",", ":"))


def _same(value: Any) -> Any:
    return value


_TEXT = Kind("string", lambda: _arrow().string(), _json)
_SCALARS = {
    "integer": Kind("bigint", lambda: _arrow().int64(), _long),
    "number": Kind("double", lambda: _arrow().float64(), _double),
    "boolean": Kind("boolean", lambda: _arrow().bool_(), _same),
    "string": Kind("string", lambda: _arrow().string(), _string),
}


def _list_of(item: Kind) -> Kind:
    def value(found: Any) -> Any:
        made = []
        for n, each in enumerate(found):
            try:
                made.append(None if each is None else item.value(each))
            except Unfit as error:
                raise Unfit(f"[{n}]{error}") from None
        return made

    return Kind(f"array<{item.ddl}>", lambda: _arrow().list_(item.arrow()), value, item=item)


def _struct_of(fields: list[Column]) -> Kind:
    def arrow() -> pa.DataType:
        return _arrow().struct([(field.name, field.kind.arrow()) for field in fields])

    ddl = ",".join(f"`{field.name}`:{field.kind.ddl}" for field in fields)
    return Kind(
        f"struct<{ddl}>", arrow, lambda found: values_of(found, fields), fields=tuple(fields)
    )


def values_of(found: dict[str, Any], columns: list[Column]) -> dict[str, Any]:
    """Values of columns by their names, those that there are. Raises Unfit."""
    made = {}
    for column in columns:
        value = found.get(column.key)
        if value is not None:
            try:
                made[column.name] = column.kind.value(value)
            except Unfit as error:
                raise Unfit(f".{column.key}{error}") from None
    return made
