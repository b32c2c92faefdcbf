"""`Client`: the blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from topics.client import (
    kv_calls,
    log_calls,
    queue_calls,
    reader_calls,
    stage_calls,
    stream_calls,
)
from topics.client.methods import blocking, streaming
from topics.client.options import Options, options_of
from topics.client.paging import pages
from topics.client.request import Request, result_of
from topics.client.retries import DEFAULT_RETRIES, Attempts, RetryPolicy
from topics.client.transport import transport_of
from topics.client.values import RouterSummary, TopicSummary
from topics.errors import TopicsError
from topics.signatures import readable

if TYPE_CHECKING:
    from topics.client.follow import Mode
    from topics.client.kv import Kv
    from topics.client.producer import Producer
    from topics.client.streaming import StreamRequest
    from topics.client.sync_follow import Follower
    from topics.client.sync_socket import Socket
    from topics.client.sync_stream import Stream
    from topics.client.worker import Handler, Worker
    from topics.server.embedded import Embedded

T = TypeVar("T")


@readable
class Client:
    """A server's topics. May be shared by threads; close it, or use it in a `with`.

    Without `url` and `token` those of TOPICS_URL and TOPICS_TOKEN are taken. Failures are raised as
    the errors of `topics`, the same that an engine raises. What can be repeated safely is, for as
    long as `retries` says; appends carry an idempotency key and are never written twice.
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
        self._transport = transport_of(self.options)

    @classmethod
    def embedded(
        cls,
        path: str | os.PathLike[str],
        *,
        retries: RetryPolicy = DEFAULT_RETRIES,
        **settings: Any,
    ) -> Self:
        """The topics of a data directory, opened in this process: no server, the same calls.

        A thread of its own has the engine, so this client may be shared by threads, too. Settings
        are those of `topics.Settings`. Returns when the log is recovered; `close` makes everything
        durable and lets go of the directory. Raises DirectoryLocked, FormatMismatch or CorruptData.
        """
        from topics.client.embedded import opening

        options = opening(path, retries, settings)
        client = cls.of(options)
        client._opened = options.within
        return client

    @classmethod
    def of(cls, options: Options) -> Self:
        """A client with the settings of another one."""
        client = cls.__new__(cls)
        client.options = options
        client._transport = transport_of(options)
        return client

    def send(self, request: Request[T]) -> T:
        """Sends what a call describes, again where that is safe, and returns its answer."""
        attempts: Attempts | None = None
        while True:
            try:
                return result_of(request, self._transport.exchange(request))
            except TopicsError as failed:
                error = failed
            attempts = attempts or Attempts(request, self.options.retries)
            time.sleep(attempts.pause_s_after(error))

    def receive(self, wanted: StreamRequest[T]) -> Stream[T]:
        """Opens the stream that a call describes."""
        from topics.client.streaming import told
        from topics.client.sync_stream import Stream

        return Stream(self.options, lambda own: told(own, wanted), "topics-stream")

    create_topic = blocking(log_calls.create_topic)
    change_topic = blocking(log_calls.change_topic)
    topic = blocking(log_calls.topic)
    topics = blocking(log_calls.topics)
    delete_topic = blocking(log_calls.delete_topic)
    append = blocking(log_calls.append)
    append_json = blocking(log_calls.append_json)
    delete = blocking(log_calls.delete)
    rewrite = blocking(log_calls.rewrite)
    explain = blocking(log_calls.explain)

    diff = blocking(reader_calls.diff)
    range = blocking(reader_calls.range)
    range_size = blocking(reader_calls.range_size)
    range_arrow = blocking(reader_calls.range_arrow)
    seq_at = blocking(reader_calls.seq_at)
    set_cursor = blocking(reader_calls.set_cursor)
    cursor = blocking(reader_calls.cursor)
    cursors = blocking(reader_calls.cursors)
    delete_cursor = blocking(reader_calls.delete_cursor)
    watch = blocking(reader_calls.watch)
    watch_stream = streaming(stream_calls.watch_stream)
    stream = streaming(stream_calls.stream)

    stage = blocking(stage_calls.stage)
    commit = blocking(stage_calls.commit)
    drop_stages = blocking(stage_calls.drop_stages)

    create_bucket = blocking(kv_calls.create_bucket)
    bucket = blocking(kv_calls.bucket)
    buckets = blocking(kv_calls.buckets)
    delete_bucket = blocking(kv_calls.delete_bucket)

    claim = blocking(queue_calls.claim)
    ack = blocking(queue_calls.ack)
    nack = blocking(queue_calls.nack)
    extend = blocking(queue_calls.extend)
    leases = blocking(queue_calls.leases)
    work = streaming(stream_calls.work)

    create_router = blocking(log_calls.create_router)
    router = blocking(log_calls.router)
    routers = blocking(log_calls.routers)
    delete_router = blocking(log_calls.delete_router)

    health = blocking(log_calls.health)
    ready = blocking(log_calls.ready)
    connections = blocking(log_calls.connections)
    begin_backup = blocking(log_calls.begin_backup)
    backup = blocking(log_calls.backup)
    metrics = blocking(log_calls.metrics)
    metrics_text = blocking(log_calls.metrics_text)
    openapi = blocking(log_calls.openapi)

    def kv(self, bucket: str) -> Kv:
        """A bucket of the key-value store, which its first put makes where it is missing."""
        from topics.client.kv import Kv

        return Kv(self, bucket)

    def all_topics(self, *, prefix: str = "") -> Iterator[TopicSummary]:
        """Every topic, page after page."""
        for page in pages(self, lambda at: log_calls.topics(prefix=prefix, cursor=at)):
            yield from page.topics

    def all_routers(self, *, prefix: str = "") -> Iterator[RouterSummary]:
        """Every router, page after page."""
        for page in pages(self, lambda at: log_calls.routers(prefix=prefix, cursor=at)):
            yield from page.routers

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
    ) -> Follower:
        """Records and gaps of topics as they come, each once and in order, over interruptions.

        It begins after `from_seq` (one, or one for each topic), at a time, at the tail, or where
        the named `cursor` stands, which `commit` moves. It ends when all topics were deleted.
        Raises TopicNotFound.
        """
        from topics.client.sync_follow import Follower, Wanted

        wanted = Wanted(
            topics, from_seq=from_seq, from_ts_ms=from_ts_ms, tail=tail, cursor=cursor, node=node,
            include_tags=include_tags, include_meta=include_meta, mode=mode,
        )  # fmt: skip
        return Follower(self, wanted)

    def socket(self) -> Socket:
        """A WebSocket to subscribe and publish over; use it in a `with`.

        A log in this process (`embedded`) has none.
        """
        from topics.client.sync_socket import Socket

        return Socket(self.options)

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
    ) -> Worker:
        """Handles the jobs of a queue, `concurrency` at a time, until it is stopped.

        A handler that returns has its job acknowledged; one that raises has it given back with a
        growing delay, and after the queue's `max_deliveries` it is a dead letter. Leases are
        extended while handlers run. `idle_s` ends the work when there has been none for so long.
        """
        from topics.client.worker import Worker, options_of

        options = options_of(
            queue, node, concurrency=concurrency, lease_ms=lease_ms, backoff_ms=backoff_ms,
            backoff_ms_max=backoff_ms_max, grace_s=grace_s, idle_s=idle_s,
        )  # fmt: skip
        return Worker(self.options, handler, options)

    def producer(
        self,
        *,
        linger_ms: float = 5.0,
        batch_records: int = 5_000,
        batch_bytes: int = 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
    ) -> Producer:
        """Sends records in batches: in order for each topic, with a receipt for each record.

        A batch leaves when it has so many records or bytes, or after `linger_ms`. At most
        `buffer_bytes` wait; then `send` waits. Nothing is lost on `close`, which raises the first
        failure.
        """
        from topics.client.outbox import Bounds
        from topics.client.producer import Producer

        bounds = Bounds(linger_ms, batch_records, batch_bytes, buffer_bytes)
        return Producer(self.options, bounds)

    def close(self) -> None:
        """Closes the connections. Calls that still wait fail as Unreachable.

        What `embedded` has opened is closed for producers, workers and followers, too.
        """
        self._transport.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
