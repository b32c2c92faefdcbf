"""GET /v0/metrics: gauges of the process and of its topics, counters of the log and of requests.

Answered at any time, recovery included. With many topics the sums are taken in slices, so that a
scrape does not hold up requests; the block for each topic is bounded. What the system has to be
asked for, and the text, are made in a thread.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, get_args

import msgspec

import topics
from topics.engine.gauges import Gauges, Sums, TopicGauges
from topics.kv.bucket import Bucket
from topics.server.api.auth import READ, Key
from topics.server.api.call import Call
from topics.server.api.gauges import (
    CONTENT_TYPE,
    Family,
    Histogram,
    Metric,
    Spread,
    Table,
    as_json,
    as_text,
    one,
)
from topics.server.api.meters import EDGES_MS
from topics.server.api.route import Route
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.host import of_host
from topics.server.routes.listing import visible_prefixes
from topics.storage.wal_stats import SYNC_EDGES_US, WalStats
from topics.types import BUCKET_TOPIC, REASONS, Durability

TOPICS_MAX = 1000
CURSORS_MAX = 1000

_OF_TOPICS = (
    ("head_seq", "Highest assigned seq per topic."),
    ("earliest_seq", "First live seq per topic."),
    ("records_live", "Live records per topic."),
    ("bytes_live", "Live bytes per topic."),
)
_OF_QUEUES = (
    ("ready", "Claimable jobs per queue."),
    ("in_flight", "Leased jobs per queue."),
    ("dead_lettered", "Jobs per queue that were moved to its dead-letter topic, ever."),
)


class MetricsRoute:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET", path=path, handler=self.metrics, scopes=READ,
                waits_for_recovery=False, answers={200: dict[str, Any]},
                summary="Prometheus text, or JSON with Accept: application/json.",
            )
            for path in ("/v0/metrics", "/metrics")
        ]  # fmt: skip

    def metrics(self, call: Call) -> Answer:
        if not self._services.driver.is_ready:
            return self._answer(call, Sums())
        begin = self._services.engine.add_up
        return self._services.reading_slices(call, begin, partial(self._answer, call))

    def _answer(self, call: Call, sums: Sums) -> Answer:
        services = self._services
        gauges = services.engine.gauges() if services.driver.is_ready else Gauges()
        stats = services.engine.wal_stats if services.driver.is_ready else WalStats()
        metrics = [
            *self._process(sums, gauges), *self._requests(), *self._topics(call.key),
            *_records(gauges), *_storage(gauges), *_log(gauges, stats),
        ]  # fmt: skip
        is_json = "application/json" in call.header(b"accept").lower()
        data_dir = services.config.options.data_dir

        def render() -> Response:
            metrics.extend(of_host(data_dir))
            if not is_json:
                return Response(as_text(metrics), 200, CONTENT_TYPE)
            body = {**as_json(metrics), "performance": call.performance()}
            return Response(msgspec.json.encode(body))

        return services.rendering(call, render)

    def _process(self, sums: Sums, gauges: Gauges) -> Iterator[Metric]:
        services, is_ready = self._services, self._services.driver.is_ready
        yield Table(
            "topics_build_info", "gauge", "Version of the server and of Python; always 1.",
            ("version", "python"), [((topics.__version__, platform.python_version()), 1)],
        )  # fmt: skip
        yield one("topics_topics", "gauge", "Topics.", gauges.topics)
        yield Family(
            "topics_topics_by_class", "gauge", "Topics of each durability class.", "class",
            [(name, sums.classes[name]) for name in get_args(Durability)],
        )  # fmt: skip
        rows = (
            ("topics_routers", "Routers.", gauges.routers),
            ("topics_routers_blocked", "Routers that can not go on.", gauges.routers_blocked),
            ("topics_records_live", "Records that can be read.", sums.records),
            ("topics_bytes_live", "Bytes of records that can be read.", gauges.live_bytes),
            ("topics_stages", "Stages that wait for their commit.", gauges.stages),
            ("topics_staged_records", "Records in stages that wait.", gauges.staged_records),
            ("topics_staged_bytes", "Bytes that waiting stages take on the disk.",
             gauges.staged_bytes),
            ("topics_queue_topics", "Topics that are queues.", sums.queues),
            ("topics_queue_leases_in_flight", "Jobs under lease.", sums.in_flight),
            ("topics_queue_oldest_ready_seconds",
             "Age of the oldest job that can be claimed, of all queues; 0 without one.",
             self._age_s(sums.oldest_ready_ts)),
            ("topics_sse_connections", "Open streams and sockets.", services.delivery.connections),
            ("topics_watch_sessions", "Watch sessions.", services.watch_sessions()),
            ("topics_long_polls", "Reads and claims that wait.", len(services.waiters)),
            ("topics_ready", "Whether requests are served.", is_ready and not services.is_draining),
            ("topics_recovery_progress", "Recovery, from 0 to 1.", services.driver.progress),
            ("topics_uptime_ms", "Milliseconds since the server was started.", services.uptime_ms),
            ("topics_uptime_seconds", "Seconds since the server was started.",
             services.uptime_ms / 1000),
        )  # fmt: skip
        for name, about, value in rows:
            yield one(name, "gauge", about, value)
        yield from self._held()

    def _age_s(self, ts: int | None) -> float:
        return 0.0 if ts is None else max(self._services.clock.wall_ms() - ts, 0) / 1000

    def _requests(self) -> Iterator[Metric]:
        """What was answered, by route."""
        meters = [meter for meter in self._services.meters if any(meter.counts)]
        yield Table(
            "topics_http_requests_total", "counter",
            "Requests, and commands of WebSockets, answered by route, method and status; "
            "499 where the client left before.",
            ("route", "method", "status"),
            [
                ((meter.path, meter.method, str(status)), count)
                for meter in meters
                for status, count in meter.statuses()
            ],
        )  # fmt: skip
        yield Histogram(
            "topics_http_request_duration_seconds",
            "Time until requests were answered, by route and method. Streams count until they are "
            "opened, long polls with their wait.",
            [edge / 1000 for edge in EDGES_MS],
            [
                Spread(tuple(meter.counts), meter.total_ms / 1000, (meter.path, meter.method))
                for meter in meters
            ],
            ("route", "method"),
        )

    def _held(self) -> Iterator[Metric]:
        """What clients make the process hold, and how often that was too much."""
        server, delivery = self._services.server, self._services.delivery
        bodies, unsent = (server.bodies, server.unsent) if server is not None else (None, None)
        count, refused = (server.connection_count, server.refused_total) if server else (0, 0)
        yield one("topics_connections", "gauge", "Open connections.", count)
        yield one(
            "topics_connections_refused_total", "counter",
            "Connections refused because the process may have no more.", refused,
        )  # fmt: skip
        for name, about, ledger in (
            ("inflight_body_bytes", "Bytes of bodies that are on their way in.", bodies),
            ("unsent_bytes", "Bytes of answers that clients have not taken.", unsent),
        ):
            yield one(f"topics_{name}", "gauge", about, ledger.held_bytes if ledger else 0)
        yield Family(
            "topics_cut_total", "counter", "Clients cut because all together held too much.", "of",
            [("body", bodies.cuts if bodies else 0), ("answer", unsent.cuts if unsent else 0)],
        )  # fmt: skip
        yield one(
            "topics_slow_consumers", "gauge",
            "Streams and sockets that have something to get and take nothing.", len(delivery.slow),
        )  # fmt: skip
        yield one(
            "topics_slow_consumers_cut_total", "counter",
            "Streams and sockets that were closed because they took nothing for too long.",
            delivery.cuts,
        )  # fmt: skip

    def _topics(self, key: Key | None) -> Iterator[Metric]:
        """A block for each topic that the key may see, up to a bound."""
        services = self._services
        shown: list[TopicGauges] = []
        is_cut = False
        if services.driver.is_ready:
            engine = services.engine
            names = engine.names(visible_prefixes(key, ""), after="", limit=TOPICS_MAX + 1)
            is_cut = len(names) > TOPICS_MAX
            shown = [engine.topic_gauges(name) for name in names[:TOPICS_MAX]]
        queues = [(t.name, t.queue) for t in shown if t.queue is not None]
        for name, about in _OF_TOPICS:
            samples = [(t.name, getattr(t, name)) for t in shown]
            yield Family("topics_topic_" + name, "gauge", about, "topic", samples)
        for name, about in _OF_QUEUES:
            samples = [(topic, getattr(queue, name)) for topic, queue in queues]
            yield Family("topics_topic_queue_" + name, "gauge", about, "topic", samples)
        yield Family(
            "topics_topic_queue_oldest_ready_seconds", "gauge",
            "Age of the oldest job that can be claimed per queue; 0 without one.", "topic",
            [(t.name, self._age_s(t.oldest_ready_ts)) for t in shown if t.queue is not None],
        )  # fmt: skip
        yield one(
            "topics_topic_metrics_truncated", "gauge",
            "Whether there are more topics than are shown one by one.", is_cut,
        )  # fmt: skip
        lags: list[tuple[str, str, int]] = []
        if shown:
            every = services.engine.cursor_lags(t.name for t in shown)
            lags = list(islice(every, CURSORS_MAX + 1))
        yield from self._buckets(key)
        yield Table(
            "topics_cursor_lag", "gauge", "Seqs between a cursor and the head.",
            ("topic", "cursor"), [((topic, name), lag) for topic, name, lag in lags[:CURSORS_MAX]],
        )  # fmt: skip
        yield one(
            "topics_cursor_metrics_truncated", "gauge",
            "Whether there are more cursors than are shown one by one.", len(lags) > CURSORS_MAX,
        )  # fmt: skip

    def _buckets(self, key: Key | None) -> Iterator[Metric]:
        """Keys and markers of the buckets that the key may see and that are filled."""
        shown: list[tuple[str, Bucket]] = []
        desk = self._services.buckets
        if self._services.driver.is_ready:
            prefixes = visible_prefixes(key, BUCKET_TOPIC)
            names = desk.buckets.names(prefixes, after="", limit=TOPICS_MAX)
            every = ((name, desk.buckets.at_hand(name)) for name in names)
            shown = [(name, bucket) for name, bucket in every if bucket is not None]
        rows: list[tuple[str, str, Callable[[Bucket], float]]] = [
            ("size", "Live keys per bucket.", lambda b: len(b.index.keys)),
            ("pending_tombstones", "Markers of deleted keys per bucket that were not removed yet.",
             lambda b: len(b.index.markers)),
            ("oldest_tombstone_seconds", "Age of the oldest marker of a deleted key per bucket.",
             lambda b: self._age_s(b.index.oldest_marker_ts())),
            # The contract's name for the same, as with the time that the process runs.
            ("oldest_tombstone_age_ms", "Age of the oldest marker per bucket, in milliseconds.",
             lambda b: round(self._age_s(b.index.oldest_marker_ts()) * 1000)),
            ("tombstones_over",
             "Whether a bucket has more markers than TOPICS_KV_TOMBSTONES_WARN.",
             lambda b: int(desk.is_over(b))),
        ]  # fmt: skip
        for metric, about, value in rows:
            samples = [(name, value(bucket)) for name, bucket in shown]
            yield Family("topics_kv_" + metric, "gauge", about, "bucket", samples)


def _records(gauges: Gauges) -> Iterator[Metric]:
    """What has happened to records since the start."""
    tally = gauges.tally
    rows = (
        ("records_appended", "Records written, copies of routers and dead letters included.",
         tally.appended),
        ("records_read", "Records given to readers and claimants.", tally.read),
        ("records_evicted", "Records lost to the cap of their topic.", tally.evicted),
        ("records_expired", "Records lost to the ttl of their topic.", tally.expired),
        ("dead_letters", "Jobs moved to a dead-letter topic.", tally.dead_lettered),
        ("stages_expired", "Stages that were never committed.", gauges.stages_expired),
        ("commits", "Batches committed.", gauges.commits),
    )  # fmt: skip
    for name, about, count in rows:
        yield one(f"topics_{name}_total", "counter", about, count)
    yield Family(
        "topics_records_lost_total", "counter",
        "Seqs given up by the last recovery, by reason; some may never have been acknowledged.",
        "reason", [(REASONS[state], count) for state, count in sorted(tally.lost.items())],
    )  # fmt: skip


def _storage(gauges: Gauges) -> Iterator[Metric]:
    """Segments and their tiers."""
    tiers = (("hot", gauges.hot), ("cold", gauges.cold))
    yield Family(
        "topics_segments", "gauge", "Segments in use, in the data directory and in the cold store.",
        "tier", [(tier, count) for tier, (count, _) in tiers],
    )  # fmt: skip
    yield Family(
        "topics_tier_bytes", "gauge", "Bytes of segments in use, by tier.", "tier",
        [(tier, size) for tier, (_, size) in tiers],
    )  # fmt: skip
    space = (
        ("segment", "Bytes of sealed records, in both tiers.", gauges.segment_bytes),
        ("dead", "Bytes of what is gone that segments still hold.", gauges.dead_bytes),
    )
    for name, about, size in space:
        yield one(f"topics_{name}_bytes", "gauge", about, size)
    yield one(
        "topics_erased_bytes_total", "counter", "Bytes of what is gone that rewriting removed.",
        gauges.erased_bytes,
    )  # fmt: skip
    yield one(
        "topics_cold_failures_total", "counter", "Calls to the cold store that failed.",
        gauges.cold_failures,
    )  # fmt: skip


def _log(gauges: Gauges, stats: WalStats) -> Iterator[Metric]:
    """The write-ahead log."""
    counters = (
        ("frames", "Frames written to the log.", stats.frames_total),
        ("batches", "Groups of frames written together.", stats.batches_total),
        ("fsyncs", "Syncs of log files.", stats.fsyncs_total),
        ("bytes_written", "Bytes written to the log.", stats.bytes_written_total),
        ("rotations", "New log files begun.", stats.rotations_total),
        ("submit_full", "Writes refused because the disk was full.", stats.submit_full_total),
    )
    for name, about, count in counters:
        yield one(f"topics_wal_{name}_total", "counter", about, count)
    rows = (
        ("queue_depth", "Frames on their way to the disk.", gauges.frames),
        ("queue_depth_peak", "The most frames that were on their way to the disk at once.",
         stats.queue_depth_peak),
        ("read_only", "Whether the log refuses writes.", gauges.is_read_only),
    )  # fmt: skip
    for name, about, value in rows:
        yield one(f"topics_wal_{name}", "gauge", about, value)
    counts = tuple(stats.sync_counts)
    yield Histogram(
        "topics_wal_fsync_latency_us", "How long syncs of the log took, in microseconds.",
        SYNC_EDGES_US, [Spread(counts, stats.sync_us_sum)],
    )  # fmt: skip
    yield Histogram(
        "topics_wal_fsync_duration_seconds", "How long syncs of the log took, in seconds.",
        [edge / 1e6 for edge in SYNC_EDGES_US], [Spread(counts, stats.sync_us_sum / 1e6)],
    )  # fmt: skip
