"""One stream of an HTTP/2 connection, as a transport for the protocol of HTTP/1.

The stream's request is given to an HttpProtocol of its own, the head as soon as it is there and
data as it comes; what the protocol writes becomes HEADERS and DATA. So what is judged by the head,
limits, timeouts, gzip, event streams and back-pressure are the ones of every other connection.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable
from typing import Any, Protocol, cast

import h2.errors
from httptools import HttpRequestParser

from topics.server.http.ending import TAKEN
from topics.server.http.event_stream import chunk_of
from topics.server.http.http1 import Http1Hub, HttpProtocol
from topics.server.http.known_heads import BODY
from topics.server.http.message import COPY_BYTES_MAX, Request

Headers = list[tuple[bytes, bytes]]

# Bytes that wait for the client before its protocol is asked to pause, and to go on. Those of a
# stream that is paused are entered in the ledger by its protocol, the others by the connection.
HIGH_BYTES, LOW_BYTES = 64 * 1024, COPY_BYTES_MAX
# What is sent at a time, before other streams have their turn.
PORTION_BYTES = 64 * 1024
# A frame that the client's window makes smaller than this explains none of the client's own.
SMALL_BYTES = 1024
LENGTH = re.compile(rb"[0-9]{1,18}")
# Headers of a single connection, which mean nothing in HTTP/2 or are said in another way.
_HOP = frozenset({b"connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade"})


class Incoming:
    """A request that no stream has been made for yet."""

    __slots__ = ("body", "headers", "is_whole", "unread_bytes")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.body: list[bytes] = []
        # What of the client's window it has used: given back when the request is begun.
        self.unread_bytes = 0
        self.is_whole = False


class StreamProtocol(HttpProtocol):
    """HTTP/1 on a stream: one request, whose answer needs no chunks."""

    __slots__ = ()

    def _join(self) -> None:
        self.server.join_stream(self)

    def _parse(self, data: bytes) -> None:
        # The connection has cut what it got into shares already.
        self._parse_piece(data)
        if self._phase == BODY:
            self._await_body()

    def _look_closer(self, request: Request, parser: HttpRequestParser) -> None:
        super()._look_closer(request, parser)
        request.is_http10 = True

    def _write_portion(self, _transport: asyncio.Transport) -> None:
        # The connection sends in portions of its own, and counts what waits in its streams.
        self._flush_whole()

    def _time_out(self, part: str, limit_s: float) -> None:
        # As a connection of HTTP/1 ends with its slow request, unless others go on here.
        cast(StreamTransport, self._transport).end_connection_if_alone()
        super()._time_out(part, limit_s)


class Multiplexed(Protocol):
    """The connection, for its streams.

    `held_bytes` are those of answers that wait in them, `loose_bytes` those in streams that are not
    paused.
    """

    held_bytes: int
    loose_bytes: int

    @property
    def peername(self) -> Any: ...

    @property
    def server(self) -> Http1Hub: ...

    def window(self, number: int) -> int:
        """How much may be sent on a stream now."""
        ...

    def taken(self, number: int) -> object:
        """Changes when the client takes some of what has to go out before more of the stream can.

        None where the stream waits for its own window and nothing else.
        """
        ...

    def answer(self, number: int, headers: Headers) -> None: ...

    def send(self, number: int, data: bytes, *, is_work: bool) -> None: ...

    def end(self, number: int, *, is_whole: bool, missing_bytes: float) -> None:
        """The answer is complete; what the client may still send of its request is not wanted."""
        ...

    def reset(self, number: int, code: h2.errors.ErrorCodes) -> None: ...

    def end_after(self, number: int) -> None:
        """The connection ends with this stream, if there is no other."""
        ...

    def pump_soon(self, stream: StreamTransport) -> None:
        """What the stream was given leaves at the end of this turn, together with the others'."""
        ...

    def forget(self, number: int) -> None: ...


class StreamTransport(asyncio.Transport):
    """Takes the bytes of an answer of HTTP/1 and sends them as one of HTTP/2.

    `is_whole`: the client has sent all of its request, and said so.
    """

    def __init__(self, connection: Multiplexed, number: int) -> None:
        super().__init__()
        self.number = number
        self.is_whole = False
        # Of its body, as far as its length is known.
        self._missing_bytes = math.inf
        self._connection = connection
        self._protocol: asyncio.Protocol = StreamProtocol(connection.server)
        self._is_chunked = False
        # The answer's head until it is complete, then None.
        self._head: bytes | None = b""
        self._out = bytearray()
        self._is_paused = False
        self._is_ended = False
        self._is_lost = False

    @property
    def is_answered(self) -> bool:
        """Whether an answer has begun."""
        return self._head is None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == TAKEN:
            return self._connection.taken(self.number)
        return self._connection.peername if name == "peername" else default

    # -- for the connection ------------------------------------------------------------------

    def start(self, headers: Headers, body: bytes, *, is_whole: bool) -> bool:
        """Gives a request to the protocol, as far as it is there; False when it can not be."""
        length = next((value for name, value in headers if name == b"content-length"), b"")
        self._is_chunked = not is_whole and not length
        head = request_head(headers, len(body) if is_whole else None)
        if head is None:
            return False
        self.is_whole = is_whole
        if LENGTH.fullmatch(length):
            self._missing_bytes = int(length) - len(body)
        self._protocol.connection_made(self)
        self._protocol.data_received(head + (self._chunk(body) if body else b""))
        return True

    def feed(self, data: bytes) -> None:
        """More of the body."""
        if not self._is_chunked:
            self._missing_bytes -= len(data)
        if data and not self._is_lost:
            self._protocol.data_received(self._chunk(data))

    def feed_eof(self) -> None:
        """The body is whole."""
        self.is_whole = True
        if self._is_chunked and not self._is_lost:
            self._protocol.data_received(b"0\r\n\r\n")

    def end_input(self) -> None:
        """The client sends no more on any stream."""
        if self._protocol.eof_received():
            return
        if self.is_answered:
            self.close()
        else:
            # Its protocol takes it as left, or has not all of the request.
            self.abort()

    def _chunk(self, data: bytes) -> bytes:
        return chunk_of(data) if self._is_chunked else data

    def pump(self) -> bool:
        """Sends a portion of what the client's windows allow; whether more of it can follow.

        Ends the stream when that was all.
        """
        connection, left = self._connection, PORTION_BYTES
        while self._out and left > 0 and not self._is_lost:
            window = min(connection.window(self.number), left)
            size = min(window, len(self._out))
            if size <= 0:
                break
            left -= size
            is_small = size == window < SMALL_BYTES
            connection.send(self.number, bytes(self._out[:size]), is_work=not is_small)
            self._take_out(size)
        if self._is_paused and len(self._out) <= LOW_BYTES:
            self._is_paused = False
            connection.loose_bytes += len(self._out)
            self._protocol.resume_writing()
        if self._is_ended and not self._out and not self._is_lost:
            connection.end(self.number, is_whole=self.is_whole, missing_bytes=self._missing_bytes)
            self.lose()
        return left <= 0 and bool(self._out)

    def end_connection_if_alone(self) -> None:
        self._connection.end_after(self.number)

    def lose(self) -> None:
        """The stream is over, from either side."""
        if not self._is_lost:
            self._is_lost = True
            self._take_out(len(self._out))
            self._connection.forget(self.number)
            # Not now: the protocol may be the caller.
            self._connection.server.loop.call_soon(self._protocol.connection_lost, None)

    def _take_out(self, size: int) -> None:
        del self._out[:size]
        self._hold(-size)

    def _put_out(self, data: bytes | bytearray | memoryview) -> None:
        self._out += data
        self._hold(len(data))

    def _hold(self, change_bytes: int) -> None:
        self._connection.held_bytes += change_bytes
        if not self._is_paused:
            self._connection.loose_bytes += change_bytes

    # -- asyncio.Transport -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_lost or self._is_ended:
            return
        if self._head is None:
            self._put_out(data)
        else:
            self._head += bytes(data)
            while self._head is not None and b"\r\n\r\n" in self._head:
                head, _, rest = self._head.partition(b"\r\n\r\n")
                answer = answer_head(head)
                self._connection.answer(self.number, answer)
                if answer[0] == (b":status", b"100"):
                    self._head = rest
                else:
                    self._head = None
                    self._put_out(rest)
        if len(self._out) > HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._connection.loose_bytes -= len(self._out)
            self._protocol.pause_writing()
        self._connection.pump_soon(self)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._is_ended = True
        self._connection.pump_soon(self)

    def close(self) -> None:
        self.write_eof()

    def abort(self) -> None:
        if not self._is_lost:
            self._connection.reset(self.number, h2.errors.ErrorCodes.CANCEL)
            self.lose()

    def is_closing(self) -> bool:
        return self._is_ended or self._is_lost

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def pause_reading(self) -> None:
        """There is one request: nothing comes after it."""

    def resume_reading(self) -> None:
        """As above."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)


def request_head(headers: Headers, body_bytes: int | None) -> bytes | None:
    """A request's head as HTTP/1.1 has it; None when it can not be said so.

    `body_bytes` is None while the body is still on its way: it has the length that the client has
    announced, or comes in chunks.
    """
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    host = pseudo.get(b":authority") or dict(headers).get(b"host", b"")
    if method == b"CONNECT":
        # To whatever protocol: it is refused as any tunnel is.
        path, body_bytes = host, 0
    lines = [b"%b %b HTTP/1.1" % (method, path), b"host: " + host, b"connection: close"]
    length = None if body_bytes is None else b"%d" % body_bytes
    for name, value in headers:
        if name == b"content-length":
            if length not in (None, value):
                return None
            length = value
        elif not name.startswith(b":") and name not in _HOP and name != b"host":
            lines.append(name + b": " + value)
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    elif length != b"0" or method not in (b"GET", b"HEAD", b"CONNECT"):
        lines.append(b"content-length: " + length)
    head = b"\r\n".join(lines)
    # A line break in a value would be another header, a space in the path another version.
    is_plain = head.count(b"\n") == head.count(b"\r") == len(lines) - 1 and b"\0" not in head
    if not is_plain or not method or not path or lines[0].count(b" ") != 2:
        return None
    return head + b"\r\n\r\n"


def answer_head(head: bytes) -> Headers:
    """The status and headers of an answer of HTTP/1."""
    status, *lines = head.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    named = [(name.lower(), value.strip()) for name, _, value in fields]
    return [(b":status", status.split(b" ")[1]), *(pair for pair in named if pair[0] not in _HOP)]
