"""The connections of one server: who is there, who has been idle too long, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import cast

from topics.errors import Overloaded
from topics.server.http.carrying import Carrier
from topics.server.http.errors import error_response
from topics.server.http.gathered_body import Decoding
from topics.server.http.giving_way import Company
from topics.server.http.h2c import H2Protocol
from topics.server.http.handshakes import Door
from topics.server.http.http1 import HttpProtocol
from topics.server.http.hub import AnswerHolder, BodyHolder, Connection, Refused
from topics.server.http.known_heads import KnownHeads
from topics.server.http.ledger import Ledger
from topics.server.http.limits import HttpLimits
from topics.server.http.message import Handler, Judge, Request
from topics.server.http.slices import Slices
from topics.server.http.turns import TurnEnd

LOG = logging.getLogger("topics.server")
BACKLOG = 4096
# Each scan looks at one slot, so that many connections cost no pause.
SLOTS = 8
# Peers that vanished without a word are noticed by the kernel after about a minute and a half.
KEEPALIVE_IDLE_S = 60
KEEPALIVE_STEP_S = 10
KEEPALIVE_PROBES = 3
# That connections are refused is said this often, however many there are.
REFUSED_NOTED_S = 60.0


class HttpServer:
    """Serves one handler on any number of sockets, all on the running loop.

    The handler is called once for each complete request, on the loop, and returns at once. Before
    more of a body is read than came with its head, `judge` is asked whether there is any use in it.
    `refused` is told of requests that were answered with an error instead of by the handler.
    `turn_end` is that of the loop's current turn; `now` is the loop's time, a scan old at most.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        judge: Judge | None = None,
        refused: Refused | None = None,
        limits: HttpLimits | None = None,
        request_type: type[Request] = Request,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.judge = judge or _any_body
        self.refused = refused or _untold
        self.request_type = request_type
        self.limits = limits or HttpLimits()
        self.turn_end = turn_end = TurnEnd(self.loop)
        # Company is not who asks for long work: those are what it is asked for.
        self.slices = Slices(self.loop, turn_end, Company(lambda: turn_end.count))
        self.carrier = Carrier(self.loop, self.turn_end)
        self.now = self.loop.time()
        self.known_heads = KnownHeads(self.limits)
        self.is_draining = False
        self.bodies: Ledger[BodyHolder] = Ledger(
            "bodies on their way in", self._body_bytes_max(),
            is_inward=True, now=self._clock, cut=lambda holder: self._soon(holder.cut_body),
        )  # fmt: skip
        self.unsent: Ledger[AnswerHolder] = Ledger(
            "answers that were not taken", self.limits.unsent_bytes_max,
            is_inward=False, now=self._clock, cut=lambda holder: self._soon(holder.cut_answers),
        )  # fmt: skip
        self.decoding = Decoding(self.loop)
        # Ends the head of every answer.
        self.tail = b""
        # The first SLOTS of them are for connections, those behind them for streams, which have no
        # socket of their own.
        self._slots: list[set[Connection]] = [set() for _ in range(2 * SLOTS)]
        self._joined = 0
        self.refused_total = 0
        self._refused_noted_s = -REFUSED_NOTED_S
        self._listeners: list[asyncio.Server] = []
        self._doors: list[Door] = []
        self._emptied = asyncio.Event()
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._scan()

    @property
    def connection_count(self) -> int:
        """Those with a socket, also where hands were not shaken yet."""
        return sum(map(len, self._slots[:SLOTS])) + sum(door.count for door in self._doors)

    @property
    def stream_count(self) -> int:
        """Streams of HTTP/2, as long as each of them is looked after."""
        return sum(map(len, self._slots[SLOTS:]))

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens on an address; returns the port, which the system chooses for port 0."""
        listener = await self.loop.create_server(
            self.protocol, host, port, backlog=BACKLOG, reuse_address=True, start_serving=False
        )
        self._listeners.append(listener)
        for listening in listener.sockets:
            _keep_alive(listening)
        port = int(listener.sockets[0].getsockname()[1])
        if tls is None:
            await listener.start_serving()
            return port
        for listening in listener.sockets:
            own = socket.socket(fileno=os.dup(listening.fileno()))
            own.listen(BACKLOG)
            self._doors.append(
                Door(
                    own, tls, self.limits, protocol=partial(HttpProtocol, self),
                    has_room=self._has_room, refused=self._note_refused,
                )
            )  # fmt: skip
        return port

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one new connection: what `create_server` takes as its factory."""
        return Threshold(self._admit)

    def _has_room(self) -> bool:
        maximum = self.limits.connections_max
        return not maximum or self.connection_count < maximum

    def _admit(self, transport: asyncio.Transport) -> None:
        """Begins with a connection, if there is room for it."""
        if self._has_room():
            protocol = HttpProtocol(self)
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
        else:
            transport.write(_refusal(self.tail))
            transport.close()
            self._note_refused()

    def _note_refused(self) -> None:
        self.refused_total += 1
        now_s = self.loop.time()
        if now_s >= self._refused_noted_s + REFUSED_NOTED_S:
            self._refused_noted_s = now_s
            LOG.warning(
                "there are %d connections, the most that this process may have beside its files; "
                "new ones are refused", self.limits.connections_max,
            )  # fmt: skip

    async def shutdown(self, grace_s: float = 10.0) -> bool:
        """Stops listening and ends every connection; True when all of them ended by themselves.

        Requests in flight are answered, later ones get 503 `shutting_down`, idle connections are
        closed, streams are told. What is left after `grace_s` is cut off.
        """
        self.is_draining = True
        for listener in self._listeners:
            listener.close()
        for door in self._doors:
            door.close()
        for connection in self._everyone():
            connection.drain()
        if any(self._slots):
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_s)
            except TimeoutError:
                pass
        left = self._everyone()
        for connection in left:
            connection.abort()
        if left:
            LOG.warning("%d connections were cut off at shutdown", len(left))
        if self._timer is not None:
            self._timer.cancel()
        self.carrier.close()
        # Aborted connections are lost in the next turn.
        await asyncio.sleep(0)
        return not left

    # -- for connections ---------------------------------------------------------------------

    def join(self, connection: Connection) -> None:
        """Counts a connection in until it leaves."""
        self._join(connection, 0)

    def join_stream(self, stream: Connection) -> None:
        """Looks after a stream of a connection until it leaves: it has no socket of its own."""
        self._join(stream, SLOTS)

    def _join(self, connection: Connection, first_slot: int) -> None:
        self._joined += 1
        connection.slot = first_slot + self._joined % SLOTS
        self._slots[connection.slot].add(connection)

    def leave(self, connection: Connection) -> None:
        self._slots[connection.slot].discard(connection)
        if self.is_draining and not any(self._slots):
            self._emptied.set()

    def replace(self, connection: Connection, successor: Connection) -> None:
        """The successor has taken the connection over."""
        self._slots[connection.slot].discard(connection)
        successor.slot = connection.slot
        self._slots[successor.slot].add(successor)

    def begin_h2(self, connection: Connection, transport: asyncio.Transport, data: bytes) -> None:
        """Hands a connection over to HTTP/2, with what the client has sent so far."""
        successor = H2Protocol(self, transport)
        self.replace(connection, successor)
        transport.set_protocol(successor)
        successor.data_received(data)

    def _soon(self, cut: Callable[[], None]) -> None:
        # Not now: whoever is cut may be the caller.
        self.loop.call_soon(cut)

    def _clock(self) -> float:
        return self.now

    def _body_bytes_max(self) -> int:
        """Room for one body there always is."""
        bytes_max = self.limits.inflight_body_bytes_max
        return max(bytes_max, self.limits.body_bytes_max) if bytes_max else 0

    # -- time --------------------------------------------------------------------------------

    def _scan(self) -> None:
        self.now = self.loop.time()
        self.tail = b"\r\nDate: %b\r\n\r\n" % formatdate(usegmt=True).encode()
        self._turn = (self._turn + 1) % SLOTS
        for connection in (*self._slots[self._turn], *self._slots[self._turn + SLOTS]):
            try:
                connection.scan(self.now)
            except Exception as error:
                LOG.error("a connection can not be looked at", exc_info=error)
                connection.abort()
        self._timer = self.loop.call_later(self.limits.scan_s / SLOTS, self._scan)

    def _everyone(self) -> list[Connection]:
        return [connection for slot in self._slots for connection in slot]


class Threshold(asyncio.Protocol):
    """A connection as it comes. Many may come at once: whether there is room is asked of each when
    those before it are counted.
    """

    __slots__ = ("_admit",)

    def __init__(self, admit: Callable[[asyncio.Transport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admit(cast(asyncio.Transport, transport))


def _refusal(tail: bytes) -> bytes:
    """What a connection is told that there is no room for."""
    answer = error_response(
        Overloaded("this server has as many connections as it may; try again later")
    )
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d%b%b"
        % (len(answer.body), tail, answer.body)
    )


def _any_body(_request: Request, _has_body: bool) -> bool:
    return True


def _untold(_request: Request, _error: BaseException, _status: int) -> None:
    return


def _keep_alive(door: socket.socket) -> None:
    """Options that accepted sockets inherit."""
    door.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_STEP_S)
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
