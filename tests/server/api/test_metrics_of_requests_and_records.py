"""What an operator can count: requests by route, what became of records, the disk, the process."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import InvalidStatus

import topics
from tests.support.servers import Client, Inside, Served, inside
from tests.support.streams import Socket

PROCESS = {
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes",
    "process_start_time_seconds", "process_open_fds", "process_max_fds",
}  # fmt: skip
# A HELP line is read alone, beside nothing that it could refer to.
DANGLING = re.compile(r"\b(them|these|those|the same|as above|it)\b", re.IGNORECASE)


def requests_of(client: Client, route: str, method: str) -> dict[str, int]:
    found = client.metrics()["topics_http_requests_total"]
    return dict(found.get(route, {}).get(method, {}))


def test_requests_are_counted_by_route_method_and_status(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        for _ in range(3):
            client.write("a", 1)
        client.write("a", 1, 2)
        client.diff("a")
        client.diff("missing")
        client.post("/v0/topics/a/diff", b"{")
        client.get("/v0/nowhere")
        client.call("PATCH", "/v0/topics/a/diff", {})
        assert requests_of(client, "/v0/topics/:topic", "POST") == {"200": 3, "201": 1}
        assert requests_of(client, "/v0/topics/:topic/diff", "POST") == {
            "200": 1, "400": 1, "404": 1,
        }  # fmt: skip
        assert requests_of(client, "(none)", "") == {"404": 1, "405": 1}
        spread = client.metrics()["topics_http_request_duration_seconds"]
    written = spread["/v0/topics/:topic"]["POST"]
    assert written["count"] == written["buckets"]["+Inf"] == 4
    assert 0 < written["sum"] < 10
    assert list(written["buckets"]) == [
        "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.05", "0.25", "1", "10", "+Inf",
    ]  # fmt: skip


def test_what_is_refused_before_its_body_came_counts_for_its_route(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_API_KEYS="root-secret,reader:r") as served:
        with socket.create_connection(("127.0.0.1", served.port)) as peer:
            peer.sendall(
                b"POST /v0/topics/a HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert b" 401 " in peer.recv(4096)
        with socket.create_connection(("127.0.0.1", served.port)) as peer:
            peer.sendall(b"no HTTP at all\r\n\r\n")
            assert b" 400 " in peer.recv(4096)
        with served.client("reader") as client:
            assert client.write("a", 1).status == 403
            assert requests_of(client, "/v0/topics/:topic", "POST") == {"401": 1, "403": 1}
            assert requests_of(client, "(none)", "") == {"400": 1}


def test_streams_sockets_and_clients_that_left_are_counted_once(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        client.write("a", 1)
        with socket.create_connection(("127.0.0.1", served.port)) as peer:
            peer.sendall(b"GET /v0/topics/a/stream?from_seq=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in peer.recv(4096)
        with socket.create_connection(("127.0.0.1", served.port)) as peer:
            peer.sendall(
                b"POST /v0/topics/a/diff HTTP/1.1\r\nHost: localhost\r\nContent-Length: 31\r\n"
                b'Content-Type: application/json\r\n\r\n{"from_seq":1, "wait_ms":30000}'
            )
            served.wait_until(lambda: len(served.services.waiters) == 1)
        served.wait_until(lambda: len(served.services.waiters) == 0)
        assert requests_of(client, "/v0/topics/:topic/stream", "GET") == {"200": 1}
        assert requests_of(client, "/v0/topics/:topic/diff", "POST") == {"499": 1}


def test_a_429_is_seen(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_MAX_TOPICS="1") as served, served.client() as client:
        assert [client.write(name, 1).status for name in "ab"] == [201, 429]
        assert requests_of(client, "/v0/topics/:topic", "POST") == {"201": 1, "429": 1}


def test_commands_of_a_socket_are_counted_as_requests_are(tmp_path: Path) -> None:
    """With the status that the same request would have had: a refusal is a 429 here too."""
    settings = {"TOPICS_MAX_TOPICS": "1", "TOPICS_MAX_SSE_CONNECTIONS": "1"}
    with (
        inside(tmp_path, **settings) as served,
        served.client() as client,
        Socket(served.port) as socket,
    ):
        records = [{"data": 1}]
        for topic in ("a", "a", "b"):
            socket.ask("publish", topic=topic, records=records)
        press(served, 2.0)
        assert socket.ask("publish", topic="a", records=records)["code"] == "throttled"
        press(served, 0.0)
        socket.ask("subscribe", topic="a", from_seq=0)
        socket.ask("subscribe", topic="missing")
        socket.ask("ping")
        socket.send("dance")
        assert socket.next("error")["code"] == "invalid_request"
        with pytest.raises(InvalidStatus):
            Socket(served.port)
        commands = client.metrics()["topics_http_requests_total"]["/v0/ws"]
    assert commands == {
        "publish": {"200": 1, "201": 1, "429": 2}, "subscribe": {"200": 1, "404": 1},
        "ping": {"200": 1}, "": {"400": 1}, "GET": {"101": 1, "429": 1},
    }  # fmt: skip


def test_a_publish_beyond_the_share_of_its_key_is_a_429(tmp_path: Path) -> None:
    settings = {"TOPICS_API_KEYS": "busy,other", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with inside(tmp_path, **settings) as served, Socket(served.port, "busy") as socket:
        key = served.config.keys.find(b"busy")
        assert key is not None
        served.run(lambda: setattr(key, "inflight", 1))
        told = socket.ask("publish", topic="a", records=[{"data": 1}])
        served.run(lambda: setattr(key, "inflight", 0))
        assert told["detail"]["limit"] == "max_inflight_per_key"
        with served.client("other") as client:
            assert requests_of(client, "/v0/ws", "publish") == {"429": 1}


def press(served: Inside, level: float) -> None:
    served.run(served.services.delivery.close)
    served.run(lambda: served.services.delivery.pressure.set_level(level))


def test_records_are_counted_from_their_write_to_their_loss(tmp_path: Path) -> None:
    with inside(tmp_path) as served, served.client() as client:
        client.put("/v0/topics/capped", {"cap_records": 3})
        client.put("/v0/topics/brief", {"ttl_ms": 1})
        client.write("capped", 1, 2, 3, 4, 5)
        client.write("capped", 6)
        client.write("brief", 1, 2)
        client.diff("capped")
        time.sleep(0.01)
        client.diff("brief")
        found = client.metrics()
        assert found["topics_records_appended_total"] == 8
        assert found["topics_records_evicted_total"] == 3
        assert found["topics_records_expired_total"] == 2
        assert found["topics_records_read_total"] == 3
    with inside(tmp_path) as served, served.client() as client:
        found = client.metrics()
    for name in ("appended", "evicted", "expired", "read"):
        assert found[f"topics_records_{name}_total"] == 0, "what replay does was counted before"


def test_queues_tell_their_oldest_job_and_their_dead_letters(tmp_path: Path) -> None:
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
    with inside(tmp_path) as served, served.client() as client:
        client.put("/v0/topics/q", config)
        client.put("/v0/topics/idle", {"type": "queue"})
        client.write("q", 1)
        time.sleep(0.05)
        second_s = time.monotonic()
        client.write("q", 2)
        found = client.metrics()
        ages = found["topics_topic_queue_oldest_ready_seconds"]
        assert ages["idle"] == 0
        assert 0.05 <= ages["q"] < 30
        assert found["topics_queue_oldest_ready_seconds"] == pytest.approx(ages["q"], abs=1)
        job = client.post("/v0/topics/q/claim", {"node": "n", "max": 1}).json["claimed"][0]
        age_s = client.metrics()["topics_topic_queue_oldest_ready_seconds"]["q"]
        assert age_s <= time.monotonic() - second_s + 0.01, "the first is not ready any more"
        nack = {"node": "n", "seqs": [job["$seq"]]}
        assert client.post("/v0/topics/q/nack", nack).status == 200
        client.post("/v0/topics/q/claim", {"node": "n", "max": 1})
        found = client.metrics()
    assert found["topics_dead_letters_total"] == 1
    assert found["topics_topic_queue_dead_lettered"] == {"idle": 0, "q": 1}
    assert found["topics_topic_queue_oldest_ready_seconds"]["q"] == 0


def test_disk_tiers_process_and_build_are_shown(client: Client, topic: str) -> None:
    client.write(topic, 1)
    raw = client.get("/metrics").raw.decode()
    samples: dict[str, Any] = {}
    for family in text_string_to_metric_families(raw):
        assert not DANGLING.search(family.documentation), family.documentation
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    assert samples.keys() >= PROCESS
    assert samples["topics_disk_free_bytes"][()] < samples["topics_disk_size_bytes"][()]
    assert samples["topics_disk_used_bytes"][("wal",)] > 0
    assert set(samples["topics_segments"]) == {("hot",), ("cold",)}
    assert next(iter(samples["topics_build_info"]))[0] == topics.__version__
    assert samples["topics_uptime_seconds"][()] == pytest.approx(
        samples["topics_uptime_ms"][()] / 1000
    )
    assert samples["process_open_fds"][()] < samples["process_max_fds"][()]
    assert abs(samples["process_start_time_seconds"][()] - time.time()) < 24 * 3600
    in_us = samples["topics_wal_fsync_latency_us_sum"][()]
    assert samples["topics_wal_fsync_duration_seconds_sum"][()] == pytest.approx(in_us / 1e6)


def test_metrics_are_there_before_recovery_has_ended(tmp_path: Path) -> None:
    def never(_services: object) -> Any:
        while True:
            yield 0.5

    served: Inside
    with inside(tmp_path, never) as served, served.client() as client:
        found = client.metrics()
    assert (found["topics_ready"], found["topics_records_appended_total"]) == (0, 0)
    assert found["process_resident_memory_bytes"] > 0


@pytest.mark.slow
def test_a_cut_consumer_is_counted(tmp_path: Path) -> None:
    settings = {"TOPICS_SLOW_CONSUMER_TIMEOUT_MS": "300", "TOPICS_BUFFER_GRACE_MS": "100"}
    with Served(tmp_path, **settings) as served:
        with served.wait_ready().client() as client:
            client.write("a", 1)
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.connect(("127.0.0.1", served.port))
                peer.sendall(
                    b"GET /v0/topics/a/stream?from_seq=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
                )
                deadline = time.monotonic() + 30
                while not client.metrics()["topics_slow_consumers_cut_total"]:
                    assert time.monotonic() < deadline
                    client.write("a", *["x" * 100_000] * 5)
                    time.sleep(0.05)
        served.stop()
    line = next(line for line in served.log().splitlines() if "is cut" in line)
    assert '"kind":"stream"' in line
    assert '"peer":"127.0.0.1:' in line
    assert '"topics":["a"]' in line
