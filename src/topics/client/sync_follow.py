"""`follow` for callers that block: the asyncio follower in a thread, a few batches ahead.

The caller waits for a queue, where it hears signals; the thread waits for the server.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topics.client.async_client import AsyncClient
from topics.client.follow import AsyncFollower, HandedOver, Wanted
from topics.client.following import Batch, Item

if TYPE_CHECKING:
    from topics.client.client import Client

# Batches that wait for the caller; each has at most a thousand records.
AHEAD_MAX = 4
# How soon a thread that waits for room sees that nobody wants more.
ROOM_S = 0.1

__all__ = ["Follower", "Wanted"]


class Follower:
    """Iterate it once. `commit` stores the cursor behind the last item that the iteration gave."""

    def __init__(self, client: Client, wanted: Wanted) -> None:
        wanted.check()
        self._client = client
        self._wanted = wanted
        self._handed = HandedOver()
        self._ahead: queue.Queue[Batch | BaseException | None] = queue.Queue(AHEAD_MAX)
        self._is_closed = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="topics-follow", daemon=True)

    def __iter__(self) -> Iterator[Item]:
        for batch in self.batches():
            yield from self._handed.over(batch)

    def batches(self) -> Iterator[Batch]:
        """What comes, as it comes: runs of records of a topic, and gaps. Nothing of it is noted."""
        self._thread.start()
        try:
            while True:
                got = self._ahead.get()
                if got is None:
                    return
                if isinstance(got, BaseException):
                    raise got
                yield got
        finally:
            self.close()

    def commit(self) -> None:
        """Stores how far the caller has come under the cursor's name. Raises CursorRegressed."""
        for request in self._handed.commits(self._wanted.cursor):
            self._client.send(request)

    def close(self) -> None:
        """Ends the stream; an iteration that waits for it ends, too."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # It has ended by itself.

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except asyncio.CancelledError:
            self._put(None)
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    async def _follow(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with AsyncClient.of(self._client.options) as client:
            async for batch in AsyncFollower(client, self._wanted).batches():
                if not self._put(batch):
                    return

    def _put(self, what: Batch | BaseException | None) -> bool:
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
