"""JSON values as JSON Schema sees them: their types, when two are the same, times, patterns."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


class BadSchema(Exception):
    """A schema that can not be read; the message names the place in it."""


def is_integer(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


def is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "null": (lambda value: value is None, "null"),
    "boolean": (lambda value: type(value) is bool, "a boolean"),
    "integer": (is_integer, "an integer"),
    "number": (is_number, "a number"),
    "string": (lambda value: type(value) is str, "a string"),
    "array": (lambda value: type(value) is list, "an array"),
    "object": (lambda value: type(value) is dict, "an object"),
}


def moment(text: str) -> datetime:
    """A time of RFC 3339 in UTC. Raises ValueError, OverflowError."""
    if not _TIME.fullmatch(text):
        raise ValueError(text)
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


def day(text: str) -> date:
    """A date of RFC 3339. Raises ValueError."""
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return date.fromisoformat(text)


def key_of(value: Any) -> Any:
    """The same for values that are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return "array", tuple(map(key_of, value))
    if isinstance(value, dict):
        return "object", frozenset((name, key_of(each)) for name, each in value.items())
    return ("number" if is_number(value) else type(value)), value


def pattern(text: Any, at: str) -> re.Pattern[str]:
    """A pattern as JSON Schema means it: `$` is the end, `\\d` a digit of ASCII."""
    if not isinstance(text, str):
        raise BadSchema(f"{at}: must be a pattern")
    made, is_class, index = "", False, 0
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            made += text[index : index + 2]
            index += 2
            continue
        if letter in "[]":
            is_class = letter == "["
        made += r"\Z" if letter == "$" and not is_class else letter
        index += 1
    try:
        return re.compile(made, re.ASCII)
    except re.error as error:
        raise BadSchema(f"{at}: the pattern can not be read: {error}") from None
