"""A WebSocket for callers that block: the asyncio one in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from topics.client import socket_commands
from topics.client.methods import commanding
from topics.client.options import Options
from topics.client.socket_commands import Command
from topics.client.stream_values import StreamEvent
from topics.client.web_socket import AsyncSocket, closed_socket
from topics.errors import Unreachable
from topics.signatures import readable

T = TypeVar("T")


@readable
class Socket:
    """Subscribe, publish, and iterate over what comes, in a `with`. May be shared by threads.

    It raises Unreachable where it breaks, and does not come back by itself: `follow` and `append`
    do.
    """

    def __init__(self, options: Options) -> None:
        self._socket = AsyncSocket(options)
        # None before `open` and after `close`; the lock keeps calls from a loop that is ending.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread

    subscribe = commanding(socket_commands.subscribe)
    unsubscribe = commanding(socket_commands.unsubscribe)
    publish = commanding(socket_commands.publish)
    ping = commanding(socket_commands.ping)

    def open(self) -> None:
        """Connects. Raises Unreachable, or what the server refuses with."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(loop,), name="topics-socket", daemon=True
        )
        self._thread.start()
        try:
            self._in_thread(self._socket.open())
        except BaseException:
            self._stop()
            raise

    def command(self, wanted: Command[T]) -> T:
        """Sends what a command describes and returns its answer. Raises what it is refused with."""
        return self._in_thread(self._socket.command(wanted))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        return self._in_thread(anext(self._socket))

    def close(self) -> None:
        """Ends the connection; whoever waits for it is told Unreachable."""
        # It may be closed already, by another thread or because it was never open.
        with suppress(Unreachable):
            self._in_thread(self._socket.close())
        self._stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _in_thread(self, wanted: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                wanted.close()
                raise closed_socket()
            waiting = asyncio.run_coroutine_threadsafe(wanted, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def _stop(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end(loop), loop)
            self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Ends a loop when whoever came before has been told."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    # In the next turn: those that are through are told in it.
    loop.call_soon(loop.stop)
