"""A connection with no more request and answer: an event stream or a WebSocket.

It replaces the HTTP protocol on the transport, so that an idle one holds neither a parser nor
anything else of the request that opened it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from topics.server.http.ending import Ending
from topics.server.http.hub import Hub
from topics.server.http.sockets import unacknowledged_bytes

LOG = logging.getLogger("topics.server")
# What may be sent before the answers of earlier requests on the connection went out.
EARLY_BYTES_MAX = 64 * 1024


class Takeover(Ending):
    """Writing with back-pressure and an orderly end, on a connection of its own.

    `on_writable` is called when a full buffer has drained; `on_close` once, when nothing can be
    sent any more; `on_drain` when the server shuts down (without one, the connection is closed).
    """

    __slots__ = (
        "_early", "_is_closed", "_server", "on_close", "on_drain", "on_writable",
    )  # fmt: skip

    def __init__(self, server: Hub) -> None:
        super().__init__(server.limits)
        self._server = server
        # What was sent before this connection's turn came; None from then on.
        self._early: list[bytes] | None = []
        self._is_closed = False
        self.on_writable: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    # -- for the owner -----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._is_closed

    @property
    def is_writable(self) -> bool:
        """Whether the peer keeps up: what is sent now does not pile up behind a full buffer."""
        if self._early is not None:
            return self.buffered_bytes < EARLY_BYTES_MAX and not self._is_closed
        return not (self._is_paused or self._is_closed)

    @property
    def buffered_bytes(self) -> int:
        """Bytes sent that the kernel has not taken yet."""
        if self._early is not None:
            return sum(map(len, self._early))
        return super().buffered_bytes

    def abort(self) -> None:
        super().abort()
        self._mark_closed()

    # -- for the protocols built on it -------------------------------------------------------

    def _write(self, parts: tuple[bytes, ...]) -> None:
        if self._is_closed:
            return
        if self._early is not None:
            self._early.extend(parts)
        elif self._transport is not None:
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    def _end(self) -> None:
        """Nothing more will be sent. The peer gets `linger_s` to read the rest and to close."""
        self._mark_closed()
        transport = self._transport
        if transport is None or self._ended_at:
            return
        self._ended_at = self._server.now
        if transport.is_closing():
            return
        if self._server.is_draining:
            # The process must not wait for a reader that keeps its own end open, as pools of
            # connections do. What was written is still delivered: readers of events send nothing
            # that a close could answer with a reset.
            transport.close()
        else:
            self._send_no_more(transport)

    def _mark_closed(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        callback, self.on_close = self.on_close, None
        self.on_writable = self.on_drain = None
        self._call(callback)

    def _call(self, callback: Callable[[], None] | None) -> None:
        if callback is None:
            return
        try:
            callback()
        except Exception as error:
            LOG.error("a connection's callback failed", exc_info=error)

    def _received(self, data: bytes) -> None:
        """Input of a live connection. What is not overridden is ignored."""

    # -- for the server ----------------------------------------------------------------------

    def begin(self, transport: asyncio.Transport, *, is_paused: bool) -> None:
        """This connection's turn has come: what was sent so far goes out."""
        self._transport = transport
        if is_paused:
            self.pause_writing()
        early, self._early = self._early, None
        if early:
            transport.write(b"".join(early))
        if self._is_closed:
            self._end()

    def abandon(self) -> None:
        """The client went away before this connection's turn came."""
        self._mark_closed()

    def scan(self, now: float) -> None:
        if self._is_paused:
            self._weigh()
        if self._ended_at and self._is_overdue(now):
            self.abort()

    def drain(self) -> None:
        if self.on_drain is None:
            self.close()
        else:
            callback, self.on_drain = self.on_drain, None
            self._call(callback)

    def close(self) -> None:
        """Ends the connection in order, after what was already sent."""
        self._end()

    # -- asyncio.Protocol --------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ended_at:
            self._discard(len(data))
        else:
            self._received(data)

    def eof_received(self) -> bool:
        self._mark_closed()
        return False

    def pause_writing(self) -> None:
        self._is_paused = True
        self._weigh()

    def _weigh(self) -> None:
        sent_bytes = unacknowledged_bytes(self._transport)
        self._server.unsent.enter(self, self.buffered_bytes, sent_bytes)

    def resume_writing(self) -> None:
        self._is_paused = False
        self._server.unsent.leave(self)
        self._call(self.on_writable)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._server.leave(self)
        self._server.unsent.leave(self)
        self._transport = None
        self._mark_closed()
