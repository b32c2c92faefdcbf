"""Producers: many small writes as few large ones, in order, with a bound on what waits.

`send` returns at once with a receipt, and waits only when the buffer is full. A batch leaves when
it is full or has waited for `linger_ms`. `flush` and `close` return when everything was sent, and
raise the first failure since the last time: nothing is lost without a word.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from topics.client.outbox import Bounds, Outbox, Receipt, body_of, rendered
from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient
    from topics.client.options import Options


class _Lanes:
    """The senders of an outbox on one loop: a task for each topic that has something to send."""

    def __init__(self, client: AsyncClient, outbox: Outbox, bounds: Bounds) -> None:
        self._client = client
        self._outbox = outbox
        self._linger_s = bounds.linger_ms / 1000
        self._full: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, topic: str) -> None:
        self._full.setdefault(topic, asyncio.Event())
        task = asyncio.get_running_loop().create_task(self._send_all(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def nudge(self, topic: str) -> None:
        event = self._full.get(topic)
        if event is not None:
            event.set()

    async def _send_all(self, topic: str) -> None:
        outbox, full = self._outbox, self._full[topic]
        while True:
            if not outbox.is_urgent(topic):
                try:
                    async with asyncio.timeout(self._linger_s):
                        await full.wait()
                except TimeoutError:
                    pass
            full.clear()
            batch = outbox.take(topic)
            if batch is None:
                self._full.pop(topic, None)
                return
            try:
                answer = await self._client.append_json(topic, body_of(batch))
            except TopicsError as error:
                outbox.settled(batch, None, error)
            else:
                outbox.settled(batch, answer, None)


class AsyncProducer:
    """For asyncio. Use it in an `async with`."""

    def __init__(self, client: AsyncClient, bounds: Bounds) -> None:
        self._lanes: _Lanes
        self._outbox = Outbox(bounds, lambda topic: self._lanes.start(topic))
        self._lanes = _Lanes(client, self._outbox, bounds)
        self._outbox.nudge = self._lanes.nudge
        # Something was settled: there may be room.
        self._moved = asyncio.Event()
        self._outbox.on_settled = self._moved.set

    async def send(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, str] | None = None,
    ) -> Receipt:
        """Adds a record; waits only when the buffer is full. `await` the receipt for its seq."""
        record = rendered(data, tag, node, meta)
        while (receipt := self._outbox.add(topic, record, wait=False)) is None:
            self._moved.clear()
            await self._moved.wait()
        return receipt

    async def flush(self) -> None:
        """Returns when everything was sent. Raises the first failure since the last flush."""
        await self._drain(close=False)

    async def close(self) -> None:
        """Like `flush`; more is refused with Closed."""
        await self._drain(close=True)

    async def _drain(self, *, close: bool) -> None:
        self._outbox.hurry(close=close)
        while self._outbox.waiting_batches:
            self._moved.clear()
            await self._moved.wait()
        failure = self._outbox.take_failure()
        if failure is not None:
            raise failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class Producer:
    """For callers that block; any thread may send. Use it in a `with`."""

    def __init__(self, options: Options, bounds: Bounds) -> None:
        self._options = options
        self._bounds = bounds
        self._loop = asyncio.new_event_loop()
        self._outbox = Outbox(bounds, self._start)
        self._lanes: _Lanes | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics-producer", daemon=True)
        self._thread.start()
        self._is_up.wait()

    def send(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, str] | None = None,
    ) -> Receipt:
        """Adds a record; waits only when the buffer is full. The receipt has its seq later."""
        receipt = self._outbox.add(topic, rendered(data, tag, node, meta), wait=True)
        assert receipt is not None
        return receipt

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything was sent. Raises the first failure since the last flush.

        Raises TimeoutError when it takes longer; what waits is still sent.
        """
        self._drain(timeout_s, close=False)

    def close(self, timeout_s: float | None = None) -> None:
        """Like `flush`, and ends the producer's thread; more is refused with Closed."""
        try:
            self._drain(timeout_s, close=True)
        finally:
            if not self._outbox.waiting_batches and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()

    def _drain(self, timeout_s: float | None, *, close: bool) -> None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._outbox.hurry(close=close)
        with self._outbox.changed:
            while self._outbox.waiting_batches:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"not everything was sent within {timeout_s} s")
                self._outbox.changed.wait(left_s)
        failure = self._outbox.take_failure()
        if failure is not None:
            raise failure

    def _start(self, topic: str) -> None:
        assert self._lanes is not None
        self._loop.call_soon_threadsafe(self._lanes.start, topic)

    def _run(self) -> None:
        from topics.client.async_client import AsyncClient

        loop = self._loop
        asyncio.set_event_loop(loop)
        client = AsyncClient.of(self._options)
        lanes = self._lanes = _Lanes(client, self._outbox, self._bounds)
        self._outbox.nudge = lambda topic: loop.call_soon_threadsafe(lanes.nudge, topic)
        self._is_up.set()
        loop.run_forever()
        loop.run_until_complete(client.close())
        loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
