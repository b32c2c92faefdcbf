"""HTTP/1.1 on one connection: the reading half.

Parsing is llhttp's in its strict mode, which refuses the ambiguities that request smuggling lives
on (two lengths, length and chunks, folded headers, bare line feeds). Here are the limits, the
timeouts and what a request may ask of the connection.

    _parse → on_* → handler → answer, all in one call; answers of one read leave together.

What has been read before takes a shorter way (see known_heads).
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from topics.errors import TopicsError
from topics.server.http import general_head
from topics.server.http.arrival import PREFACE, Arrival
from topics.server.http.errors import BadRequest, body_too_large, refusal_of, target_too_long
from topics.server.http.gathered_body import Parts
from topics.server.http.hub import Connection
from topics.server.http.known_heads import BODY, HEAD, IDLE, HeadsHub
from topics.server.http.message import Head, Request

# Requests of one read for an upgrade that is not ours; each costs a second look at its head. Some
# clients ask for one with every request.
UPGRADES_MAX = 16

_METHODS = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS")}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Http1Hub(HeadsHub, Protocol):
    """A server whose clients may speak HTTP/2 as well."""

    def begin_h2(self, connection: Connection, transport: asyncio.Transport, data: bytes) -> None:
        """Hands a connection over to HTTP/2, with what the client has sent so far."""
        ...


class HttpProtocol(Arrival):
    """One connection of an HttpServer."""

    __slots__ = (
        "_body", "_head", "_head_bytes", "_headers", "_is_counting", "_is_odd", "_is_plain",
        "_is_rewinding", "_is_upgrade", "_refusal", "_repeats", "_safe_digits", "_target",
        "_upgrades",
    )  # fmt: skip

    server: Http1Hub

    def __init__(self, server: Http1Hub) -> None:
        super().__init__(server)
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        # The head, once complete, of a request that may still have trailers.
        self._head: dict[bytes, bytes] | None = None
        self._body: bytes | Parts = b""
        # A length of so few digits is below the limit.
        self._safe_digits = len(str(server.limits.body_bytes_max)) - 1
        # Heads are measured exactly only where one could be too large.
        self._is_counting = False
        self._head_bytes = 0
        self._repeats = 0
        self._is_plain = True
        # Whether the head has something in it that most have not.
        self._is_odd = False
        self._is_upgrade = False
        self._is_rewinding = False
        self._upgrades = 0
        self._refusal: TopicsError | None = None

    # -- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpRequestParser(self)
        self._since = self.server.now
        self._join()

    def _join(self) -> None:
        self.server.join(self)

    def _parse(self, data: bytes) -> None:
        self._upgrades = 0
        super()._parse(data)

    def _parse_piece(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self._discard(len(data))
            return
        is_start = self._phase == IDLE
        if len(data) > self._limits.head_bytes_max:
            self._is_counting = True
        headers, body_bytes = self._headers, self._body_bytes
        self._is_feeding = True
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._feed_on(data[upgrade.args[0] :])
        except HttpParserError as error:
            if is_start and data.startswith(PREFACE) and not self._everything():
                self._become_h2(data)
                return
            self._refuse_input(error)
        if self._phase != IDLE:
            self._is_counting = True
            if headers is self._headers and body_bytes == self._body_bytes:
                self._head_grew(len(data))
            else:
                self._head_bytes = 0
        self._learn(data, is_start, body_bytes)
        self._end_read()

    # -- llhttp ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._phase = HEAD
        self._since = self.server.now
        self._headers = {}
        self._target = b""
        self._body = b""
        self._body_bytes = 0
        self._is_judged = False
        self._judged = None
        self._is_wanted = True
        self._extra = ()

    def on_url(self, target: bytes) -> None:
        self._target += target
        if len(self._target) > self._limits.target_bytes_max:
            self._stop(target_too_long(self._limits.target_bytes_max))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if name in headers:
            self._repeated(name, value)
        else:
            headers[name] = value

    def on_headers_complete(self) -> None:
        headers = self._headers
        self._phase = BODY
        self._is_odd = len(headers) > 32 or self._has_wish(headers)
        is_continue_due = False
        if self._is_counting or self._is_odd:
            self._is_plain = False
            is_continue_due = self._check_head(headers)
        length = headers.get(b"content-length")
        if length is not None and len(length) > self._safe_digits:
            self._check_body_bytes(int(length))
        if is_continue_due:
            self._continue()

    def on_body(self, data: bytes) -> None:
        body = self._body
        if not self._is_wanted:
            self._body = b""
        elif not body:
            self._body = data
        elif isinstance(body, Parts):
            body.add(data)
        else:
            self._body = Parts(body)
            self._body.add(data)
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes_max:
            self._check_body_bytes(self._body_bytes)

    def on_message_complete(self) -> None:
        if self._is_last or self._is_rewinding:
            return
        self._phase = IDLE
        self._since = self.server.now
        parser, body = self._parser, self._body
        assert parser is not None
        request = self._judged or self._request(self, self._parsed(parser, self._headers), b"")
        request.body = body if isinstance(body, bytes) else body.joined()
        self._body, self._judged = b"", None
        if (
            not self._is_plain
            or not parser.should_keep_alive()
            or request.method == "HEAD"
            or b"host" not in self._headers
            or self._target[:1] != b"/"
        ):
            is_ordinary = self._is_ordinary(request, parser)
            self._look_closer(request, parser)
        else:
            is_ordinary = True
        if is_ordinary and self._plain_head is None:
            self._plain_head = request.head
        self._line_up(request)
        if self._has_body_entered and self._backlog is None:
            self._leave_body()

    # -- the rare ----------------------------------------------------------------------------

    def _has_wish(self, headers: dict[bytes, bytes]) -> bool:
        if general_head.RARE.isdisjoint(headers):
            return False
        assert self._parser is not None
        return not general_head.only_stays(headers, self._parser.get_http_version())

    def _stop(self, error: TopicsError) -> None:
        """Ends parsing from within a callback: the request is refused, the connection closed."""
        self._refusal = error
        raise error

    def _repeated(self, name: bytes, value: bytes) -> None:
        self._repeats += 1
        self._is_plain = False
        if name == b"host":
            self._stop(BadRequest("a request has one Host"))
        if self._repeats > self._limits.headers_max:
            self._stop(general_head.too_many(self._limits))
        self._headers[name] += b", " + value

    def _check_head(self, headers: dict[bytes, bytes]) -> bool:
        """The head of a request that is not plain; stops what is too large or not understood.

        Returns whether the client waits to be asked for the body.
        """
        parser = self._parser
        assert parser is not None
        try:
            version = parser.get_http_version()
            general_head.check_size(headers, self._repeats, self._limits)
            if general_head.is_chunked(headers, version):
                # Trailers are read into a dictionary of their own, and forgotten.
                self._head, self._headers = headers, {}
            is_continue_due = general_head.is_continue_expected(headers, version)
            if parser.should_upgrade():
                self._is_upgrade = general_head.is_websocket(headers) and not self._everything()
                # An upgrade that we do not grant is ignored: the request is read again without.
                self._is_rewinding = not self._is_upgrade
        except TopicsError as error:
            self._stop(error)
        return is_continue_due and not self._is_rewinding

    def _check_body_bytes(self, size: int) -> None:
        maximum = self._limits.body_bytes_max
        if size > maximum:
            self._stop(body_too_large(maximum))

    def _continue(self) -> None:
        """Asks for the body, unless the head has had its answer without one."""
        error = self._judge(*self._arriving())
        if error is not None:
            self._stop(error)
        # Behind a pending answer the client goes on by itself, after its own short wait.
        if not self._everything():
            self._out.append(_CONTINUE)

    def _missing(self) -> int:
        length = self._headers.get(b"content-length")
        if self._phase != BODY or length is None:
            return 0
        return int(length) - self._body_bytes

    def _arriving(self) -> tuple[Request, str]:
        parser = self._parser
        assert parser is not None
        headers = self._head if self._head is not None else self._headers
        request = self._request(self, self._parsed(parser, headers), b"")
        return request, parser.get_http_version()

    def _parsed(self, parser: HttpRequestParser, headers: dict[bytes, bytes]) -> Head:
        verb = parser.get_method()
        return Head(_METHODS.get(verb) or verb.decode("latin-1"), self._target, headers)

    def _is_ordinary(self, request: Request, parser: HttpRequestParser) -> bool:
        """Whether only the size of the read made a request look special."""
        return (
            not (self._is_odd or self._repeats or self._is_upgrade)
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
            and request.method != "HEAD"
            and b"host" in self._headers
            and self._target[:1] == b"/"
        )

    def _look_closer(self, request: Request, parser: HttpRequestParser) -> None:
        """What a request that is not plain asks of the connection."""
        headers = self._head if self._head is not None else self._headers
        request.head.headers = headers
        request.is_plain = False
        request.is_keep_alive = parser.should_keep_alive()
        request.is_upgrade = self._is_upgrade
        self._head = None
        self._is_plain = True
        self._is_upgrade = False
        self._repeats = 0
        self._is_counting = False
        self._head_bytes = 0
        version = parser.get_http_version()
        request.is_http10 = version == "1.0"
        try:
            general_head.check_version(version, headers)
            general_head.resolve_target(request)
        except TopicsError as error:
            self._stop(error)
        if not request.is_keep_alive:
            self._is_last = self._is_due = True

    def _head_grew(self, size: int) -> None:
        """All that was read belongs to a head or to trailers that began in an earlier read."""
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes_max:
            self._refuse(general_head.too_large(self._limits))

    def _feed_on(self, rest: bytes) -> None:
        """After a request for an upgrade: on to the takeover, or on with HTTP."""
        while True:
            parser = self._parser
            if parser is None:
                return
            self._upgrades += 1
            if self._upgrades > UPGRADES_MAX:
                self._refuse(BadRequest("too many upgrades were asked for"))
                return
            if self._is_rewinding:
                rest = self._rewound(parser) + rest
                self._is_rewinding = False
                self._parser = parser = HttpRequestParser(self)
            elif self._is_last:
                self._leftover = rest
                return
            try:
                parser.feed_data(rest)
                return
            except HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except HttpParserError as error:
                self._refuse_input(error)
                return

    def _rewound(self, parser: HttpRequestParser) -> bytes:
        """The head that was just read, without its wish for another protocol."""
        headers = self._head if self._head is not None else self._headers
        self._head = None
        self._repeats = 0
        version = parser.get_http_version()
        return general_head.without_upgrade(parser.get_method(), self._target, version, headers)

    def _become_h2(self, data: bytes) -> None:
        """Hands the connection over to the protocol that the client wants to speak."""
        transport = self._transport
        assert transport is not None
        self._transport = None
        self._forget()
        self.server.begin_h2(self, transport, data)

    def _refuse_input(self, error: HttpParserError) -> None:
        if self._refusal is None and isinstance(error, HttpParserCallbackError):
            cause = error.__context__ or error
            if not isinstance(cause, Exception):
                raise cause
            self._refusal = refusal_of(cause)
        self._refuse(self._refusal or BadRequest(f"the request is not valid HTTP/1.1: {error}"))

    def _refuse(self, error: TopicsError) -> None:
        self._parser = self._awaited = None
        self._body = self._parts = b""
        if self._has_body_entered and self._backlog is None:
            self._leave_body()
        # It holds its traceback, which holds this connection.
        self._refusal = None
        self._is_lingering = True
        self._phase = IDLE
        self._is_due = True
        if self._is_last:
            return
        self._is_last = True
        # Answered in the place of whatever it was: what is known of that may be anything.
        request = self._request(self, Head("GET", b"*", {}), b"")
        request.is_plain = request.is_keep_alive = False
        request.extra = self._extra
        response = self._refused(self._judged or request, error)
        if self._backlog is None:
            self._answer(request, response)
        else:
            request.output = self._render(request, response)
            self._backlog.append(request)
