"""A client of HTTP/2 on one socket, as slow and as odd as a test wants it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from types import TracebackType

import h2.config
import h2.connection
import h2.events

TIMEOUT_S = 20


@dataclass
class Stream:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_ended: bool = False
    reset: int | None = None
    informed: int = 0


class H2Client:
    def __init__(self, port: int, *, acknowledges: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        # Frames are sent in pieces: otherwise each waits for what came before to be acknowledged.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.streams: dict[int, Stream] = {}
        self.is_terminated = False
        self._acknowledges = acknowledges
        self.h2.initiate_connection()
        self.flush()

    def __enter__(self) -> H2Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def open(
        self, method: str, path: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
    ) -> int:
        """Sends a request; its answer is gathered under the number returned."""
        number = self.begin(method, path, headers, is_whole=not body)
        while body:
            room = self.h2.local_flow_control_window(number)
            if not room:
                self.read()
                continue
            size = min(room, self.h2.max_outbound_frame_size, len(body))
            part, body = body[:size], body[size:]
            self.h2.send_data(number, part, end_stream=not body)
            self.flush()
        return number

    def begin(
        self,
        method: str,
        path: str,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        is_whole: bool = False,
    ) -> int:
        """Sends a request's head."""
        pseudo = (
            (":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost"),
        )  # fmt: skip
        return self.begin_as((*pseudo, *headers), is_whole=is_whole)

    def begin_as(self, headers: tuple[tuple[str, str], ...], *, is_whole: bool = False) -> int:
        """Sends any fields at all as a request's head."""
        number = self.h2.get_next_available_stream_id()
        self.streams[number] = Stream()
        self.h2.send_headers(number, headers, end_stream=is_whole)
        self.flush()
        return number

    def read(self) -> bool:
        """Takes what there is; False at the end of the connection."""
        try:
            data = self.socket.recv(1 << 16)
            for event in self.h2.receive_data(data):
                self._take(event)
            self.flush()
        except (ConnectionResetError, BrokenPipeError):
            # A server that refuses what it was sent does not wait for the rest.
            return False
        return bool(data)

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.is_terminated = True
        number = getattr(event, "stream_id", None)
        stream = self.streams.get(number) if number else None
        if stream is None:
            return
        if isinstance(event, h2.events.InformationalResponseReceived):
            stream.informed = int(dict(event.headers)[":status"])
        elif isinstance(event, h2.events.ResponseReceived):
            stream.headers = {str(name): str(value) for name, value in event.headers}
            stream.status = int(stream.headers.pop(":status"))
        elif isinstance(event, h2.events.DataReceived):
            stream.body += event.data
            if self._acknowledges:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            stream.is_ended = True
        elif isinstance(event, h2.events.StreamReset):
            stream.reset = int(event.error_code)

    def answer(self, number: int) -> Stream:
        """The whole answer of a request."""
        stream = self.streams[number]
        while not stream.is_ended and stream.reset is None and self.read():
            pass
        return stream

    def request(self, method: str, path: str, body: bytes = b"") -> Stream:
        return self.answer(self.open(method, path, body))

    def until(self, number: int, ending: bytes) -> bytes:
        """The body of a stream up to where it contains `ending`."""
        stream = self.streams[number]
        while ending not in stream.body:
            assert self.read(), stream
        return stream.body
