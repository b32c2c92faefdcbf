"""A proxy on the test's own loop that breaks, delays and refuses connections, by a seeded plan."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

from tests.support.scripted import refusal

CHUNK_BYTES = 65536
THROTTLED = refusal(429, "throttled", Retry_After="0.01")
NOT_READY = refusal(503, "not_ready", Retry_After="0.01")


@dataclass(frozen=True)
class Fault:
    """What becomes of one connection. Bytes count what is let through; None lets everything.

    `answer` is told instead of asking the server; `pause_s` is before each piece.
    """

    up_bytes: int | None = None
    down_bytes: int | None = None
    is_refused: bool = False
    answer: bytes = b""
    pause_s: float = 0.0


def drawn(chance: random.Random) -> Fault:
    """A fault of some class: in a request's head or body, in an answer's head or body, or none."""
    kind = chance.randrange(10)
    if kind == 0:
        return Fault(is_refused=True)
    if kind == 1:
        return Fault(up_bytes=chance.randrange(1, 400))
    if kind == 2:
        # The request has arrived as a whole: nobody knows what became of it.
        return Fault(down_bytes=0)
    if kind == 3:
        return Fault(down_bytes=chance.randrange(1, 300))
    if kind == 4:
        return Fault(down_bytes=chance.randrange(300, 5000))
    if kind == 5:
        return Fault(answer=chance.choice([THROTTLED, NOT_READY]))
    if kind == 6:
        return Fault(pause_s=chance.uniform(0.001, 0.01), down_bytes=chance.randrange(100, 20_000))
    return Fault(down_bytes=chance.randrange(5_000, 50_000))


class CuttingProxy:
    """Faults of its connections are drawn until it is calm."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.target = port
        self.is_calm = False
        self.faults = 0
        self._chance = chance
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        fault = Fault() if self.is_calm else drawn(self._chance)
        self.faults += fault != Fault()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                await self._pass_on(near, back, fault)
            finally:
                back.transport.abort()

    async def _pass_on(
        self, near: asyncio.StreamReader, back: asyncio.StreamWriter, fault: Fault
    ) -> None:
        if fault.is_refused:
            return
        if fault.answer:
            await near.readuntil(b"\r\n\r\n")
            back.write(fault.answer)
            await back.drain()
            await asyncio.sleep(0.005)
            return
        far, forth = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            pumps = [
                asyncio.create_task(_pump(near, forth, fault.up_bytes, fault.pause_s)),
                asyncio.create_task(_pump(far, back, fault.down_bytes, fault.pause_s)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            forth.transport.abort()


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: int | None, pause_s: float
) -> None:
    """Passes on so many bytes; with none left it takes what comes once, and ends."""
    while True:
        part = await source.read(CHUNK_BYTES)
        if not part:
            return
        if pause_s:
            await asyncio.sleep(pause_s)
        sink.write(part if left is None else part[:left])
        await sink.drain()
        if left is not None:
            left -= len(part)
            if left <= 0:
                return
