"""A user's schema: it judges as the standard says, and its columns hold what was judged well."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_topics.json_schema import checking
from pyspark_topics.json_values import BadSchema
from pyspark_topics.shapes import TAKEN, Shape
from pyspark_topics.tasks import COLUMNS

NAMES = st.sampled_from(["a", "b", "ab"])
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 1.0, 0.5, 0.3, 1e300, 10**30])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "a", "ab1", "ä\n"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
TYPE = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
COUNT = st.integers(0, 3)
PATTERN = st.sampled_from(["^a", "b$", r"\d", "^[^$]*$", "^$"])


def schemas() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.booleans(),
        st.just({"$ref": "#/$defs/other"}),
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.one_of(TYPE, st.lists(TYPE, min_size=1, max_size=2, unique=True)),
                "enum": st.lists(VALUES, min_size=1, max_size=3),
                "const": VALUES,
                "minimum": NUMBERS, "exclusiveMaximum": NUMBERS,
                "maximum": NUMBERS, "exclusiveMinimum": NUMBERS,
                "multipleOf": st.sampled_from([1, 2, 0.1, 0.5, 1.5]),
                "minLength": COUNT, "maxLength": COUNT, "pattern": PATTERN,
                "minItems": COUNT, "maxItems": COUNT, "uniqueItems": st.booleans(),
                "minProperties": COUNT, "maxProperties": COUNT,
                "required": st.lists(NAMES, max_size=2, unique=True),
                "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True)),
            },
        ),
    )  # fmt: skip
    return st.recursive(leaves, nested, max_leaves=6)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "patternProperties": st.dictionaries(PATTERN, inner, max_size=1),
            "additionalProperties": inner, "propertyNames": inner,
            "prefixItems": some, "items": inner, "contains": inner,
            "minContains": COUNT, "maxContains": COUNT,
            "allOf": some, "anyOf": some, "oneOf": some, "not": inner,
            "if": inner, "then": inner, "else": inner,
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        },
    )  # fmt: skip


@given(schema=schemas(), other=schemas(), value=VALUES)
def test_it_judges_as_another_reader_of_the_standard(schema: Any, other: Any, value: Any) -> None:
    """A schema beside a definition that it can name; recursion comes with the names."""
    if isinstance(schema, dict):
        if isinstance(other, dict) and other.get("$ref"):
            other = True
        schema = schema | {"$defs": {"other": other}}
    elif schema == {"$ref": "#/$defs/other"}:
        return
    try:
        theirs = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
        mine = checking(schema)(value)
    except RecursionError:
        return
    assert (mine is None) == theirs, mine


def shaped(schema: Any, *data: Any) -> list[dict[str, Any]]:
    """The columns that stand behind those of every table."""
    rows = [json.dumps(each) if each is not Ellipsis else None for each in data]
    none = pa.nulls(len(rows), pa.string())
    columns = [pa.array(rows, pa.string()) if name == "data" else none for name in COLUMNS]
    batch = pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
    found = Shape(json.dumps(schema)).judge().shaped(batch)
    return [
        {name: value for name, value in row.items() if name not in COLUMNS and name != "_schema"}
        for row in found.to_pylist()
    ]


ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["amount"],
    "properties": {
        "amount": {"type": "number", "exclusiveMinimum": 0},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "customer": {"$ref": "#/$defs/customer"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "paid": {"enum": [True, False, None]},
        "any": {},
        "ts": {"type": "integer"},
        "unit price": {"type": ["number", "null"]},
    },
    "$defs": {
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "friend": {"$ref": "#/$defs/customer"}},
        }
    },
}


def test_properties_become_columns_of_their_types() -> None:
    assert Shape(json.dumps(ORDER)).ddl == (
        "`amount` double, `count` bigint, "
        "`customer` struct<`name`:string,`friend`:string>, `lines` array<string>, `at` timestamp, "
        "`day` date, `paid` boolean, `any` string, `data_ts` bigint, `unit_price` double, "
        "_schema string, _rejected string"
    )
    given = {
        "amount": 2, "count": 3.0, "customer": {"name": "ä", "friend": {"name": "b"}, "x": 1},
        "lines": ["a", "b"], "at": "2026-01-02T03:04:05.5+01:00", "day": "2026-01-02", "paid": True,
        "any": {"ü": [1]}, "ts": 7, "unit price": None, "more": 1,
    }  # fmt: skip
    full, few, gap = shaped(ORDER, given, {"amount": 1}, ...)
    assert full == {
        "amount": 2.0, "count": 3, "customer": {"name": "ä", "friend": '{"name":"b"}'},
        "lines": ["a", "b"], "at": datetime(2026, 1, 2, 2, 4, 5, 500_000, UTC),
        "day": date(2026, 1, 2), "paid": True, "any": '{"ü":[1]}', "data_ts": 7,
        "unit_price": None, "_rejected": None,
    }  # fmt: skip
    assert few == dict.fromkeys(full) | {"amount": 1.0}
    assert gap == dict.fromkeys(full)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (5, "is not an object"),
        ({}, "amount: is missing"),
        ({"amount": "5"}, "amount: is not a number"),
        ({"amount": 0}, "amount: is not more than 0"),
        ({"amount": 10**400}, "amount: is too large for a double"),
        ({"amount": 1, "count": 1 << 63}, "count: does not fit into 64 bits"),
        ({"amount": 1, "count": "x"}, "count: fits none of anyOf"),
        ({"amount": 1, "lines": ["a", 2]}, "lines[1]: is not a string"),
        ({"amount": 1, "lines": ["\ud800"]}, "lines[0]: is no text of Unicode"),
        ({"amount": 1, "customer": {"name": 1}}, "customer.name: is not a string"),
        ({"amount": 1, "at": "2026-01-02"}, "at: is not a date-time"),
        ({"amount": 1, "at": "0001-01-01T00:00:00+14:00"}, "at: is not a date-time"),
        ({"amount": 1, "day": "2026-02-30"}, "day: is not a date"),
        ({"amount": 1, "paid": 1}, "paid: is none of the values"),
    ],
)
def test_what_is_refused_has_a_reason_and_no_column(data: Any, reason: str) -> None:
    good, bad = shaped(ORDER, {"amount": 1}, data)
    assert bad == dict.fromkeys(good) | {"_rejected": reason}


def test_a_column_of_json_holds_json_only() -> None:
    """A number beyond all doubles has no spelling that a reader of the column would take."""
    text = '{"amount": 1, "any": [1e400]}'
    assert Shape(json.dumps(ORDER)).judge().judged(text) == (
        {}, "any: has a number that is too large for a double"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "#: a schema is an object"),
        ({"type": "text"}, "#/type: must be of null"),
        ({"properties": {"a": {"minimum": "1"}}}, "#/properties/a/minimum: must be a number"),
        ({"unevaluatedProperties": False}, "#: unevaluatedProperties is not done here"),
        ({"$ref": "other.json"}, "#: $ref to another document"),
        ({"$ref": "#/$defs/x"}, "#: $ref #/$defs/x names nothing"),
        ({"$ref": {}}, "#: $ref to another document"),
        ({"properties": {"a": {"pattern": "("}}}, "#/properties/a/pattern: the pattern can not"),
        ({"items": [{}]}, "#/items: a list of schemas is called prefixItems"),
        ({"properties": {"a-b": {}, "A_b": {}}}, "#/properties/A_b: there is another column A_b"),
        ({"properties": {"seq": {}, "data_seq": {}}}, "there is another column data_seq"),
    ],
)
def test_a_schema_that_can_not_be_read_says_where(schema: Any, words: str) -> None:
    with pytest.raises(BadSchema) as raised:
        Shape(json.dumps(schema)).check()
    assert words in str(raised.value)


def test_no_column_takes_a_name_of_the_lake() -> None:
    names = {name: {"type": "integer"} for name in TAKEN}
    columns = Shape(json.dumps({"properties": names})).columns
    assert [column.name for column in columns] == [f"data_{name}" for name in TAKEN]


def test_a_schema_is_the_same_however_it_is_written() -> None:
    assert Shape('{"a":1,"b":2}').id == Shape('{ "b": 2, "a": 1 }').id != Shape("{}").id
