"""One call of the API, described: what is sent, what may be repeated, what the answer becomes.

Both clients send these, so that what a call is stands in one place and only how bytes travel stands
in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics import errors
from topics.errors import InvalidRequest, Refused, TopicsError
from topics.surrogates import HasData, decode_around
from topics.types import Record

T = TypeVar("T")
R = TypeVar("R", bound=Record)
JSON = "application/json"


class Request(msgspec.Struct, Generic[T], frozen=True):
    """What to send, and how to read the answer.

    `is_repeatable`: sending it again when it may have arrived does no more than sending it once.
    `is_write`: it changes something, so that a lost answer leaves an unknown outcome. `wait_s` is
    how long the server may hold the answer back.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    is_write: bool = False
    is_repeatable: bool = True
    wait_s: float = 0.0


class Reply(msgspec.Struct, frozen=True):
    """An answer as it came. `retry_after` is the header of that name."""

    status: int
    body: bytes
    retry_after: str | None = None


# -- what is sent ----------------------------------------------------------------------------------

_ENCODER = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """JSON. Raises InvalidRequest for what JSON can not say."""
    try:
        text = _ENCODER.encode(value)
        # The encoder writes null for them: nobody would know that there was a number.
        is_whole = b"null" not in text or _has_numbers_only(
            msgspec.to_builtins(value, enc_hook=_raw)
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"this can not be written as JSON: {error}") from None
    if not is_whole:
        raise InvalidRequest("this can not be written as JSON: NaN and infinity are no numbers")
    return text


def _raw(_: Any) -> None:
    """JSON that was written by somebody else."""


def _has_numbers_only(value: Any) -> bool:
    """Whether no float in it is NaN or infinity."""
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_has_numbers_only, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_has_numbers_only, value))


def body(**fields: Any) -> bytes:
    """An object of the fields that are given: None means not given."""
    return encode({name: value for name, value in fields.items() if value is not None})


@lru_cache(maxsize=4096)
def path(*parts: str, **query: Any) -> str:
    """`/v0/…` with names escaped, and the query of what is given: None means not given.

    A tuple is a parameter that is repeated.
    """
    given = {key: _texts(value) for key, value in query.items() if value not in (None, ())}
    try:
        place = "/v0/" + "/".join(quote(part, safe=":") for part in parts)
        return f"{place}?{urlencode(given, doseq=True)}" if given else place
    except UnicodeEncodeError as error:
        # A lone surrogate, which is also what Python makes of arguments that are not UTF-8.
        raise InvalidRequest(f"{error.object!r} can not be sent: it is not UTF-8") from None


def _texts(value: object) -> list[str]:
    if isinstance(value, bool):
        return ["true" if value else "false"]
    return [str(one) for one in value] if isinstance(value, tuple) else [str(value)]


# -- what comes back -------------------------------------------------------------------------------


def reading(kind: type[T]) -> Callable[[bytes], T]:
    """Reads an answer of this type."""
    return msgspec.json.Decoder(kind).decode


def reading_records(
    kind: type[T], field: str, record: Callable[[T], Sequence[R]]
) -> Callable[[bytes], T]:
    """Reads an answer that has records in `field`, also such as have lone surrogates in `data`.

    Without a `field` the answer is itself the one record.
    """

    def put_back(answer: T, data: list[msgspec.Raw]) -> T:
        pairs = zip(record(answer), data, strict=True)
        found: list[Any] = [msgspec.structs.replace(one, data=raw) for one, raw in pairs]
        if not field:
            return found[0]  # type: ignore[no-any-return]
        replaced: T = msgspec.structs.replace(answer, **{field: found})  # type: ignore[type-var]
        return replaced

    return reading_around(kind, record, put_back)


def reading_around(
    kind: type[T],
    parts: Callable[[T], Sequence[HasData]],
    put_back: Callable[[T, list[msgspec.Raw]], T],
) -> Callable[[bytes], T]:
    """Reads an answer whose `parts` may have lone surrogates in their data."""
    decoder = msgspec.json.Decoder(kind)

    def read(text: bytes) -> T:
        try:
            return decoder.decode(text)
        except msgspec.DecodeError:
            return put_back(*decode_around(decoder.decode, text, parts))

    return read


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""
    detail: dict[str, Any] = {}


class _Envelope(msgspec.Struct):
    error: _Error


_ENVELOPE = msgspec.json.Decoder(_Envelope)


def _kinds(kind: type[TopicsError]) -> Iterator[type[TopicsError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


# Only those of the one tree: a program may have subclasses of its own. Base classes come first, and
# what shares a code with its base is raised as the base.
_BY_CODE: dict[str, type[TopicsError]] = {}
for _kind in _kinds(TopicsError):
    if _kind.__module__ == errors.__name__ and _kind is not Refused:
        _BY_CODE.setdefault(_kind.code, _kind)


def result_of(request: Request[T], reply: Reply) -> T:
    """What an answer becomes. Raises the error that it is, or Refused for what is none of ours."""
    if reply.status >= 400:
        raise error_of(reply)
    try:
        return request.read(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = reply.body[:200].decode("utf-8", "replace")
        raise Refused(
            f"an answer that is not one of topics ({error}): {text!r}", "unknown", reply.status
        ) from None


def error_of(reply: Reply) -> TopicsError:
    """The error that an answer is. Its `detail` has `retry_after_ms` when the server said so."""
    try:
        told = _ENVELOPE.decode(reply.body).error
    except msgspec.DecodeError:
        # Not one of ours: something between us and the server answered.
        text = reply.body[:200].decode("utf-8", "replace")
        told = _Error("", f"status {reply.status} without an error of topics: {text!r}")
    detail = dict(told.detail)
    if reply.retry_after is not None and "retry_after_ms" not in detail:
        try:
            detail["retry_after_ms"] = int(float(reply.retry_after) * 1000)
        except ValueError:
            pass
    found = error_named(told.code, told.message, **detail)
    return found or Refused(told.message, told.code or "unknown", reply.status, **detail)


def error_named(code: str, message: str, **detail: Any) -> TopicsError | None:
    """The error of the tree that has this code, or None."""
    kind = _BY_CODE.get(code)
    return None if kind is None else kind(message, **detail)
