"""A request as a handler sees it, an answer as it returns it, and the bytes of its head."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Container
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from topics.server.http.hub import Hub
from topics.server.http.takeover import Takeover
from topics.types import Payload

LOG = logging.getLogger("topics.server")
JSON = "application/json"
# Below this, one copy is cheaper than a second buffer to write.
COPY_BYTES_MAX = 32 * 1024

_NO_BODY = frozenset({204, 304})
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_COMPRESSIBLE = re.compile(r"text/|application/(json|javascript|xml|openmetrics)|image/svg")
_UNSAFE = re.compile(r"[\r\n\0]")
_CODING = re.compile(rb"(?:^|,)[ \t]*(gzip|x-gzip|\*)[ \t]*(?:;[ \t]*q=([0-9.]+))?[ \t]*(?=,|$)")

# Everything up to the value of Content-Length, for each status and content type seen so far.
_heads: dict[tuple[int, str], bytes] = {}
_HEADS_MAX = 1000


class Pending(Enum):
    """What a handler returns when the answer comes later, or when it took the connection over."""

    PENDING = "pending"


PENDING: Final = Pending.PENDING


class Response(msgspec.Struct, eq=False):
    """A complete answer. Headers are for what is rare: type and length have their own place.

    `pieces` come after `body` and are written as they are: a large answer needs no copy of them.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[Payload, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(map(len, self.pieces))


class Head:
    """What stands in front of a body, parsed. Requests with the same head share it.

    `path` is still percent-encoded, `query` are the bytes after the question mark. `headers` has
    lower-case names; repeated ones are joined with a comma. `body_bytes` is the length it gives.
    `found` is the handler that the application chose for it, with what it takes from the path:
    later requests with this head go straight there. `caller` is whose secret is in it, once the
    application knows, and `noted` what its handler made of it. `is_json` says that it declares such
    a body, once that is known, and `is_welcome` that it was judged and its body is wanted.
    """

    __slots__ = (
        "body_bytes", "caller", "found", "headers", "is_json", "is_welcome", "method", "noted",
        "path", "query",
    )  # fmt: skip

    def __init__(self, method: str, target: bytes, headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.headers = headers
        if b"?" in target:
            path, _, self.query = target.partition(b"?")
            self.path = path.decode()
        else:
            self.path = target.decode()
            self.query = b""
        self.body_bytes = 0
        self.found: tuple[Callable[..., Answer], tuple[str, ...]] | None = None
        self.caller: Any = None
        self.noted: Any = None
        self.is_json = False
        self.is_welcome = False

    def without(self, names: Container[bytes]) -> Head:
        """The same head without some headers, for whoever keeps it."""
        kept = Head(self.method, b"", {k: v for k, v in self.headers.items() if k not in names})
        kept.path, kept.query, kept.found = self.path, self.query, self.found
        kept.caller, kept.noted, kept.is_json = self.caller, self.noted, self.is_json
        return kept


class Line(Protocol):
    """The connection that a request came on, and that its answer leaves on."""

    @property
    def server(self) -> Hub: ...

    @property
    def is_gone(self) -> bool:
        """Whether nobody is there any more to answer to."""
        ...

    @property
    def peer(self) -> str:
        """The address of the client, in words."""
        ...

    def deliver(self, request: Request, response: Response) -> None:
        """The answer of a pending request."""
        ...

    def handle_now(self, request: Request) -> None:
        """Calls the handler of a pending request once more."""
        ...

    def deliver_json(self, request: Request, body: bytes) -> None:
        """`deliver` of 200 and JSON, as most are."""
        ...


class Request(msgspec.Struct, eq=False):
    """One request, complete with its body.

    `extra` are header pairs that go out with whatever answers this request. `on_abandoned` is
    called if the client goes away before the answer was given.
    """

    connection: Line
    head: Head
    body: bytes
    # Plain: a kept-alive HTTP/1.1 request whose answer needs no thought.
    is_plain: bool = True
    is_keep_alive: bool = True
    is_http10: bool = False
    is_upgrade: bool = False
    extra: tuple[tuple[str, str], ...] = ()
    # The Idempotency-Key, where the head is one that is kept without.
    own_key: bytes = b""
    output: tuple[Payload, ...] | None = None
    successor: Takeover | None = None
    on_abandoned: Callable[[], None] | None = None

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def query(self) -> bytes:
        return self.head.query

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.head.headers

    def header(self, name: bytes) -> str:
        """The value of a header by its lower-case name; empty when it is absent."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    @property
    def idempotency_key(self) -> bytes | None:
        return self.own_key or self.head.headers.get(b"idempotency-key")

    def respond(self, response: Response) -> None:
        """Answers a pending request, once, from the loop's thread.

        The answer goes out after those of the requests before it. Does nothing when the client
        is gone.
        """
        self.connection.deliver(self, response)

    def abandon(self) -> None:
        """The client has gone: whoever waits to answer is told."""
        if self.successor is not None:
            self.successor.abandon()
        callback, self.on_abandoned = self.on_abandoned, None
        if callback is None or self.output is not None:
            return
        try:
            callback()
        except Exception as error:
            LOG.error("a callback of an abandoned request failed", exc_info=error)


Answer: TypeAlias = Response | Pending
Handler: TypeAlias = Callable[[Any], Answer]
# Takes a request whose body is still on its way, and whether it is sure to have one. Returns
# whether the handler will look at the body; raises what can be refused without it.
Judge: TypeAlias = Callable[[Any, bool], bool]


def plain_head(response: Response) -> bytes | None:
    """`head_of` an answer that needs no thought; None when this one does."""
    if response.headers or response.pieces:
        return None
    if response.content_type is JSON:
        return _JSON_HEADS.get(response.status)
    return None if response.status in _NO_BODY else head_of(response)


def plain(
    request: Request, head: bytes | None, body: bytes, tail: bytes, gzip_bytes_min: int
) -> bytes | None:
    """The bytes of an answer with a plain head, if its request needs no thought either."""
    size = len(body)
    if (
        head is None
        or not request.is_plain
        or request.extra
        or size == 0
        or size > COPY_BYTES_MAX
        or (size > gzip_bytes_min and b"accept-encoding" in request.head.headers)
    ):
        return None
    return b"".join((head, _LENGTHS[size] if size < _LENGTHS_MAX else b"%d" % size, tail, body))


def head_of(response: Response) -> bytes:
    """The head of a plain answer, up to the value of its Content-Length."""
    key = (response.status, response.content_type)
    head = _heads.get(key)
    if head is None:
        _check_value(response.content_type)
        head = b"%bContent-Type: %b\r\nContent-Length: " % (
            status_line(response.status),
            response.content_type.encode("latin-1"),
        )
        if len(_heads) < _HEADS_MAX:
            _heads[key] = head
    return head


def status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\n".encode()


def render(
    request: Request, response: Response, tail: bytes, *, is_last: bool
) -> tuple[Payload, ...]:
    """The bytes of any answer. `tail` ends the head; `is_last` announces that we close after it.

    Raises ValueError for a header that could not be sent as one line.
    """
    body, pieces = response.body, response.pieces
    if response.status in _NO_BODY:
        parts = [status_line(response.status)[:-2]]
        body = b""
    else:
        parts = [head_of(response), b"%d" % response.size_bytes]
    lines = header_lines(response.headers + request.extra)
    if is_last:
        lines += b"\r\nConnection: close"
    elif request.is_http10:
        lines += b"\r\nConnection: keep-alive"
    parts += (lines, tail)
    if request.method == "HEAD":
        return (b"".join(parts),)
    if len(body) <= COPY_BYTES_MAX:
        return (b"".join((*parts, body)), *pieces)
    return (b"".join(parts), body, *pieces)


def header_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Header lines, each with its line end in front. Raises ValueError for a line break inside."""
    lines = b""
    for name, value in headers:
        _check_value(name)
        _check_value(value)
        lines += f"\r\n{name}: {value}".encode("latin-1")
    return lines


def _check_value(value: str) -> None:
    if _UNSAFE.search(value):
        raise ValueError(f"a header may not contain a line break: {value!r}")


# Rendered before they are needed: the heads of JSON answers, and small lengths.
_JSON_HEADS = {
    status: head_of(Response(b"", status)) for status in _PHRASES if status not in _NO_BODY
}
OK_HEAD = _JSON_HEADS[200]
_LENGTHS_MAX = 1024
_LENGTHS = [b"%d" % size for size in range(_LENGTHS_MAX)]


def wants_gzip(request: Request, response: Response, bytes_min: int) -> bool:
    """Whether this answer should be compressed: the client takes it and it is worth it."""
    accepted = request.headers.get(b"accept-encoding")
    if accepted is None or response.size_bytes <= bytes_min:
        return False
    if any(name.lower() == "content-encoding" for name, _ in response.headers):
        return False
    return accepts_gzip(accepted) and _COMPRESSIBLE.match(response.content_type) is not None


def accepts_gzip(accepted: bytes) -> bool:
    is_any_accepted = False
    for coding, quality in _CODING.findall(accepted.lower()):
        is_accepted = quality.strip(b"0.") != b"" if quality else True
        if coding != b"*":
            return is_accepted
        is_any_accepted = is_accepted
    return is_any_accepted


def gzipped(response: Response) -> Response:
    """The same answer compressed; costs about 10 ms for each MiB, without holding the GIL."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [packer.compress(part) for part in (response.body, *response.pieces)]
    body = b"".join((*parts, packer.flush()))
    headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return Response(body, response.status, response.content_type, headers)
