"""A server without sockets: bytes in, bytes out, on a loop that tests turn by hand.

Fast enough to try thousands of inputs, and exact: what a real transport would do at once, this
one does at once, and what it would do in the next turn, in the next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from tests.server.protocol.app import App, count_of
from topics.server.http.connections import HttpServer
from topics.server.http.limits import HttpLimits

TURNS_MAX = 20


class FakeTransport:
    """The transport of one connection, remembering what was written to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.protocol: Any = None
        self.written = bytearray()
        self.is_ended = False
        self.is_lost = False
        self.is_reading = True

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        assert not self.is_ended, "written after the end"
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.write(part)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True
        self._lose()

    def abort(self) -> None:
        self.close()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.loop.call_soon(lambda: self.protocol.connection_lost(None))

    def is_closing(self) -> bool:
        return self.is_lost

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Desk:
    """One server, and connections to it that are a function call."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.app = App()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.loop.run_until_complete(self._open(limits))

    async def _open(self, limits: HttpLimits | None) -> None:
        # No scan comes in between: the date, and so every answer, stays the same.
        limits = msgspec.structs.replace(limits or HttpLimits(), scan_s=1e6)
        self.app.server = HttpServer(self.app.handle, limits=limits)
        self.app.server.tail = b"\r\nDate: now\r\n\r\n"

    def close(self) -> None:
        self.loop.run_until_complete(self.app.server.shutdown(0.1))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def talk(self, pieces: Iterable[bytes]) -> bytes:
        """What the server says to these reads and the end that follows them.

        Fails if an exception escapes, or if the connection or anything of it is still there.
        """
        return self.loop.run_until_complete(self._talk(pieces))

    async def _talk(self, pieces: Iterable[bytes]) -> bytes:
        server = self.app.server
        transport = FakeTransport(self.loop)
        transport.protocol = server.protocol()
        transport.protocol.connection_made(cast(asyncio.Transport, transport))
        for piece in pieces:
            await self._until(lambda: transport.is_reading or transport.is_lost)
            if transport.is_lost:
                break
            transport.protocol.data_received(piece)
        await self._until(lambda: not self.app.waiting)
        if not transport.is_lost and not transport.protocol.eof_received():
            transport.close()
        await self._until(lambda: transport.is_lost)
        await self._until(lambda: count_of(server) == 0)
        assert count_of(server) == 0, "the connection was not let go"
        assert len(asyncio.all_tasks()) == 1
        assert not self.errors, self.errors
        return bytes(transport.written)

    async def _until(self, check: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if check():
                return
            await asyncio.sleep(0)
        raise AssertionError("the server hangs")
