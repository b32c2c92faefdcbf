"""`AsyncClient`: the client for asyncio; the same names as `Client`, each of them awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from topics.client import (
    kv_calls,
    log_calls,
    queue_calls,
    reader_calls,
    stage_calls,
    stream_calls,
)
from topics.client.embedded import opening
from topics.client.follow import AsyncFollower, Mode, Wanted
from topics.client.kv import AsyncKv
from topics.client.methods import awaited, streaming_later
from topics.client.options import Options, options_of
from topics.client.outbox import Bounds
from topics.client.paging import pages_later
from topics.client.producer import AsyncProducer
from topics.client.request import Request, result_of
from topics.client.retries import DEFAULT_RETRIES, Attempts, RetryPolicy
from topics.client.streaming import AsyncStream, StreamRequest
from topics.client.transport import async_transport_of
from topics.client.values import RouterSummary, TopicSummary
from topics.client.worker import AsyncWorker, Handler
from topics.client.worker import options_of as worker_options
from topics.errors import TopicsError
from topics.signatures import readable

if TYPE_CHECKING:
    from topics.client.web_socket import AsyncSocket
    from topics.server.embedded import Embedded

T = TypeVar("T")


@readable
class AsyncClient:
    """A server's topics, for one event loop; close it, or use it in an `async with`.

    All that `Client` says holds here too.
    """

    # What this client has opened itself, and closes.
    _opened: Embedded | None = None

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        ca_file: str | None = None,
        retries: RetryPolicy = DEFAULT_RETRIES,
    ) -> None:
        self.options = options_of(url, token, timeout_s=timeout_s, ca_file=ca_file, retries=retries)
        self._transport = async_transport_of(self.options)

    @classmethod
    def embedded(
        cls,
        path: str | os.PathLike[str],
        *,
        retries: RetryPolicy = DEFAULT_RETRIES,
        **settings: Any,
    ) -> Self:
        """The topics of a data directory, opened in this process, as by `Client.embedded`.

        Returns at once; the first call waits for recovery and raises what made it impossible.
        """
        options = opening(path, retries, settings)
        client = cls.of(options)
        client._opened = options.within
        return client

    @classmethod
    def of(cls, options: Options) -> Self:
        """A client with the settings of another one."""
        client = cls.__new__(cls)
        client.options = options
        client._transport = async_transport_of(options)
        return client

    async def send(self, request: Request[T]) -> T:
        """Sends what a call describes, again where that is safe, and returns its answer."""
        attempts: Attempts | None = None
        while True:
            try:
                return result_of(request, await self._transport.exchange(request))
            except TopicsError as failed:
                error = failed
            attempts = attempts or Attempts(request, self.options.retries)
            await asyncio.sleep(attempts.pause_s_after(error))

    def receive(self, wanted: StreamRequest[T]) -> AsyncStream[T]:
        """Opens the stream that a call describes."""
        return AsyncStream(self, wanted)

    create_topic = awaited(log_calls.create_topic)
    change_topic = awaited(log_calls.change_topic)
    topic = awaited(log_calls.topic)
    topics = awaited(log_calls.topics)
    delete_topic = awaited(log_calls.delete_topic)
    append = awaited(log_calls.append)
    append_json = awaited(log_calls.append_json)
    delete = awaited(log_calls.delete)
    rewrite = awaited(log_calls.rewrite)
    explain = awaited(log_calls.explain)

    diff = awaited(reader_calls.diff)
    range = awaited(reader_calls.range)
    range_size = awaited(reader_calls.range_size)
    range_arrow = awaited(reader_calls.range_arrow)
    seq_at = awaited(reader_calls.seq_at)
    set_cursor = awaited(reader_calls.set_cursor)
    cursor = awaited(reader_calls.cursor)
    cursors = awaited(reader_calls.cursors)
    delete_cursor = awaited(reader_calls.delete_cursor)
    watch = awaited(reader_calls.watch)
    watch_stream = streaming_later(stream_calls.watch_stream)
    stream = streaming_later(stream_calls.stream)

    stage = awaited(stage_calls.stage)
    commit = awaited(stage_calls.commit)
    drop_stages = awaited(stage_calls.drop_stages)

    create_bucket = awaited(kv_calls.create_bucket)
    bucket = awaited(kv_calls.bucket)
    buckets = awaited(kv_calls.buckets)
    delete_bucket = awaited(kv_calls.delete_bucket)

    claim = awaited(queue_calls.claim)
    ack = awaited(queue_calls.ack)
    nack = awaited(queue_calls.nack)
    extend = awaited(queue_calls.extend)
    leases = awaited(queue_calls.leases)
    work = streaming_later(stream_calls.work)

    create_router = awaited(log_calls.create_router)
    router = awaited(log_calls.router)
    routers = awaited(log_calls.routers)
    delete_router = awaited(log_calls.delete_router)

    health = awaited(log_calls.health)
    ready = awaited(log_calls.ready)
    connections = awaited(log_calls.connections)
    begin_backup = awaited(log_calls.begin_backup)
    backup = awaited(log_calls.backup)
    metrics = awaited(log_calls.metrics)
    metrics_text = awaited(log_calls.metrics_text)
    openapi = awaited(log_calls.openapi)

    def kv(self, bucket: str) -> AsyncKv:
        """A bucket of the key-value store, which its first put makes where it is missing."""
        return AsyncKv(self, bucket)

    async def all_topics(self, *, prefix: str = "") -> AsyncIterator[TopicSummary]:
        """Every topic, page after page."""
        described = pages_later(self, lambda at: log_calls.topics(prefix=prefix, cursor=at))
        async for page in described:
            for one in page.topics:
                yield one

    async def all_routers(self, *, prefix: str = "") -> AsyncIterator[RouterSummary]:
        """Every router, page after page."""
        described = pages_later(self, lambda at: log_calls.routers(prefix=prefix, cursor=at))
        async for page in described:
            for one in page.routers:
                yield one

    def follow(
        self,
        *topics: str,
        from_seq: int | Mapping[str, int] = 0,
        from_ts_ms: int | None = None,
        tail: bool = False,
        cursor: str | None = None,
        node: str | Sequence[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        mode: Mode = "auto",
    ) -> AsyncFollower:
        """Records and gaps of topics as they come, each once and in order, over interruptions.

        It begins after `from_seq` (one, or one for each topic), at a time, at the tail, or where
        the named `cursor` stands, which `commit` moves. It ends when all topics were deleted.
        Raises TopicNotFound.
        """
        wanted = Wanted(
            topics, from_seq=from_seq, from_ts_ms=from_ts_ms, tail=tail, cursor=cursor, node=node,
            include_tags=include_tags, include_meta=include_meta, mode=mode,
        )  # fmt: skip
        return AsyncFollower(self, wanted)

    def socket(self) -> AsyncSocket:
        """A WebSocket to subscribe and publish over; use it in an `async with`.

        A log in this process (`embedded`) has none.
        """
        from topics.client.web_socket import AsyncSocket

        return AsyncSocket(self.options)

    def worker(
        self,
        queue: str,
        handler: Handler,
        *,
        node: str | None = None,
        concurrency: int = 1,
        lease_ms: int = 30_000,
        backoff_ms: int = 1_000,
        backoff_ms_max: int = 300_000,
        grace_s: float = 30.0,
        idle_s: float | None = None,
    ) -> AsyncWorker:
        """Handles the jobs of a queue, `concurrency` at a time, until it is stopped.

        A handler that returns has its job acknowledged; one that raises has it given back with a
        growing delay, and after the queue's `max_deliveries` it is a dead letter. Leases are
        extended while handlers run. `idle_s` ends the work when there has been none for so long.
        """
        options = worker_options(
            queue, node, concurrency=concurrency, lease_ms=lease_ms, backoff_ms=backoff_ms,
            backoff_ms_max=backoff_ms_max, grace_s=grace_s, idle_s=idle_s,
        )  # fmt: skip
        return AsyncWorker(self, handler, options)

    def producer(
        self,
        *,
        linger_ms: float = 5.0,
        batch_records: int = 5_000,
        batch_bytes: int = 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
    ) -> AsyncProducer:
        """Sends records in batches: in order for each topic, with a receipt for each record.

        A batch leaves when it has so many records or bytes, or after `linger_ms`. At most
        `buffer_bytes` wait; then `send` waits. Nothing is lost on `close`, which raises the first
        failure.
        """
        return AsyncProducer(self, Bounds(linger_ms, batch_records, batch_bytes, buffer_bytes))

    def open_stream(
        self, request: Request[Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of an answer that does not end, as they come; it is not tried again."""
        return self._transport.stream(request)

    async def close(self) -> None:
        """Closes the connections. Calls that still wait fail as Unreachable."""
        await self._transport.close()
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
