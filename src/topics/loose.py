"""Fields that we do not know: ignored, so that a newer client may talk to us, and named.

A type of bodies is declared as what it takes. What it does not take is ignored in a second look:
the first is by a decoder that refuses it, so that a body of known fields costs nothing. A struct
that is declared with `forbid_unknown_fields`, such as a config, refuses them in both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from typing import (
    Annotated,
    Any,
    Generic,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from topics.surrogates import has_surrogates, masked

T = TypeVar("T", bound=msgspec.Struct)

# As many names as an answer tells, and what is told of each.
NAMES_MAX = 32
NAME_CHARS_MAX = 64
# Of a larger body the first is told: to find the others is to make a dictionary of all there are.
TOLD_BYTES_MAX = 256 * 1024
_UNKNOWN, _AT = "Object contains unknown field `", "` - at `$"

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_LIST = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Ignoring(Protocol):
    """Whoever answers a body, and says what of it was ignored."""

    def ignored(self, names: list[str]) -> None:
        """Told of unknown fields, if there were any."""
        ...


class Loose(Generic[T]):
    """A type of bodies, with its decoders."""

    __slots__ = ("_shape", "decode_known", "decode_loosely", "kind")

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.decode_known = msgspec.json.Decoder(refusing(kind)).decode
        self.decode_loosely = msgspec.json.Decoder(kind).decode
        self._shape = _Shape(kind)

    def name_unknown(self, text: bytes, ignoring: Ignoring) -> None:
        """Tells of the unknown fields in a body that was decoded, each name once."""
        if len(text) > TOLD_BYTES_MAX:
            name_first_unknown(self.decode_known, text, ignoring)
            return
        found: dict[str, None] = {}
        if has_surrogates(text):
            text = masked(text)
        for name in self._shape.unknown_in(text):
            found[name[:NAME_CHARS_MAX]] = None
            if len(found) == NAMES_MAX:
                break
        if found:
            ignoring.ignored(list(found))


def name_first_unknown(
    decode_known: Callable[[bytes], object], text: bytes, ignoring: Ignoring
) -> None:
    """Tells of the unknown field that a decoder refuses a body for, if that is why."""
    try:
        decode_known(masked(text) if has_surrogates(text) else text)
    except (msgspec.DecodeError, RecursionError) as error:
        said = str(error)
        if said.startswith(_UNKNOWN):
            name, at, _ = said.removeprefix(_UNKNOWN).rpartition(_AT)
            name = name if at else said.removeprefix(_UNKNOWN)[:-1]
            ignoring.ignored([name[:NAME_CHARS_MAX]])


def refusing(kind: type[T]) -> type[T]:
    """The same struct, which refuses fields that it does not have, and so do those inside."""
    if kind.__struct_config__.forbid_unknown_fields:
        return kind
    hints = get_type_hints(kind, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(kind):
        inner = _with_structs(hints[field.name])
        if inner is not hints[field.name]:
            assert field.default_factory is msgspec.NODEFAULT, "not needed so far"
            assert field.encode_name == field.name, "not needed so far"
            default = () if field.default is msgspec.NODEFAULT else (field.default,)
            fields.append((field.name, inner, *default))
    made: type[T] = msgspec.defstruct(  # type: ignore[assignment]
        kind.__name__, fields, bases=(kind,), forbid_unknown_fields=True, kw_only=True
    )
    return made


def _with_structs(kind: Any) -> Any:
    """A type with its structs replaced by those that refuse; the type itself without any."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return refusing(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inside = _with_structs(inner[0])
        return kind if inside is inner[0] else Annotated[(inside, *inner[1:])]
    replaced = tuple(map(_with_structs, inner))
    if all(a is b for a, b in zip(inner, replaced, strict=True)):
        return kind
    if origin in (list, dict):
        return origin[replaced]
    return reduce(operator.or_, replaced)


class _Shape:
    """The fields of a struct, and which of them have structs inside that ignore fields."""

    __slots__ = ("_inside", "_known")

    def __init__(self, kind: type[Any]) -> None:
        hints = get_type_hints(kind)
        self._known: set[str] = set()
        # How they stand in the field, and what they are.
        self._inside: dict[str, tuple[type, _Shape]] = {}
        for field in msgspec.structs.fields(kind):
            self._known.add(field.encode_name)
            found = _inside(hints[field.name])
            if found is not None:
                self._inside[field.encode_name] = (found[0], _Shape(found[1]))

    def unknown_in(self, text: bytes | msgspec.Raw) -> Iterator[str]:
        values = _OBJECT.decode(text) or {}
        if values.keys() - self._known:
            yield from (name for name in values if name not in self._known)
        for name, (how, shape) in self._inside.items():
            raw = values.get(name)
            if raw is None:
                continue
            if how is list:
                objects = _LIST.decode(raw) or []
            elif how is dict:
                objects = list((_OBJECT.decode(raw) or {}).values())
            else:
                objects = [raw]
            for value in objects:
                yield from shape.unknown_in(value)


def _inside(kind: Any) -> tuple[type, type[Any]] | None:
    """The struct of a field that ignores what it does not know; `list`, `dict` or `object`."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return None if kind.__struct_config__.forbid_unknown_fields else (object, kind)
    origin = get_origin(kind)
    for inner in get_args(kind):
        found = _inside(inner)
        if found is not None:
            return (origin if origin in (list, dict) else found[0], found[1])
    return None
