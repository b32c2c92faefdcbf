"""HTTP/2 without TLS, for clients that know beforehand that we speak it.

A connection whose first bytes are the preface of HTTP/2 is given to an H2Protocol. HTTP/1.1 pays
nothing for it: the preface is what its parser refuses. Framing, header compression and windows are
the h2 library's (see h2_frames for what comes before it); each stream is served as a connection of
its own (see h2_stream), from the moment its head is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import h2.config
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from topics.server.http.ending import Ending
from topics.server.http.h2_frames import WINDOW_BYTES, H2Connection, H2Frames, Settings
from topics.server.http.h2_stream import Headers, Incoming, StreamTransport
from topics.server.http.http1 import Http1Hub
from topics.server.http.intake import IDLE_PER_S, Intake
from topics.server.http.message import COPY_BYTES_MAX
from topics.server.http.sockets import unacknowledged_bytes

STREAMS_MAX = 100
# Streams that a client may open and reset again before they are answered, beyond those that it lets
# us answer; and how many more each second.
RESETS_MAX = 200
RESETS_PER_S = 100
# What is handed to the socket at a time: it then says whether the client takes it.
FLUSH_BYTES = 256 * 1024


class H2Protocol(Ending):
    """One connection of HTTP/2. See Multiplexed for what its streams count in it."""

    def __init__(self, server: Http1Hub, transport: asyncio.Transport) -> None:
        super().__init__(server.limits, transport)
        self.server = server
        self.held_bytes = self.loose_bytes = 0
        self._h2 = H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=False))
        # Requests that begin when this piece of input has been taken, or when the client has taken
        # more of what it was sent.
        self._incoming: dict[int, Incoming] = {}
        self._streams: dict[int, StreamTransport] = {}
        self._due: dict[StreamTransport, None] = {}
        # Streams that were answered and whose client has still to say that it sends no more: what
        # was missing of their bodies.
        self._unended: dict[int, float] = {}
        self._is_pumping = False
        self._unflushed_bytes = 0
        # Of the data of answers, in frames that the socket may still hold.
        self._sent_bytes = 0
        self._is_last = False
        # The client has closed its half: it opens no window any more.
        self._is_half = False
        self._resets = 0
        self._used_at = server.now
        self._frames = H2Frames(server.limits.head_bytes_max, self._streams, self._unended)
        self._intake: Intake | None = Intake(
            server.loop, server.slices, end_of=self._frames.end_of, take=self._take_piece,
            is_held=self._is_input_held, behind=self._behind, is_idle=self._frames.is_idle,
        )  # fmt: skip
        codes = h2.settings.SettingCodes
        self._h2.local_settings = Settings(
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
        if self._ended_at:
            self._discard(len(data))
        elif self._intake is not None:
            self._intake.feed(data)

    def pause_writing(self) -> None:
        """The client does not read: neither do we, or our answers to its frames would pile up."""
        self._is_paused = True
        self._weigh()
        self._steer_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._steer_reading()
        self._due.update(dict.fromkeys(self._streams.values()))
        self._pump()

    def eof_received(self) -> bool:
        """The client sends no more: as over HTTP/1.1 it is answered what it may only wait for.

        Over TLS nothing can be sent to a client that has closed its half.
        """
        transport = self._transport
        if transport is None or self._ended_at or not transport.can_write_eof():
            return False
        self._incoming = {n: request for n, request in self._incoming.items() if request.is_whole}
        for stream in list(self._streams.values()):
            stream.end_input()
            self.pump_soon(stream)
        self._is_half = self._is_last = True
        self._settle()
        return True

    def connection_lost(self, _exc: Exception | None) -> None:
        self.server.leave(self)
        self.server.unsent.leave(self)
        self._transport = None
        if self._intake is not None:
            self._intake.rest()
            # It holds this connection.
            self._intake = None
        self._incoming.clear()
        for stream in list(self._streams.values()):
            stream.lose()
        # Its methods: the library\'s object would hold itself for ever.
        self._h2._frame_dispatch_table.clear()

    # -- shares ------------------------------------------------------------------------------

    def _is_input_held(self) -> bool:
        return self._is_paused or bool(self._ended_at) or self._transport is None

    def _behind(self, _is_behind: bool) -> None:
        self._steer_reading()

    def _steer_reading(self) -> None:
        transport, intake = self._transport, self._intake
        if transport is None or intake is None or self._ended_at or transport.is_closing():
            return
        intake.steer(transport, is_paused=self._is_paused)

    def _take_piece(self, data: bytes) -> None:
        if self._frames.fault is not None:
            self._goodbye(self._frames.fault)
            return
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            # The library has queued the GOAWAY that says why.
            self._flush()
            self._linger()
            return
        for event in events:
            self._take(event)
        self._begin()
        self._flush()
        if self._due:
            self.server.turn_end.defer(self._pump)
        if self._resets > RESETS_MAX + self._h2.highest_inbound_stream_id // 4:
            self._goodbye(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)

    # -- events ------------------------------------------------------------------------------

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._open(event.stream_id, event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self._grow(event)
        elif isinstance(event, h2.events.StreamEnded):
            self._end_request(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._give_up(event.stream_id)
        elif isinstance(event, h2.events.WindowUpdated) and event.stream_id:
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                self._due[stream] = None
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._due.update(dict.fromkeys(self._streams.values()))
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._is_last = True
            self._settle()

    def _open(self, number: int, headers: Headers) -> None:
        if self._is_last or len(self._streams) + len(self._incoming) >= STREAMS_MAX:
            self.reset(number, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        self._incoming[number] = Incoming(headers)

    def _grow(self, event: h2.events.DataReceived) -> None:
        number, used_bytes = event.stream_id, event.flow_controlled_length
        request = self._incoming.get(number)
        if request is not None:
            request.body.append(event.data)
            request.unread_bytes += used_bytes
            return
        if used_bytes:
            self._h2.acknowledge_received_data(used_bytes, number)
        stream = self._streams.get(number)
        if stream is not None:
            stream.feed(event.data)

    def _end_request(self, number: int) -> None:
        request, stream = self._incoming.get(number), self._streams.get(number)
        self._unended.pop(number, None)
        if request is not None:
            request.is_whole = True
        elif stream is not None:
            stream.feed_eof()

    def _give_up(self, number: int) -> None:
        """The client has reset a stream.

        Only what is taken back before its answer lets a client ask for more than it may at a time.
        """
        stream = self._streams.get(number)
        if number in self._unended:
            del self._unended[number]
        elif stream is None or not stream.is_answered:
            self._resets += 1
        self._incoming.pop(number, None)
        if stream is not None:
            stream.lose()

    def _begin(self) -> None:
        """Begins what has arrived, unless the client has left too much untaken and room is scarce.

        It waits rather than being answered: the answer would have to be held, too.
        """
        while self._incoming and not (
            self.held_bytes > FLUSH_BYTES and self.server.unsent.is_scarce
        ):
            number = next(iter(self._incoming))
            request = self._incoming.pop(number)
            if request.unread_bytes:
                self._h2.acknowledge_received_data(request.unread_bytes, number)
            stream = self._streams[number] = StreamTransport(self, number)
            body = b"".join(request.body)
            if not stream.start(request.headers, body, is_whole=request.is_whole):
                self.reset(number, h2.errors.ErrorCodes.PROTOCOL_ERROR)
                self._streams.pop(number, None)
            elif self._is_half:
                stream.end_input()

    # -- for streams -------------------------------------------------------------------------

    def window(self, number: int) -> int:
        """How much may be sent on a stream now."""
        if self._is_paused:
            return 0
        return min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)

    def taken(self, number: int) -> object:
        if self._is_paused:
            # That a window was opened may be in what we do not read meanwhile.
            return self._sent_bytes, self.untaken_bytes
        return self._sent_bytes if self._h2.is_open(number) else None

    def answer(self, number: int, headers: Headers) -> None:
        self._frames.count(is_work=True)
        self._say(number, partial(self._h2.send_headers, number, headers))

    def send(self, number: int, data: bytes, *, is_work: bool) -> None:
        if is_work:
            self._frames.count(is_work=True)
        self._unflushed_bytes += len(data)
        self._sent_bytes += len(data)
        self._frames.sent(len(data))
        self._say(number, partial(self._h2.send_data, number, data))

    def end(self, number: int, *, is_whole: bool, missing_bytes: float) -> None:
        """The answer is complete; what the client may still send of its request is not wanted.

        The rest of a body is dropped as it comes. Its client is told to stop only where it may have
        to wait for a window with it: there are clients that look for their answer when they have
        sent everything, find none in a stream that was reset, and never end where several wait so.
        """
        self._say(number, partial(self._h2.end_stream, number))
        if is_whole:
            return
        if missing_bytes + sum(self._unended.values()) <= WINDOW_BYTES:
            self._unended[number] = missing_bytes
            if len(self._unended) <= STREAMS_MAX:
                return
            number = next(iter(self._unended))
            del self._unended[number]
        self.reset(number, h2.errors.ErrorCodes.NO_ERROR)

    def _say(self, number: int, say: Callable[[], None]) -> None:
        try:
            say()
        except h2.exceptions.ProtocolError:
            # The connection has ended in the same read: its streams have too.
            stream = self._streams.get(number)
            if stream is not None:
                stream.lose()

    def reset(self, number: int, code: h2.errors.ErrorCodes) -> None:
        self._frames.stream_cut()
        self._say(number, partial(self._h2.reset_stream, number, code))
        self.server.turn_end.defer(self._pump)

    def pump_soon(self, stream: StreamTransport) -> None:
        """What the stream was given leaves at the end of this turn, together with the others'."""
        self._due[stream] = None
        self.server.turn_end.defer(self._pump)

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._used_at = self.server.now
        self._settle()
        if self._incoming:
            self.server.turn_end.defer(self._pump)

    def _pump(self) -> None:
        """A portion of each stream's; the rest in turns of their own."""
        self._is_pumping = False
        due, self._due = self._due, {}
        for stream in due:
            if stream.pump():
                self._due[stream] = None
            elif self._is_half and not self._is_paused and stream.get_write_buffer_size():
                stream.abort()
            if self._unflushed_bytes > FLUSH_BYTES:
                self._flush()
        self._begin()
        self._flush()
        self._weigh()
        if self._due and not self._is_paused and not self._is_pumping:
            self._is_pumping = True
            self.server.loop.call_soon(self._pump)

    # -- the end -----------------------------------------------------------------------------

    def scan(self, now: float) -> None:
        limits = self.server.limits
        self._frames.credit(int(IDLE_PER_S * limits.scan_s))
        self._resets = max(0, self._resets - int(RESETS_PER_S * limits.scan_s))
        self._weigh()
        if self._incoming:
            # Room may be there again that others have given back.
            self.server.turn_end.defer(self._pump)
        if self._keeps_us_waiting(now):
            self.abort()
        elif not self._incoming and not self._streams and now - self._used_at > limits.idle_s:
            self._goodbye(h2.errors.ErrorCodes.NO_ERROR)

    def _weigh(self) -> None:
        """Enters what waits for the client, but for streams that are entered by themselves."""
        size, transport = self.loose_bytes + self.buffered_bytes, self._transport
        # One that was cut has its last turn still to come: it is not to be cut again, or others.
        if size > COPY_BYTES_MAX and transport is not None and not transport.is_closing():
            self.server.unsent.enter(self, size, unacknowledged_bytes(transport))
        else:
            self.server.unsent.leave(self)

    def end_after(self, number: int) -> None:
        """The connection ends with this stream, if there is no other."""
        if not self._incoming and self._streams.keys() <= {number}:
            self._is_last = True

    def drain(self) -> None:
        """New streams are refused; ends with the last of those there are."""
        self._is_last = True
        self._settle()

    def _settle(self) -> None:
        if self._is_last and not self._streams and not self._incoming:
            self._goodbye(h2.errors.ErrorCodes.NO_ERROR)

    def _goodbye(self, code: h2.errors.ErrorCodes) -> None:
        if self._transport is None or self._ended_at:
            return
        self._h2.close_connection(code)
        self._flush()
        if code != h2.errors.ErrorCodes.NO_ERROR:
            self._linger()
            return
        self._ended_at = self.server.now
        self._transport.close()

    def _linger(self) -> None:
        """Ends a connection whose client may still be sending: read on, it learns why."""
        transport, self._ended_at = self._transport, self.server.now
        self._incoming.clear()
        for stream in list(self._streams.values()):
            stream.lose()
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            self._send_no_more(transport)

    def _flush(self) -> None:
        self._unflushed_bytes = 0
        data, transport = self._h2.data_to_send(), self._transport
        if data and transport is not None and not self._ended_at and not transport.is_closing():
            transport.write(data)
