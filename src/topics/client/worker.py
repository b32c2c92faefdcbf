"""Workers: claim jobs of a queue, handle several at once, keep their leases, settle them.

A job is acknowledged after its handler has returned, given back with a growing delay when it
raised, and its lease is extended for as long as it runs. Acks name the lease, so a worker that lost
one can not finish what somebody else works on now. What a worker holds when it ends is given back
at once; what it could not give back is claimable again when the lease is over: no job is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topics.client.retries import is_transient
from topics.client.values import Job
from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient
    from topics.client.options import Options

LOG = logging.getLogger("topics.worker")
Handler = Callable[[Job], None] | Callable[[Job], Awaitable[None]]
CLAIM_WAIT_MS = 20_000
# The server's default; the lease is named in every claim, so that both sides know it.
LEASE_MS = 30_000
# A lease is extended when this share of it is over: two tries may fail.
EXTEND_SHARE = 0.3
# The server can not be reached, or refuses for now.
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`backoff_ms` doubles with each delivery, up to `backoff_ms_max`."""

    queue: str
    node: str
    concurrency: int = 1
    lease_ms: int = LEASE_MS
    backoff_ms: int = 1_000
    backoff_ms_max: int = 300_000
    # How long handlers may still run when the worker is stopped.
    grace_s: float = 30.0
    # Stop when the queue has been empty for so long; None: never.
    idle_s: float | None = None


@dataclass(slots=True)
class Counts:
    """What a worker has done. `lost`: a lease ended before the job did; somebody else has it."""

    done: int = 0
    failed: int = 0
    lost: int = 0


def options_of(queue: str, node: str | None, **given: object) -> WorkerOptions:
    own = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    return WorkerOptions(queue, node or own, **given)  # type: ignore[arg-type]


class AsyncWorker:
    """A loop over a queue, for asyncio: `await run()` until `stop` is called, or SIGTERM comes."""

    def __init__(self, client: AsyncClient, handler: Handler, options: WorkerOptions) -> None:
        self.counts = Counts()
        # By Ctrl-C, not by SIGTERM or `stop`.
        self.was_interrupted = False
        self._client = client
        self._handler = handler
        self._options = options
        self._held: dict[int, Job] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None

    def stop(self) -> None:
        """Claims no more; `run` returns when what is running has ended. Call it from the loop."""
        self._stopping.set()

    def _interrupt(self) -> None:
        self.was_interrupted = True
        self.stop()

    async def run(self) -> Counts:
        """Works until stopped. Raises what no waiting would mend, such as TopicNotFound."""
        if not inspect.iscoroutinefunction(self._handler):
            self._threads = ThreadPoolExecutor(self._options.concurrency, "topics-worker")
        keeper = asyncio.create_task(self._keep())
        try:
            with _signals(self.stop, self._interrupt):
                await self._claim_all()
        finally:
            await self._finish()
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            if self._threads is not None:
                self._threads.shutdown(wait=False)
        return self.counts

    async def _claim_all(self) -> None:
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                room = self._options.concurrency - len(self._running)
                if room == 0:
                    await _first(*self._running, stopped)
                    continue
                claim = asyncio.create_task(self._claim(room))
                await _first(claim, stopped)
                if not claim.done():
                    claim.cancel()
                    await asyncio.gather(claim, return_exceptions=True)
                    return
                jobs = claim.result()
                if not jobs and self._options.idle_s is not None and not self._running:
                    return
                for job in jobs:
                    self._held[job.seq] = job
                    task = asyncio.create_task(self._work(job))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
        finally:
            stopped.cancel()

    async def _claim(self, room: int) -> list[Job]:
        options = self._options
        idle_s = options.idle_s
        wait_ms = CLAIM_WAIT_MS if idle_s is None else min(int(idle_s * 1000), CLAIM_WAIT_MS)
        while True:
            try:
                claimed = await self._client.claim(
                    options.queue, options.node, room, lease_ms=options.lease_ms, wait_ms=wait_ms
                )
                return claimed.claimed
            except TopicsError as error:
                # Not the same as an empty queue: it is tried for as long as it takes.
                if not is_transient(error):
                    raise
                LOG.warning("no jobs of %s for now: %s", options.queue, error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.5))

    async def _work(self, job: Job) -> None:
        try:
            await self._handle(job)
        except asyncio.CancelledError:
            await self._nack(job, 0)
            raise
        except Exception as error:
            self.counts.failed += 1
            LOG.exception("job %d of %s failed: %s", job.seq, self._options.queue, error)
            await self._nack(job, self._delay_ms(job))
        else:
            await self._ack(job)
        finally:
            self._held.pop(job.seq, None)

    async def _handle(self, job: Job) -> None:
        if self._threads is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._handler, job)
        else:
            result = self._handler(job)
            assert result is not None
            await result

    async def _ack(self, job: Job) -> None:
        options = self._options
        try:
            told = await self._client.ack(
                options.queue, options.node, [job.seq], lease_ids=[job.lease_id]
            )
        except TopicsError as error:
            # It may have been acknowledged; if not, it is delivered again when its lease is over.
            LOG.warning(
                "job %d of %s is done, but not acknowledged: %s", job.seq, options.queue, error
            )
            self.counts.lost += 1
            return
        # Skipped although nobody said it was lost: the answer to an earlier try of this ack was.
        if told.acked or job.seq in self._held:
            self.counts.done += 1
        else:
            self.counts.lost += 1

    async def _nack(self, job: Job, delay_ms: int) -> None:
        options = self._options
        try:
            await self._client.nack(
                options.queue, options.node, [job.seq], delay_ms=delay_ms, lease_ids=[job.lease_id]
            )
        except TopicsError as error:
            LOG.warning("job %d of %s was not given back: %s", job.seq, options.queue, error)

    def _delay_ms(self, job: Job) -> int:
        options = self._options
        doubled = options.backoff_ms * 2 ** min(job.deliveries - 1, 30)
        return int(min(doubled, options.backoff_ms_max) * random.uniform(0.75, 1.25))

    async def _keep(self) -> None:
        """Extends the leases of all that is running, until it is cancelled."""
        options = self._options
        while True:
            await asyncio.sleep(options.lease_ms * EXTEND_SHARE / 1000)
            held = list(self._held.values())
            if not held:
                continue
            try:
                told = await self._client.extend(
                    options.queue, options.node, [job.seq for job in held], options.lease_ms,
                    lease_ids=[job.lease_id for job in held],
                )  # fmt: skip
            except TopicsError as error:
                LOG.warning("leases of %s were not extended: %s", options.queue, error)
                continue
            for seq in told.skipped:
                if self._held.pop(seq, None) is not None:
                    LOG.warning("job %d of %s is no longer ours", seq, options.queue)

    async def _finish(self) -> None:
        """Lets what is running end, for a while; then it is cancelled and given back."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._options.grace_s)
        left = list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Worker:
    """A loop over a queue: `run` blocks until `stop` is called from elsewhere, or SIGTERM comes."""

    def __init__(self, client_options: Options, handler: Handler, options: WorkerOptions) -> None:
        self._client_options = client_options
        self._handler = handler
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: AsyncWorker | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    @property
    def counts(self) -> Counts:
        return Counts() if self._worker is None else self._worker.counts

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, not SIGTERM or `stop`."""
        return self._worker is not None and self._worker.was_interrupted

    def run(self) -> Counts:
        """Works until stopped. Raises what no waiting would mend, such as TopicNotFound."""
        return asyncio.run(self._run())

    async def _run(self) -> Counts:
        from topics.client.async_client import AsyncClient

        async with AsyncClient.of(self._client_options) as client:
            with self._lock:
                self._loop = asyncio.get_running_loop()
                self._worker = AsyncWorker(client, self._handler, self._options)
                if self._is_stopped:
                    self._worker.stop()
            return await self._worker.run()

    def stop(self) -> None:
        """Claims no more; `run` returns when what is running has ended. From any thread."""
        with self._lock:
            self._is_stopped = True
            if self._loop is not None and self._worker is not None:
                try:
                    self._loop.call_soon_threadsafe(self._worker.stop)
                except RuntimeError:
                    pass  # It has ended already.


async def _first(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


@contextmanager
def _signals(stop: Callable[[], None], interrupt: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop gently, where this thread is the one that hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    calls = {signal.SIGTERM: stop, signal.SIGINT: interrupt}
    for number, call in calls.items():
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in calls:
            loop.remove_signal_handler(number)
