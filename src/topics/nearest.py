"""Did you mean? What somebody wrote, held against what can stand in its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

# Nothing longer is a slip of the pen, and comparing costs the product of the lengths.
WORD_CHARS_MAX = 64
# What is said of a value has words of it, which may be as long as a body.
SAID_CHARS_MAX = 1000

# What msgspec says, and where in the value; the field or word may have quotes of its own.
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_NO_CHOICE = re.compile(r"Invalid enum value '(.*?)'(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[([^]]*)\]")


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing where nothing is near."""
    if len(word) > WORD_CHARS_MAX:
        return ""
    near = get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def in_words(error: Exception, kind: Any) -> str:
    """What was said of a value that should be of this type, with what may have been meant."""
    said = str(error)
    if len(said) > SAID_CHARS_MAX:
        return f"{said[: SAID_CHARS_MAX // 2]} … {said[-SAID_CHARS_MAX // 2 :]}"
    found = _UNKNOWN_FIELD.fullmatch(said)
    if found is not None:
        return said + meant(found[1], _fields(_at(kind, found[2])))
    found = _NO_CHOICE.fullmatch(said)
    choices = [] if found is None else list(_choices(_at(kind, found[2])))
    if found is None or not choices:
        return said
    return f"{said}; it is one of {', '.join(choices)}{meant(found[1], choices)}"


def _at(kind: Any, path: str | None) -> list[Any]:
    """The types that may stand at a place within a value of this type."""
    kinds = list(_alternatives(kind))
    for step in _STEP.finditer(path or ""):
        kinds = [inner for one in kinds for inner in _inside(one, step[1], step[2])]
    return kinds


def _alternatives(kind: Any) -> Iterator[Any]:
    """A type without what only annotates it; of a union, each."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (None, Literal, list, dict, tuple):
        yield kind
    else:
        for one in get_args(kind):
            yield from _alternatives(one)


def _inside(kind: Any, field: str | None, index: str) -> Iterator[Any]:
    """What a field of a struct may be; without one, an item of a list or a value of a dict."""
    if field is None:
        if get_origin(kind) in (list, dict):
            yield from _alternatives(get_args(kind)[-1])
        elif get_origin(kind) is tuple and index.isdecimal():
            # Each place of a tuple has a type of its own.
            for one in get_args(kind)[int(index) :][:1]:
                yield from _alternatives(one)
    elif _is_struct(kind):
        for one in msgspec.structs.fields(kind):
            if one.encode_name == field:
                yield from _alternatives(one.type)


def _fields(kinds: list[Any]) -> list[str]:
    structs = filter(_is_struct, kinds)
    return [one.encode_name for kind in structs for one in msgspec.structs.fields(kind)]


def _choices(kinds: list[Any]) -> Iterator[str]:
    for kind in kinds:
        if get_origin(kind) is Literal:
            yield from map(str, get_args(kind))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
