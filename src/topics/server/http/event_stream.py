"""Server-sent events: an answer that does not end, on a connection of its own."""

from __future__ import annotations

from topics.server.http.message import COPY_BYTES_MAX, Request, header_lines
from topics.server.http.takeover import Takeover

_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\n"
    b"X-Accel-Buffering: no"
)
_CHUNKED = b"\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked"
# A client of HTTP/1.0 knows no chunks: for it the stream ends with the connection.
_UNTIL_CLOSE = b"\r\nConnection: close"


def chunk_of(data: bytes) -> bytes:
    """Data as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class EventStream(Takeover):
    """Opened by a handler, which then returns PENDING.

        stream = EventStream(request)
        stream.on_close = forget
        stream.send(b"retry: 2000\\n\\n")
        return PENDING

    Every `send` leaves at the end of this turn of the loop, uncompressed and undelayed. Nothing
    is dropped and nothing is bounded here: the owner looks at `is_writable` before it sends more.
    """

    __slots__ = ("is_chunked",)

    def __init__(self, request: Request) -> None:
        super().__init__(request.connection.server)
        self.is_chunked = not request.is_http10
        framing = _CHUNKED if self.is_chunked else _UNTIL_CLOSE
        head = b"%b%b%b\r\n\r\n" % (_HEAD, framing, header_lines(request.extra))
        request.successor = self
        self._write((head,))
        if request.method == "HEAD":
            self._end()

    def send(self, data: bytes) -> None:
        """Sends bytes as they are; nothing when the stream has ended."""
        if not data or self._is_closed:
            return
        if not self.is_chunked:
            self._write((data,))
        elif len(data) <= COPY_BYTES_MAX:
            self._write((chunk_of(data),))
        else:
            self._write((b"%x\r\n" % len(data), data, b"\r\n"))

    def send_chunk(self, chunk: bytes) -> None:
        """Sends what `chunk_of` made, on a stream of chunks."""
        if self._early is None and not self._is_closed and self._transport is not None:
            self._transport.write(chunk)
        else:
            self._write((chunk,))

    def close(self) -> None:
        """Ends the stream and the connection, after everything that was sent."""
        if not self._is_closed and self.is_chunked:
            self._write((b"0\r\n\r\n",))
        self._end()
