"""Records that wait to be sent: batches for each topic, a bound on all of them, receipts.

Any thread may add; one event loop sends, one batch of a topic at a time, so that a topic's records
keep the order in which they were added, also over retries. What has a receipt is either sent or has
an error that the receipt tells.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from topics.client.request import encode
from topics.client.values import Appended
from topics.errors import Closed, TopicsError


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a batch is sent, and how much may wait. The server takes 10,000 records and 64 MiB."""

    linger_ms: float = 5.0
    batch_records: int = 5_000
    batch_bytes: int = 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024


# Between a batch that is settled and those who want to hear of it.
_SETTLING = threading.Lock()


class Batch:
    """Records of one topic that are sent together, and what became of them."""

    __slots__ = ("_callbacks", "_is_done", "answer", "bytes", "error", "records")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.bytes = 0
        self.answer: Appended | None = None
        self.error: TopicsError | None = None
        self._is_done = threading.Event()
        self._callbacks: list[Callable[[], object]] = []

    @property
    def is_done(self) -> bool:
        return self._is_done.is_set()

    def wait(self, timeout_s: float | None) -> bool:
        return self._is_done.wait(timeout_s)

    def settle(self, answer: Appended | None, error: TopicsError | None) -> None:
        self.answer, self.error = answer, error
        with _SETTLING:
            self._is_done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def call_when_done(self, callback: Callable[[], object]) -> None:
        with _SETTLING:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()


class Receipt:
    """What becomes of one record: `result` waits for its seq, `await` does so in a loop."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether it is known what became of the record."""
        return self._batch.is_done

    def result(self, timeout_s: float | None = None) -> int:
        """The record's seq. Raises what its append raised, and TimeoutError."""
        if not self._batch.wait(timeout_s):
            raise TimeoutError(f"the record was not acknowledged within {timeout_s} s")
        if self._batch.error is not None:
            raise self._batch.error
        assert self._batch.answer is not None
        return self._batch.answer.first_seq + self._index

    def add_done_callback(self, callback: Callable[[Receipt], None]) -> None:
        """Calls back with this receipt, from the thread that sends, or at once."""
        self._batch.call_when_done(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, int]:
        if not self._batch.is_done:
            loop = asyncio.get_running_loop()
            done = loop.create_future()

            def wake() -> None:
                if not done.done():
                    done.set_result(None)

            self._batch.call_when_done(lambda: loop.call_soon_threadsafe(wake))
            yield from done
        return self.result(0)


class _Lane:
    """One topic: batches that are full, and one that is being filled."""

    __slots__ = ("batches", "is_running", "is_urgent")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.is_running = False
        # The first batch does not wait for more.
        self.is_urgent = False


class Outbox:
    """`start` begins the work of a lane on the loop, from whatever thread adds."""

    def __init__(self, bounds: Bounds, start: Callable[[str], None]) -> None:
        self._bounds = bounds
        self._start = start
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.waiting_bytes = 0
        self.waiting_batches = 0
        self.is_closed = False
        self.failure: TopicsError | None = None
        self.nudge: Callable[[str], object] = lambda _: None
        self.on_settled: Callable[[], object] = lambda: None

    def add(self, topic: str, record: bytes, *, wait: bool) -> Receipt | None:
        """Adds a record. Without room it waits, or returns None. Raises Closed.

        One record always has room, when nothing else waits.
        """
        bounds, size = self._bounds, len(record)
        with self._lock:
            while self.waiting_bytes + size > bounds.buffer_bytes and self.waiting_bytes:
                if self.is_closed:
                    break
                if not wait:
                    return None
                self.changed.wait()
            if self.is_closed:
                raise Closed("this producer is closed")
            lane = self._lanes.get(topic)
            if lane is None:
                lane = self._lanes[topic] = _Lane()
            batch = lane.batches[-1] if lane.batches else None
            if (
                batch is None
                or len(batch.records) >= bounds.batch_records
                or batch.bytes + size > bounds.batch_bytes
            ):
                if batch is not None and not lane.is_urgent:
                    lane.is_urgent = True
                    self.nudge(topic)
                batch = Batch()
                lane.batches.append(batch)
                self.waiting_batches += 1
            receipt = Receipt(batch, len(batch.records))
            batch.records.append(record)
            batch.bytes += size
            self.waiting_bytes += size
            if not lane.is_running:
                lane.is_running = True
                self._start(topic)
            return receipt

    def is_urgent(self, topic: str) -> bool:
        """Whether a batch is full, or everything is to be sent."""
        return self.is_closed or self._lanes[topic].is_urgent

    def take(self, topic: str) -> Batch | None:
        """The next batch to send; None ends the lane's work until more is added."""
        with self._lock:
            lane = self._lanes[topic]
            if not lane.batches:
                lane.is_running = False
                del self._lanes[topic]
                return None
            batch = lane.batches.popleft()
            lane.is_urgent = len(lane.batches) > 1
            return batch

    def settled(self, batch: Batch, answer: Appended | None, error: TopicsError | None) -> None:
        batch.settle(answer, error)
        with self._lock:
            self.waiting_bytes -= batch.bytes
            self.waiting_batches -= 1
            self.failure = self.failure or error
            self.changed.notify_all()
        self.on_settled()

    def hurry(self, *, close: bool) -> None:
        """Everything that waits is sent now."""
        with self._lock:
            self.is_closed = self.is_closed or close
            for topic, lane in self._lanes.items():
                lane.is_urgent = True
                self.nudge(topic)
            self.changed.notify_all()

    def take_failure(self) -> TopicsError | None:
        """The first failure since it was last asked for."""
        with self._lock:
            failure, self.failure = self.failure, None
            return failure


def rendered(data: Any, tag: str | None, node: str | None, meta: dict[str, str] | None) -> bytes:
    """One record of a write body. Raises InvalidRequest for what JSON can not say."""
    if tag is None and node is None and meta is None:
        return b'{"data":%b}' % encode(data)
    fields = {"data": data, "tag": tag, "node": node, "meta": meta}
    return encode(
        {name: value for name, value in fields.items() if name == "data" or value is not None}
    )


def body_of(batch: Batch) -> bytes:
    return b'{"records":[%b]}' % b",".join(batch.records)
