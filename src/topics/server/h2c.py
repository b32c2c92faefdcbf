"""HTTP/2 without TLS, for clients that know beforehand that we speak it.

A connection whose first bytes are the preface of HTTP/2 is given to an H2Protocol. HTTP/1.1 pays
nothing for it: the preface is what its parser refuses. Framing, header compression and windows are
the h2 library's; each stream is served as a connection of its own (see h2_stream).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from topics.server.h2_stream import Headers, StreamTransport, request_head

if TYPE_CHECKING:
    from topics.server.server import HttpServer

STREAMS_MAX = 100
WINDOW_BYTES = 1024 * 1024
# Streams that a client may open and reset again beyond those that it lets us answer.
RESETS_MAX = 200


class Incoming:
    """A request that is still arriving."""

    __slots__ = ("body", "headers", "since", "size")

    def __init__(self, headers: Headers, since: float) -> None:
        self.headers = headers
        self.since = since
        self.body: list[bytes] = []
        self.size = 0


class H2Protocol(asyncio.Protocol):
    """One connection of HTTP/2."""

    def __init__(self, server: HttpServer, transport: asyncio.Transport) -> None:
        self.server = server
        self.slot = 0
        self._transport: asyncio.Transport | None = transport
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=False)
        )
        self._incoming: dict[int, Incoming] = {}
        self._streams: dict[int, StreamTransport] = {}
        self._due: dict[StreamTransport, None] = {}
        self._is_paused = False
        self._is_last = False
        self._resets = 0
        self._used_at = server.now
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                codes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
                codes.MAX_HEADER_LIST_SIZE: server.limits.head_bytes_max,
                codes.ENABLE_PUSH: 0,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW_BYTES)

    # -- asyncio.Protocol --------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._used_at = self.server.now
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            # The library has queued the GOAWAY that says why.
            self._flush()
            self._close()
            return
        for event in events:
            self._take(event)
        for stream in list(self._streams.values()):
            stream.pump()
        self._flush()
        if self._resets > RESETS_MAX + self._h2.highest_inbound_stream_id // 4:
            self._goodbye(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        for stream in list(self._streams.values()):
            stream.pump()
        self._flush()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.server.leave(self)
        self._transport = None
        self._incoming.clear()
        for stream in list(self._streams.values()):
            stream.lose()
        # Its methods: the library's object would hold itself for ever.
        self._h2._frame_dispatch_table.clear()

    # -- events ------------------------------------------------------------------------------

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._open(event.stream_id, event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self._grow(event)
        elif isinstance(event, h2.events.StreamEnded):
            self._start(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._resets += 1
            self._incoming.pop(event.stream_id, None)
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.lose()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._is_last = True
            self._settle()

    def _open(self, number: int, headers: Headers) -> None:
        if self._is_last:
            self.reset(number, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        self._incoming[number] = Incoming(headers, self.server.now)
        if (b"expect", b"100-continue") in headers:
            self._h2.send_headers(number, [(b":status", b"100")])

    def _grow(self, event: h2.events.DataReceived) -> None:
        number = event.stream_id
        self._h2.acknowledge_received_data(event.flow_controlled_length, number)
        request = self._incoming.get(number)
        if request is None:
            return
        request.size += len(event.data)
        if request.size <= self.server.limits.body_bytes_max:
            request.body.append(event.data)
        else:
            # Its length alone gets it the answer; the rest is read and forgotten.
            request.body.clear()

    def _start(self, number: int) -> None:
        request = self._incoming.pop(number, None)
        if request is None:
            return
        head = request_head(request.headers, request.size)
        if head is None:
            self.reset(number, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            return
        stream = self._streams[number] = StreamTransport(self, number)
        stream.start(head, b"".join(request.body))

    # -- for streams -------------------------------------------------------------------------

    def window(self, number: int) -> int:
        """How much may be sent on a stream now."""
        if self._is_paused:
            return 0
        return min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)

    def answer(self, number: int, headers: Headers) -> None:
        self._say(number, partial(self._h2.send_headers, number, headers))

    def send(self, number: int, data: bytes) -> None:
        self._say(number, partial(self._h2.send_data, number, data))

    def end(self, number: int) -> None:
        self._say(number, partial(self._h2.end_stream, number))

    def _say(self, number: int, say: Callable[[], None]) -> None:
        try:
            say()
        except h2.exceptions.ProtocolError:
            # The connection has ended in the same read: its streams have too.
            stream = self._streams.get(number)
            if stream is not None:
                stream.lose()

    def reset(
        self, number: int, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.INTERNAL_ERROR
    ) -> None:
        self._say(number, partial(self._h2.reset_stream, number, code))
        self.server.tick.defer(self._pump)

    def pump_soon(self, stream: StreamTransport) -> None:
        """What the stream was given leaves at the end of this turn, together with the others'."""
        self._due[stream] = None
        self.server.tick.defer(self._pump)

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._settle()

    def _pump(self) -> None:
        due, self._due = self._due, {}
        for stream in due:
            stream.pump()
        self._flush()

    # -- the end -----------------------------------------------------------------------------

    def scan(self, now: float) -> None:
        limits = self.server.limits
        late = [
            number
            for number, request in self._incoming.items()
            if now - request.since
            > limits.head_s + limits.body_s + request.size / limits.body_bytes_per_s_min
        ]
        for number in late:
            del self._incoming[number]
            self.reset(number, h2.errors.ErrorCodes.CANCEL)
        if not self._incoming and not self._streams and now - self._used_at > limits.idle_s:
            self._goodbye(h2.errors.ErrorCodes.NO_ERROR)

    def drain(self) -> None:
        """New streams are refused; ends with the last of those there are."""
        self._is_last = True
        self._settle()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _settle(self) -> None:
        if self._is_last and not self._streams and not self._incoming:
            self._goodbye(h2.errors.ErrorCodes.NO_ERROR)

    def _goodbye(self, code: h2.errors.ErrorCodes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._h2.close_connection(code)
        except h2.exceptions.ProtocolError:
            # The client has said goodbye first.
            pass
        self._flush()
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
