"""Errors on the wire: one shape for all, and those that only HTTP knows.

    TopicsError
    └── HttpError               what a request can do wrong before it reaches the engine
        ├── BadRequest          400 invalid_request
        ├── MethodNotAllowed    405 method_not_allowed
        ├── NotAcceptable       406 not_acceptable
        ├── RequestTimeout      408 request_timeout
        ├── TargetTooLong       414 uri_too_long
        ├── UnsupportedMedia    415 unsupported_media_type
        │   └── UnsupportedCoding
        ├── ExpectationFailed   417 expectation_failed
        ├── UpgradeRequired     426 upgrade_required
        └── HeadersTooLarge     431 headers_too_large

What is not a TopicsError is a bug of ours: it is logged, and the client learns only that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from topics.errors import CorruptData, PayloadTooLarge, TopicsError, Unreadable
from topics.server.http.message import Response

LOG = logging.getLogger("topics.server")
RETRY_AFTER_MS_DEFAULT = 1000
RETRYABLE = frozenset({429, 503})

_ENCODER = msgspec.json.Encoder(enc_hook=repr)


class HttpError(TopicsError):
    code = "invalid_request"
    status = 400


class BadRequest(HttpError):
    pass


class MethodNotAllowed(HttpError):
    """`allow` in the detail names the methods, and becomes the Allow header."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(HttpError):
    code = "not_acceptable"
    status = 406


class RequestTimeout(HttpError):
    code = "request_timeout"
    status = 408


class TargetTooLong(HttpError):
    code = "uri_too_long"
    status = 414


class UnsupportedMedia(HttpError):
    code = "unsupported_media_type"
    status = 415


class UnsupportedCoding(UnsupportedMedia):
    """The media type may be fine; its Content-Encoding is not."""


class ExpectationFailed(HttpError):
    code = "expectation_failed"
    status = 417


class UpgradeRequired(HttpError):
    code = "upgrade_required"
    status = 426


class HeadersTooLarge(HttpError):
    code = "headers_too_large"
    status = 431


def target_too_long(bytes_max: int) -> TopicsError:
    return TargetTooLong(f"the request target is longer than {bytes_max} bytes")


def body_too_large(bytes_max: int) -> TopicsError:
    return PayloadTooLarge(
        f"the body is larger than {bytes_max} bytes", limit="max_body_bytes", max=bytes_max
    )


def _kinds(kind: type[TopicsError]) -> Iterator[type[TopicsError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


# Which status a code has: that of its class.
STATUSES = {kind.code: kind.status for kind in _kinds(TopicsError)}


def error_response(error: TopicsError) -> Response:
    """The canonical error as an answer, with the headers its status asks for."""
    headers: list[tuple[str, str]] = []
    if error.status in RETRYABLE:
        headers.append(("Retry-After", str(_retry_after_s(error.detail))))
    elif error.status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    elif error.status == 405:
        headers.append(("Allow", ", ".join(error.detail.get("allow", ()))))
    elif isinstance(error, UnsupportedCoding):
        headers.append(("Accept-Encoding", "gzip"))
    elif error.status == 426:
        headers.append(("Upgrade", "websocket"))
    body = error_body(error.code, error.message, error.detail)
    return Response(body, error.status, headers=tuple(headers))


def internal_response(error: BaseException) -> Response:
    """The last resort. The log has the traceback; the answer says only that it was our fault."""
    LOG.error("a request handler failed", exc_info=error)
    return Response(
        error_body("internal", "an internal error; the server's log has the details", {}), 500
    )


def response_to(error: BaseException) -> Response:
    """The answer to whatever a handler raised, which keeps nothing alive from here on."""
    try:
        return _response_to(error)
    finally:
        _let_go(error)


def _response_to(error: BaseException) -> Response:
    if isinstance(error, TopicsError):
        if error.status >= 500 and error.code == "internal":
            return internal_response(error)
        if isinstance(error, CorruptData | Unreadable):
            LOG.error("stored records can not be read: %s", error)
        return error_response(error)
    return internal_response(error)


def _let_go(error: BaseException | None) -> None:
    """Drops the tracebacks of an error and of those before it.

    They hold the frames that it came through, which hold the request, its connection and, as a
    variable, the error: a ring for each refusal, which would wait for a collector.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def refusal_of(error: Exception) -> TopicsError:
    """What went wrong while a head was looked at, as something that can be told."""
    if isinstance(error, TopicsError):
        return error
    LOG.error("a request can not be handled", exc_info=error)
    return TopicsError("an internal error; the server's log has the details")


def error_body(code: str, message: str, detail: dict[str, Any]) -> bytes:
    """`{"error": {code, message, detail}}`; detail is left out when there is nothing in it."""
    content: dict[str, Any] = {"code": code, "message": message}
    if detail:
        content["detail"] = detail
    try:
        return _ENCODER.encode({"error": content})
    except Exception:
        # Text that is not valid Unicode (a lone surrogate), or a detail that can not be encoded.
        plain = message.encode("utf-8", "replace").decode()
        return _ENCODER.encode({"error": {"code": code, "message": plain}})


def _retry_after_s(detail: dict[str, Any]) -> int:
    after_ms = detail.get("retry_after_ms", RETRY_AFTER_MS_DEFAULT)
    if not isinstance(after_ms, int | float):
        after_ms = RETRY_AFTER_MS_DEFAULT
    return max(1, -int(-after_ms // 1000))
