"""Request bodies and queries: what a handler may rely on after one call, or a 400 or 415."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from topics.engine.state.write_request import check_text, invalid_json
from topics.integers import is_float_refused, respelt
from topics.loose import Ignoring, Loose
from topics.nearest import meant
from topics.server.api.call import Call
from topics.server.api.fields import parse_u64
from topics.server.http.errors import BadRequest, UnsupportedMedia
from topics.server.http.message import JSON, Request
from topics.settings import parse_bool

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

QUERY_FIELDS_MAX = 100

_CHARSET = re.compile(r'charset\s*=\s*"?utf-?8"?', re.IGNORECASE)


def check_content_type(request: Request) -> None:
    """Raises UnsupportedMedia unless the body is declared as JSON in UTF-8."""
    value = request.headers.get(b"content-type", b"")
    media, _, parameters = value.decode("latin-1").partition(";")
    charset = parameters.strip()
    if media.strip().lower() != JSON or (
        "charset" in charset.lower() and not _CHARSET.fullmatch(charset)
    ):
        given = f"it is {value.decode('latin-1')[:100]!r}" if value else "there is none"
        raise UnsupportedMedia(f"Content-Type must be application/json; {given}")
    request.head.is_json = True


def decode(call: Call, kind: Loose[S]) -> S:
    """The body of a request; an absent one is `{}`."""
    body = call.body or b"{}"
    if call.body:
        if not call.head.is_json:
            check_content_type(call)
        check_text(body)
    return decode_json(body, kind, call)


def decode_json(text: bytes, kind: Loose[S], ignoring: Ignoring) -> S:
    """`text` as the type. Raises InvalidRequest."""
    try:
        return kind.decode_known(text)
    except (msgspec.DecodeError, RecursionError):
        found = _decode_again(text, kind)
    kind.name_unknown(text, ignoring)
    return found


def _decode_again(text: bytes, kind: Loose[S]) -> S:
    try:
        return kind.decode_loosely(text)
    except (msgspec.DecodeError, RecursionError) as error:
        if not is_float_refused(error):
            raise invalid_json(error, kind.kind) from None
    try:
        return kind.decode_loosely(respelt(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_json(error, kind.kind) from None


class Query:
    """The parameters of a query; of a repeated one the first counts, unknown ones are ignored."""

    __slots__ = ("_repeated", "_values")

    def __init__(self, query: bytes) -> None:
        self._values: dict[str, str] = {}
        self._repeated: dict[str, list[str]] = {}
        if not query:
            return
        try:
            pairs = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=QUERY_FIELDS_MAX,
            )
        except ValueError:
            raise BadRequest(
                "the query is not form-encoded UTF-8, or has too many fields"
            ) from None
        for name, value in pairs:
            self._values.setdefault(name, value)
            self._repeated.setdefault(name, []).append(value)

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def texts(self, name: str) -> list[str]:
        """Every value of a parameter that may be repeated."""
        return self._repeated.get(name, [])

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """One of several words. Raises BadRequest for anything else."""
        value = self._values.get(name, default)
        if value not in choices:
            raise BadRequest(
                f"{name} is one of {', '.join(choices)}; not {value[:100]!r}"
                f"{meant(value, choices)}",
                parameter=name,
            )
        return value

    def flag(self, name: str, *, default: T) -> bool | T:
        """A boolean: true, false, 1 or 0. Raises BadRequest for anything else."""
        value = self._values.get(name)
        if value is None:
            return default
        found = parse_bool(value)
        if found is None:
            raise BadRequest(f"{name} must be true or false, not {value[:100]!r}", parameter=name)
        return found

    def number(self, name: str) -> int | None:
        """An unsigned 64-bit integer, None when absent. Raises BadRequest for anything else."""
        value = self._values.get(name)
        if value is None:
            return None
        found = parse_u64(value)
        if found is None:
            raise BadRequest(
                f"{name} must be an integer from 0 to 2^64 - 1, not {value[:100]!r}", parameter=name
            )
        return found


def parse_epoch(text: str | None) -> int | None:
    """An epoch as it stands on the wire. Raises BadRequest for what never was one."""
    if text is None:
        return None
    found = parse_u64(text)
    if found is None:
        raise BadRequest("epoch must be a decimal string below 2^64", epoch=text[:100])
    return found
