"""One stream of an HTTP/2 connection, as a transport for the protocol of HTTP/1.

The stream's request is given to an HttpProtocol of its own as a request of HTTP/1.0, whose answer
needs no chunks; what the protocol writes becomes HEADERS and DATA. So limits, timeouts, gzip, event
streams and back-pressure are the ones of every other connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from topics.server.http1 import HttpProtocol

if TYPE_CHECKING:
    from topics.server.h2c import H2Protocol

Headers = list[tuple[bytes, bytes]]

# Bytes that wait for the client before its protocol is asked to pause, and to go on.
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
# Headers of a single connection, which mean nothing in HTTP/2 or are said in another way.
_HOP = frozenset({b"connection", b"expect", b"keep-alive", b"te", b"transfer-encoding", b"upgrade"})


class StreamTransport(asyncio.Transport):
    """Takes the bytes of an answer of HTTP/1 and sends them as one of HTTP/2."""

    def __init__(self, connection: H2Protocol, number: int) -> None:
        super().__init__()
        self.number = number
        self._connection = connection
        self._protocol: asyncio.Protocol = HttpProtocol(connection.server)
        # The answer's head until it is complete, then None.
        self._head: bytes | None = b""
        self._out = bytearray()
        self._is_paused = False
        self._is_ended = False
        self._is_lost = False

    # -- for the connection ------------------------------------------------------------------

    def start(self, head: bytes, body: bytes) -> None:
        """Gives a complete request to the protocol."""
        self._protocol.connection_made(self)
        self._protocol.data_received(head + body)

    def pump(self) -> None:
        """Sends what the client's windows allow; ends the stream when that was all."""
        connection = self._connection
        while self._out and not self._is_lost:
            size = min(connection.window(self.number), len(self._out))
            if size <= 0:
                break
            connection.send(self.number, bytes(self._out[:size]))
            del self._out[:size]
        if self._is_paused and len(self._out) <= LOW_BYTES:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_ended and not self._out and not self._is_lost:
            connection.end(self.number)
            self.lose()

    def lose(self) -> None:
        """The stream is over, from either side."""
        if not self._is_lost:
            self._is_lost = True
            self._connection.forget(self.number)
            # Not now: the protocol may be the caller.
            self._connection.server.loop.call_soon(self._protocol.connection_lost, None)

    # -- asyncio.Transport -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_lost or self._is_ended:
            return
        if self._head is None:
            self._out += data
        else:
            head, found, rest = (self._head + bytes(data)).partition(b"\r\n\r\n")
            self._head = None if found else head
            if found:
                self._connection.answer(self.number, answer_head(head))
                self._out += rest
        if len(self._out) > HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()
        self._connection.pump_soon(self)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._is_ended = True
        self._connection.pump_soon(self)

    def close(self) -> None:
        self.write_eof()

    def abort(self) -> None:
        if not self._is_lost:
            self._connection.reset(self.number)
            self.lose()

    def is_closing(self) -> bool:
        return self._is_ended or self._is_lost

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def pause_reading(self) -> None:
        """The request was complete when the protocol got it."""

    def resume_reading(self) -> None:
        """As above."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)


def request_head(headers: Headers, body_bytes: int) -> bytes | None:
    """A request's head as HTTP/1.0 has it; None when it can not be said so."""
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    host = pseudo.get(b":authority") or dict(headers).get(b"host", b"")
    lines = [b"%b %b HTTP/1.0" % (method, path), b"host: " + host]
    for name, value in headers:
        if not name.startswith(b":") and name not in _HOP | {b"host", b"content-length"}:
            lines.append(name + b": " + value)
    if body_bytes or method not in (b"GET", b"HEAD"):
        lines.append(b"content-length: %d" % body_bytes)
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
