"""What an asyncio iterator gives, for callers that block: it runs in a thread, a few items ahead.

The caller waits for a queue, where it hears signals; the thread waits for the server.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Generic, Self, TypeVar

from topics.client.async_client import AsyncClient
from topics.client.options import Options

T = TypeVar("T")
# Items that wait for the caller; one has at most a thousand records.
AHEAD_MAX = 4
# How soon a thread that waits for room sees that nobody wants more.
ROOM_S = 0.1
# How soon the caller hears a signal that came just before it waited: such a one wakes nobody.
SIGNALS_S = 0.5
# How long the end waits for the thread: an interpreter that ends while threads of the HTTP library
# still call into it is aborted.
END_S = 2.0


class Stream(Generic[T]):
    """Iterate it once, in a `with`, whose end closes it. It raises where it breaks."""

    def __init__(
        self, options: Options, items: Callable[[AsyncClient], AsyncGenerator[T, None]], name: str
    ) -> None:
        """`items` is called in the thread, with a client of its own."""
        self._options = options
        self._items = items
        # A list of one is an item, which may be anything; None is the end.
        self._ahead: queue.Queue[list[T] | BaseException | None] = queue.Queue(AHEAD_MAX)
        self._is_closed = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        try:
            while True:
                try:
                    got = self._ahead.get(timeout=SIGNALS_S)
                except queue.Empty:
                    continue
                if got is None:
                    return
                if isinstance(got, BaseException):
                    raise got
                yield got[0]
        finally:
            self.close()

    def close(self) -> None:
        """Ends the connection; an iteration that waits ends, too."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # It has ended by itself.
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._fetch())
        except asyncio.CancelledError:
            self._put(None)
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    async def _fetch(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._is_closed.is_set():
            # Before there was a task to cancel.
            return
        async with AsyncClient.of(self._options) as client, aclosing(self._items(client)) as items:
            async for item in items:
                if not self._put([item]):
                    return

    def _put(self, what: list[T] | BaseException | None) -> bool:
        """Waits for room; False when nobody wants it. The loop has nothing else to do meanwhile."""
        while not self._is_closed.is_set():
            try:
                self._ahead.put(what, timeout=ROOM_S)
                return True
            except queue.Full:
                continue
        # Whoever waits is woken; a full queue has something to wake it with.
        try:
            self._ahead.put_nowait(None)
        except queue.Full:
            pass
        return False
