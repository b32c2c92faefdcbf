"""A WebSocket for callers that block: the asyncio one in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from topics.client import socket_commands
from topics.client.methods import commanding, readable
from topics.client.options import Options
from topics.client.socket_commands import Command
from topics.client.stream_values import StreamEvent
from topics.client.web_socket import AsyncSocket, closed_socket

T = TypeVar("T")


@readable
class Socket:
    """Subscribe, publish, and iterate over what comes, in a `with`. May be shared by threads.

    It raises Unreachable where it breaks, and does not come back by itself: `follow` and `append`
    do.
    """

    def __init__(self, options: Options) -> None:
        self._socket = AsyncSocket(options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="topics-socket", daemon=True)

    subscribe = commanding(socket_commands.subscribe)
    unsubscribe = commanding(socket_commands.unsubscribe)
    publish = commanding(socket_commands.publish)
    ping = commanding(socket_commands.ping)

    def open(self) -> None:
        """Connects. Raises Unreachable, or what the server refuses with."""
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
        if not self._loop.is_closed():
            self._in_thread(self._socket.close())
            self._stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _in_thread(self, wanted: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            wanted.close()
            raise closed_socket()
        waiting = asyncio.run_coroutine_threadsafe(wanted, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
