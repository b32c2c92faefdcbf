"""GET /v0/metrics: gauges of the process and of its topics, counters of the log.

Answered at any time, recovery included. With many topics the sums are taken in slices, so that a
scrape does not hold up requests; the block for each topic is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, get_args

import msgspec

from topics.engine.commit.core import Core
from topics.engine.ops.catalog import queue_state
from topics.engine.state.topic import Topic
from topics.server.api.auth import READ, Key
from topics.server.api.call import Call
from topics.server.api.gauges import (
    CONTENT_TYPE,
    Family,
    Histogram,
    Metric,
    Pairs,
    as_json,
    as_text,
    one,
)
from topics.server.api.route import Route
from topics.server.http.message import PENDING, Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.listing import visible_prefixes
from topics.storage.wal import SYNC_EDGES_US, WalStats
from topics.types import Durability

TOPICS_MAX = 1000
CURSORS_MAX = 1000
SLICE_TOPICS = 4000


class Sums:
    """What has to be added up over all topics."""

    def __init__(self) -> None:
        self.records = 0
        self.queues = 0
        self.in_flight = 0
        self.classes: Counter[str] = Counter()

    def add(self, core: Core, topics: Iterator[Topic]) -> None:
        for topic in topics:
            self.records += topic.live_count
            self.classes[topic.config.durability] += 1
            queue = queue_state(core, topic)
            if queue is not None:
                self.queues += 1
                self.in_flight += queue.in_flight


class MetricsRoute:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET", path="/v0/metrics", handler=self.metrics, scopes=READ,
                waits_for_recovery=False, answers={200: dict[str, Any]},
                summary="Prometheus text, or JSON with Accept: application/json.",
            )
        ]  # fmt: skip

    def metrics(self, call: Call) -> Answer:
        services = self._services
        if not services.driver.is_ready:
            return self._answer(call, Sums())
        topics = iter(list(services.engine.core.by_id.values()))
        sums = Sums()
        sums.add(services.engine.core, islice(topics, SLICE_TOPICS))
        rest = next(topics, None)
        if rest is None:
            return self._answer(call, sums)
        self._go_on(call, sums, rest, topics)
        return PENDING

    def _go_on(self, call: Call, sums: Sums, head: Topic | None, topics: Iterator[Topic]) -> None:
        if head is None:
            call.respond(self._answer(call, sums))
            return
        sums.add(self._services.engine.core, chain((head,), islice(topics, SLICE_TOPICS)))
        self._services.loop.call_soon(self._go_on, call, sums, next(topics, None), topics)

    def _answer(self, call: Call, sums: Sums) -> Response:
        metrics = [*self._process(sums), *self._topics(call.key), *self._log()]
        if "application/json" not in call.header(b"accept").lower():
            return Response(as_text(metrics), 200, CONTENT_TYPE)
        body = {**as_json(metrics), "performance": call.performance()}
        return Response(msgspec.json.encode(body))

    def _process(self, sums: Sums) -> Iterator[Metric]:
        services, counts = self._services, self._services.counts
        is_ready = services.driver.is_ready
        core = services.engine.core if is_ready else None
        yield one("topics_topics", "gauge", "Topics.", len(core.by_name) if core else 0)
        yield Family(
            "topics_topics_by_class", "gauge", "Topics of each durability class.", "class",
            [(name, sums.classes[name]) for name in get_args(Durability)],
        )  # fmt: skip
        rows = (
            ("topics_routers", "Routers.", counts.routers()),
            ("topics_routers_blocked", "Routers that can not go on.", _blocked(core)),
            ("topics_records_live", "Records that can be read.", sums.records),
            ("topics_bytes_live", "Bytes of them.", core.live_bytes if core else 0),
            ("topics_queue_topics", "Topics that are queues.", sums.queues),
            ("topics_queue_leases_in_flight", "Jobs under lease.", sums.in_flight),
            ("topics_sse_connections", "Open streams and sockets.", counts.sse_connections()),
            ("topics_watch_sessions", "Watch sessions.", counts.watch_sessions()),
            ("topics_long_polls", "Reads and claims that wait.", len(services.waiters)),
            ("topics_ready", "Whether requests are served.", is_ready and not services.is_draining),
            ("topics_recovery_progress", "Recovery, from 0 to 1.", services.driver.progress),
            ("topics_uptime_ms", "Milliseconds since the start.", services.uptime_ms),
        )
        for name, about, value in rows:
            yield one(name, "gauge", about, value)
        yield from self._held()

    def _held(self) -> Iterator[Metric]:
        """What clients make the process hold, and how often that was too much."""
        server = self._services.counts.server
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

    def _topics(self, key: Key | None) -> Iterator[Metric]:
        """A block for each topic that the key may see, up to a bound."""
        services = self._services
        shown: list[Topic] = []
        if services.driver.is_ready:
            core = services.engine.core
            names = core.names.page(visible_prefixes(key, ""), after="", limit=TOPICS_MAX + 1)
            shown = [core.by_name[name] for name in names]
        is_cut = len(shown) > TOPICS_MAX
        shown = shown[:TOPICS_MAX]
        states = [(t.name, queue_state(services.engine.core, t)) for t in shown]
        queues = [(name, queue) for name, queue in states if queue is not None]
        columns: tuple[tuple[str, str, list[tuple[str, float]]], ...] = (
            ("head_seq", "Highest assigned seq per topic.", [(t.name, t.head) for t in shown]),
            ("earliest_seq", "First live seq per topic.", [(t.name, t.floor) for t in shown]),
            ("records_live", "Live records per topic.", [(t.name, t.live_count) for t in shown]),
            ("bytes_live", "Live bytes per topic.", [(t.name, t.live_bytes) for t in shown]),
            ("queue_ready", "Claimable jobs per queue.", [(n, q.ready) for n, q in queues]),
            ("queue_in_flight", "Leased jobs per queue.", [(n, q.in_flight) for n, q in queues]),
        )
        for name, about, samples in columns:
            yield Family("topics_topic_" + name, "gauge", about, "topic", samples)
        yield one(
            "topics_topic_metrics_truncated", "gauge",
            "Whether there are more topics than are shown one by one.", is_cut,
        )  # fmt: skip
        lags = list(islice(_lags(shown), CURSORS_MAX + 1))
        yield Pairs(
            "topics_cursor_lag", "gauge", "Seqs between a cursor and the head.",
            ("topic", "cursor"), lags[:CURSORS_MAX],
        )  # fmt: skip
        yield one(
            "topics_cursor_metrics_truncated", "gauge",
            "Whether there are more cursors than are shown one by one.", len(lags) > CURSORS_MAX,
        )  # fmt: skip

    def _log(self) -> Iterator[Metric]:
        services = self._services
        stats, depth, is_read_only = WalStats(), 0, False
        if services.driver.is_ready:
            log = services.engine.core.committer
            stats = services.engine.wal_stats
            depth = log.frames_on_their_way
            is_read_only = log.poison is not None or stats.is_full
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
        failures = services.engine.core.tiering.failures_total if services.driver.is_ready else 0
        yield one(
            "topics_cold_failures_total", "counter", "Calls to the cold store that failed.",
            failures,
        )  # fmt: skip
        yield one("topics_wal_queue_depth", "gauge", "Frames on their way to the disk.", depth)
        yield one(
            "topics_wal_queue_depth_peak", "gauge", "The most of them so far.",
            stats.queue_depth_peak,
        )  # fmt: skip
        yield one("topics_wal_read_only", "gauge", "Whether the log refuses writes.", is_read_only)
        yield Histogram(
            "topics_wal_fsync_latency_us", "How long syncs of the log took, in microseconds.",
            SYNC_EDGES_US, stats.sync_counts, stats.sync_us_sum,
        )  # fmt: skip


def _lags(topics: list[Topic]) -> Iterator[tuple[str, str, float]]:
    for topic in topics:
        if topic.cursors is not None:
            for cursor in topic.cursors.standing.values():
                yield topic.name, cursor.name, topic.head - topic.place(cursor)


def _blocked(core: Core | None) -> int:
    routers = () if core is None else core.routers.by_name.values()
    return sum(bool(router.blocked) for router in routers)
