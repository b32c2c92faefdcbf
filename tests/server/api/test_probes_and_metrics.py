"""Is it alive, is it ready, and what do its numbers say?"""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import topics
from tests.support.servers import Client, inside
from topics.engine import gauges
from topics.server.routes import metrics

NAMES = {
    "topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live",
    "topics_bytes_live", "topics_queue_topics", "topics_queue_leases_in_flight",
    "topics_sse_connections", "topics_watch_sessions", "topics_ready", "topics_recovery_progress",
    "topics_uptime_ms", "topics_topic_head_seq", "topics_topic_earliest_seq",
    "topics_topic_records_live", "topics_topic_bytes_live", "topics_topic_queue_ready",
    "topics_topic_queue_in_flight", "topics_topic_metrics_truncated", "topics_wal_frames_total",
    "topics_wal_batches_total", "topics_wal_fsyncs_total", "topics_wal_bytes_written_total",
    "topics_wal_rotations_total", "topics_wal_submit_full_total", "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak", "topics_wal_read_only", "topics_wal_fsync_latency_us_bucket",
    "topics_wal_fsync_latency_us_sum", "topics_wal_fsync_latency_us_count",
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_is_always_ok(client: Client, path: str) -> None:
    reply = client.get(path)
    assert (reply.status, reply.json["status"]) == (200, "ok")
    assert reply.json["version"] == topics.__version__
    assert reply.json["uptime_ms"] > 0


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_counts_its_topics(client: Client, topic: str, path: str) -> None:
    before = client.get(path).json
    client.put(f"/v0/topics/{topic}")
    after = client.get(path).json
    assert (before["status"], before["wal_replay_complete"]) == ("ready", True)
    assert after["topics"] == before["topics"] + 1


def test_metrics_parse_and_have_every_name(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue", "durability": "fsync"})
    client.write(topic, 1, 2, 3)
    reply = client.get("/v0/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {}
    for family in text_string_to_metric_families(reply.raw.decode()):
        assert family.documentation
        for sample in family.samples:
            samples[sample.name, sample.labels.get("topic", "")] = sample.value
    assert {name for name, _ in samples} >= NAMES
    assert samples["topics_topic_head_seq", topic] == 3
    assert samples["topics_topic_queue_ready", topic] == 3
    assert samples["topics_ready", ""] == 1
    assert samples["topics_recovery_progress", ""] == 1
    assert samples["topics_wal_fsync_latency_us_count", ""] > 0


def test_metrics_are_json_for_those_who_ask(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"durability": "ephemeral"})
    before = client.metrics()
    client.put(f"/v0/topics/{topic}", {"durability": "memory"})
    after = client.metrics()
    assert after["topics_topics_by_class"]["ephemeral"] == (
        before["topics_topics_by_class"]["ephemeral"] - 1
    )
    assert after["topics_wal_frames_total"] > before["topics_wal_frames_total"]
    assert after["topics_topic_head_seq"][topic] == 0
    latency = after["topics_wal_fsync_latency_us"]
    assert latency["buckets"]["+Inf"] == latency["count"]


def test_many_topics_are_summed_in_slices_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "TOPICS_MAX", 3)
    monkeypatch.setattr(gauges, "SLICE_TOPICS", 2)
    with inside(tmp_path) as served, served.client() as client:
        for number in range(8):
            client.write(f"t{number}", 1, 2)
        found = client.metrics()
    assert (found["topics_topics"], found["topics_records_live"]) == (8, 16)
    assert found["topics_topics_by_class"]["disk"] == 8
    assert list(found["topics_topic_head_seq"]) == ["t0", "t1", "t2"]
    assert found["topics_topic_metrics_truncated"] == 1
