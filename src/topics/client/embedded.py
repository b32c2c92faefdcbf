"""Calls to a log inside this process, instead of a server: the same answers, and no connection.

A thread of its own has the engine, and answers as a server's does; clients in any number of threads
and event loops share it. Whoever opened it closes it: all others are refused from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from topics.client.options import Options
from topics.client.request import Reply, Request, error_of
from topics.client.retries import RetryPolicy
from topics.errors import Unreachable

if TYPE_CHECKING:
    import os

    from topics.server.embedded import Embedded, Visit


def opening(
    path: str | os.PathLike[str], retries: RetryPolicy, settings: Mapping[str, Any]
) -> Options:
    """Begins to open a data directory. Raises InvalidRequest for settings that can not be."""
    # Whoever asks a server needs nothing of this.
    from topics.server.config import embedded
    from topics.server.embedded import Embedded

    within = Embedded(embedded(settings), path)
    within.start()
    return Options("", "", retries=retries, within=within)


# What is told of a call: its answer, or that there is none, or a stream piece by piece, first an
# empty one, None at its end.
Told = Reply | Unreachable | bytes | None


class EmbeddedTransport:
    """Blocking. The directory is open when it is made. Raises what made that impossible."""

    def __init__(self, within: Embedded) -> None:
        self._within = within
        within.opened.result()

    def exchange(self, request: Request[Any]) -> Reply:
        """Asks once. Raises Unreachable when the log is closed."""
        told: Future[Told] = Future()
        visit = _ask(self._within, request, told.set_result)
        try:
            return _reply(told.result())
        except KeyboardInterrupt:
            visit.leave()
            raise

    def close(self) -> None:
        """Others may still use the log."""


class AsyncEmbeddedTransport:
    """For one event loop. The first call waits until the directory is open."""

    def __init__(self, within: Embedded) -> None:
        self._within = within

    async def exchange(self, request: Request[Any]) -> Reply:
        """Asks once. Raises Unreachable when the log is closed."""
        await self._open()
        told: asyncio.Future[Told] = asyncio.get_running_loop().create_future()

        def tell(what: Told) -> None:
            if not told.done():
                told.set_result(what)

        visit = _ask(self._within, request, _from_elsewhere(tell))
        try:
            return _reply(await told)
        except asyncio.CancelledError:
            visit.leave()
            raise

    @asynccontextmanager
    async def stream(self, request: Request[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises what is refused."""
        await self._open()
        told: asyncio.Queue[Told] = asyncio.Queue()
        visit = _ask(self._within, request, _from_elsewhere(told.put_nowait))
        try:
            began = await told.get()
            if not isinstance(began, bytes):
                raise error_of(_reply(began))
            yield _chunks(told, visit)
        finally:
            visit.leave()

    async def _open(self) -> None:
        opened = self._within.opened
        if not opened.done():
            # Whoever else waits for it is not to be cancelled with this call.
            await asyncio.shield(asyncio.wrap_future(opened))
        opened.result()

    async def close(self) -> None:
        """Others may still use the log."""


class _Taker:
    """Passes on what the engine's thread tells."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        self._tell = tell
        self.failed: Callable[[Unreachable], None] = tell
        self.streamed: Callable[[bytes], None] = tell

    def answered(self, status: int, body: bytes, retry_after: str | None) -> None:
        self._tell(Reply(status, body, retry_after))

    def ended(self) -> None:
        self._tell(None)


def _ask(within: Embedded, request: Request[Any], tell: Callable[[Told], None]) -> Visit:
    taker = _Taker(tell)
    return within.ask(request.method, request.path, request.headers, request.body, taker)


def _from_elsewhere(tell: Callable[[Told], None]) -> Callable[[Told], None]:
    """Tells this loop from another thread."""
    soon = asyncio.get_running_loop().call_soon_threadsafe

    def told(what: Told) -> None:
        try:
            soon(tell, what)
        except RuntimeError:
            pass  # The loop has ended, and nobody waits.

    return told


def _reply(told: Told) -> Reply:
    if isinstance(told, Unreachable):
        raise told
    assert isinstance(told, Reply), "a stream was asked for as if it were one answer"
    return told


async def _chunks(told: asyncio.Queue[Told], visit: Visit) -> AsyncIterator[bytes]:
    while isinstance(chunk := await told.get(), bytes):
        visit.took(len(chunk))
        yield chunk
