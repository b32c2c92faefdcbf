"""Calls over plain connections for asyncio: what `direct` is for callers that block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, cast

from topics.client.direct import IDLE_MAX
from topics.client.incoming import Incoming, Place
from topics.client.options import Options
from topics.client.request import Reply, Request
from topics.client.transport import AsyncTransport, closed, no_answer
from topics.errors import Unreachable


class AsyncDirect:
    """For one event loop. Streams are the library's, which hands them over piece by piece."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._place = Place(options)
        self._lines: set[_Line] = set()
        self._idle: list[_Line] = []
        self._streams: AsyncTransport | None = None
        self._is_closed = False

    async def exchange(self, request: Request[Any]) -> Reply:
        """Sends once. Raises Unreachable when no answer came."""
        if self._is_closed:
            raise closed()
        line = self._idle_line() or await self._connect()
        answered = line.ask(self._place.pieces(request))
        timeout_s = self._options.timeout_s + request.wait_s
        timer = line.loop.call_later(timeout_s, line.give_up, answered)
        try:
            return await answered
        except Unreachable as error:
            raise no_answer(self._options, error.message, sent=True) from None
        except asyncio.CancelledError:
            if answered.cancelled():
                line.abort()
            # Else it was answered in the same moment, and may be another call's by now.
            raise
        finally:
            timer.cancel()

    def _idle_line(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            if not line.is_ending:
                return line
        return None

    async def _connect(self) -> _Line:
        place, options = self._place, self._options
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                _, line = await asyncio.get_running_loop().create_connection(
                    lambda: _Line(self._ended, self._answered), place.host, place.port
                )
        except OSError as error:
            raise no_answer(options, error, sent=False) from None
        if self._is_closed:
            line.abort()
            raise closed()
        self._lines.add(line)
        return line

    def _answered(self, line: _Line) -> None:
        """It may be asked again."""
        if len(self._idle) < IDLE_MAX:
            self._idle.append(line)
        else:
            line.abort()

    def _ended(self, line: _Line) -> None:
        self._lines.discard(line)
        if line in self._idle:
            self._idle.remove(line)

    def stream(self, request: Request[Any]) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises what the server refuses with."""
        if self._streams is None:
            self._streams = AsyncTransport(self._options)
        return self._streams.stream(request)

    async def close(self) -> None:
        self._is_closed = True
        for line in list(self._lines):
            line.fail("this client is closed")
        if self._streams is not None:
            await self._streams.close()


Told: TypeAlias = "Callable[[_Line], None]"


class _Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, ended: Told, answered: Told) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._incoming = Incoming()
        self._waiting: asyncio.Future[Reply] | None = None
        self._on_end = ended
        self._on_answer = answered

    def ask(self, pieces: tuple[bytes, ...]) -> asyncio.Future[Reply]:
        waiting = self._waiting = self.loop.create_future()
        for piece in pieces:
            self._transport.write(piece)
        return waiting

    @property
    def is_ending(self) -> bool:
        return self._transport.is_closing()

    def give_up(self, answered: asyncio.Future[Reply]) -> None:
        """It took too long, unless it was answered in the same moment."""
        if not answered.done():
            self.fail("it took too long")

    def fail(self, reason: str) -> None:
        """There will be no answer."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(Unreachable(reason))
        self._transport.abort()

    def abort(self) -> None:
        self._waiting = None
        self._transport.abort()

    # -- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if self._waiting is None:
            # Nobody has asked: it must not be taken for the next answer.
            self._transport.abort()
            return
        try:
            incoming.feed(data)
        except Unreachable as error:
            self.fail(error.message)
            return
        if incoming.reply is not None:
            self._settle(incoming.reply)

    def _settle(self, reply: Reply) -> None:
        waiting, self._waiting = self._waiting, None
        if self._incoming.keeps:
            self._incoming.forget()
            self._on_answer(self)
        else:
            self._transport.abort()
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(self)
        reply = self._incoming.end()
        if reply is not None and self._waiting is not None:
            self._settle(reply)
        else:
            self.fail(str(exc or "the connection was closed"))
