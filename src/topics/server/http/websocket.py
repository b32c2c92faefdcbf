"""WebSocket connections: messages in, messages out, with the handshakes and limits of RFC 6455.

Framing is that of the `websockets` package without its I/O; no extension is offered, so that a
message costs its own size and a shared one is compressed for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from topics.server.http.errors import BadRequest, MethodNotAllowed, UpgradeRequired
from topics.server.http.intake import IDLE_PER_S, Frames, Intake
from topics.server.http.message import Request
from topics.server.http.takeover import Takeover

LOG = logging.getLogger("topics.server.http.websocket")
# The library's own, which has whole messages in it: never one of ours, whose level can be lowered.
_LIBRARY_LOG = logging.getLogger("websockets.server")
REASON_BYTES_MAX = 123

_OPENING = (
    b"host", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version",
)  # fmt: skip


class WebSocket(Takeover):
    """Opened by a handler, which then returns PENDING. Raises HttpError for a bad handshake.

    `on_message` gets each whole message, str for text and bytes for binary. What it raises ends
    the connection with 1011. While the peer takes nothing of what we send, nothing is read from
    it: it can not make us buffer without bound.
    """

    __slots__ = (
        "_fragments", "_frames", "_gathered_bytes", "_intake", "_is_text", "_pinged_at",
        "_protocol", "_seen_at", "on_message",
    )  # fmt: skip

    def __init__(self, request: Request, on_message: Callable[[str | bytes], None]) -> None:
        server = request.connection.server
        super().__init__(server)
        self.on_message = on_message
        self._fragments: bytearray | None = None
        self._is_text = False
        self._frames = WsFrames()
        self._intake: Intake | None = Intake(
            server.loop, server.slices, end_of=self._frames.end_of, take=self._take_piece,
            is_held=self._is_input_held, behind=self._behind, is_idle=self._frames.is_idle,
        )  # fmt: skip
        # What has come of a message that is not whole.
        self._gathered_bytes = 0
        self._seen_at = server.now
        self._pinged_at = 0.0
        self._protocol = _shake_hands(request, server.limits.message_bytes_max)
        request.successor = self
        self._pump()

    @property
    def close_code(self) -> int | None:
        """The peer's close code; 1006 when it vanished, None while the connection is open."""
        received = self._protocol.close_rcvd
        if received is not None:
            return received.code
        return CloseCode.ABNORMAL_CLOSURE if self._is_closed else None

    def send(self, text: bytes) -> None:
        """Sends one text message, given as its UTF-8 bytes; nothing when it has ended."""
        if self._is_open():
            self._frames.count(is_work=True)
            self._protocol.send_text(text)
            self._pump()

    def send_binary(self, data: bytes) -> None:
        """Sends one binary message; nothing when the connection has ended."""
        if self._is_open():
            self._frames.count(is_work=True)
            self._protocol.send_binary(data)
            self._pump()

    def close(self, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Starts the closing handshake; the peer has `linger_s` to complete it."""
        if not self._is_open():
            return
        self._protocol.send_close(code, _short(reason))
        self._pump()
        self._ended_at = self._server.now
        self._mark_closed()

    def _is_open(self) -> bool:
        return not self._is_closed and self._protocol.state is State.OPEN

    # -- input -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._protocol.eof_sent or self._intake is None:
            super().data_received(data)
            return
        self._seen_at = self._server.now
        self._intake.feed(data)

    def _take_piece(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol.eof_sent:
            return
        if self._frames.is_flood:
            self._fail(CloseCode.POLICY_VIOLATION, "too many frames with nothing in them")
            return
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Frame) and not self._is_closed:
                self._frame_received(event)
        self._pump()
        if self._fragments is None and self._frames.is_between:
            if self._gathered_bytes:
                self._gathered_bytes = 0
                self._server.bodies.leave(self)
        else:
            self._gathered_bytes += len(data)
            self._server.bodies.enter(self, self._gathered_bytes)

    def cut_body(self) -> None:
        """Messages and bodies on their way hold too much, and this one moves the least."""
        self._fail(CloseCode.TRY_AGAIN_LATER, "messages on their way hold as much as they may")

    def _is_input_held(self) -> bool:
        return self._is_paused or self._transport is None

    def _behind(self, _is_behind: bool) -> None:
        self._steer_reading()

    def _steer_reading(self) -> None:
        transport, intake = self._transport, self._intake
        if transport is None or intake is None or transport.is_closing():
            return
        intake.steer(transport, is_paused=self._is_paused)

    def _frame_received(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CONT:
            if self._fragments is None:
                return
            self._fragments += frame.data
            if not frame.fin:
                return
            data, self._fragments = bytes(self._fragments), None
        elif opcode is Opcode.TEXT or opcode is Opcode.BINARY:
            self._is_text = opcode is Opcode.TEXT
            if not frame.fin:
                self._fragments = bytearray(frame.data)
                return
            data = bytes(frame.data)
        else:
            return
        self._message_received(data)

    def _message_received(self, data: bytes) -> None:
        message: str | bytes = data
        if self._is_text:
            try:
                message = data.decode()
            except UnicodeDecodeError as error:
                self._fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
                return
        try:
            self.on_message(message)
        except Exception as error:
            LOG.error("a message handler failed", exc_info=error)
            self._fail(CloseCode.INTERNAL_ERROR, "internal error")

    def _fail(self, code: CloseCode, reason: str) -> None:
        self._fragments = None
        self._server.bodies.leave(self)
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code, _short(reason))
        self._pump()

    # -- output ------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Hands what the protocol has to say to the transport, and ends when it says so."""
        writes = self._protocol.data_to_send()
        is_ending = bool(writes) and writes[-1] == SEND_EOF
        parts = tuple(part for part in writes if part)
        if parts and self._transport is not None and self._is_closed:
            # The close frame's echo is sent although nothing else can be any more.
            self._transport.write(b"".join(parts))
        elif parts:
            self._write(parts)
        if is_ending:
            self._finish()

    def _finish(self) -> None:
        transport = self._transport
        self._ended_at = self._server.now
        self._mark_closed()
        if transport is not None and not transport.is_closing():
            self._send_no_more(transport)

    # -- life --------------------------------------------------------------------------------

    def begin(self, transport: asyncio.Transport, *, is_paused: bool) -> None:
        super().begin(transport, is_paused=is_paused)

    def scan(self, now: float) -> None:
        """Pings a silent peer, and cuts off one that does not answer."""
        super().scan(now)
        limits = self._server.limits
        self._frames.credit(int(IDLE_PER_S * limits.scan_s))
        if not self._is_open() or self._transport is None:
            return
        if self._pinged_at > self._seen_at:
            if now - self._pinged_at > limits.pong_s:
                self.abort()
        elif now - self._seen_at > limits.ping_s and self.is_writable:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self._pump()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._steer_reading()

    def resume_writing(self) -> None:
        # Time that we did not listen does not count against the peer.
        self._seen_at = self._server.now
        super().resume_writing()
        self._steer_reading()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self._pump()
        return super().eof_received()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._protocol.receive_eof()
        super().connection_lost(_exc)
        self._server.bodies.leave(self)
        self._fragments = None
        # Both hold the protocol that holds them.
        self._protocol.parser.close()
        self._protocol.parser_exc = None
        if self._intake is not None:
            self._intake.rest()
            self._intake = None
        # The handler usually holds the connection, and would hold it for ever.
        self.on_message = _ignore


class WsFrames(Frames):
    """Control frames have no work in them, nor have empty parts of a message that goes on."""

    __slots__ = ()

    def _begin(self, data: bytes, at: int) -> int:
        head = data[at : at + 10]
        if len(head) < 2:
            return 0
        size, head_bytes = head[1] & 0x7F, 2
        if size >= 126:
            head_bytes = 4 if size == 126 else 10
            if len(head) < head_bytes:
                return 0
            size = int.from_bytes(head[2:head_bytes], "big")
        is_final, is_control = head[0] & 0x80, head[0] & 0x08
        self.count(is_work=not is_control and bool(size or is_final))
        return head_bytes + (4 if head[1] & 0x80 else 0) + size


def _shake_hands(request: Request, message_bytes_max: int) -> ServerProtocol:
    """The protocol of an accepted connection, its 101 answer waiting to be sent."""
    if request.method != "GET":
        raise MethodNotAllowed("a WebSocket is opened with GET", allow=["GET"])
    protocol = ServerProtocol(max_size=message_bytes_max, logger=_LIBRARY_LOG)
    headers = request.headers
    lines = [b"%b: %b\r\n" % (name, headers[name]) for name in _OPENING if name in headers]
    protocol.receive_data(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
    events = protocol.events_received()
    if not events or not isinstance(events[0], Handshake):
        raise BadRequest("the WebSocket handshake can not be read")
    answer = protocol.accept(events[0])
    if answer.status_code == 426 or not request.is_upgrade:
        raise UpgradeRequired("this path speaks WebSocket: send Upgrade: websocket")
    if answer.status_code != 101:
        raise BadRequest(f"the WebSocket handshake failed: {protocol.handshake_exc}")
    protocol.send_response(answer)
    return protocol


def _ignore(_message: str | bytes) -> None:
    """Nobody listens any more."""


def _short(reason: str) -> str:
    """A reason that fits into a close frame."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
