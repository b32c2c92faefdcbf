"""A server from its first breath to its last: boot, recovery, drain, kill, storage failure."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Reply, Served, environment, inside
from tests.support.streams import EventSource, Refused
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.server.loop.services import Services
from topics.storage.fs import OsFs
from topics.testing import Fault, FaultFs

FAILING = """
import asyncio, os, sys
from topics.server.config import load
from topics.server.process import serve
from topics.storage.fs import OsFs
from topics.testing import Fault, FaultFs

fault = Fault("sync", nth=int(os.environ.pop("NTH")), path_contains=".wal", sync_effect="ignored",
              forever=True)
asyncio.run(serve(load(os.environ, {}), fs=FaultFs(OsFs(), fault)))
"""


def lines(served: Served) -> list[dict[str, object]]:
    return [json.loads(line) for line in served.log().splitlines()]


@pytest.mark.slow
def test_the_boot_line_says_where_and_how_open(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        first = lines(served)[0]
        served.wait_ready()
        assert served.stop() == 0
    assert first["level"] == "warning"
    message = str(first["message"])
    assert f"http://127.0.0.1:{served.port}" in message
    assert str(served.data_dir) in message
    assert "auth OFF" in message
    assert [line["message"] for line in lines(served)][-1] == "stopped"
    assert not served.port_file.exists()


@pytest.mark.slow
def test_flags_win_and_keys_are_counted_not_shown(tmp_path: Path) -> None:
    with Served(
        tmp_path, "--api-keys", "hush-1,hush-2:r", "--max-topics", "1", TOPICS_MAX_TOPICS="5"
    ) as served:
        served.wait_ready()
        with served.client("hush-1") as client:
            client.put("/v0/topics/a")
            assert client.put("/v0/topics/b").detail["max"] == 1
        assert served.stop() == 0
        assert "auth on, 2 keys" in served.log()
        assert "hush" not in served.log()


@pytest.mark.slow
def test_a_killed_server_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.wait_ready().client() as client:
        for durability in ("fsync", "disk", "memory"):
            client.put(f"/v0/topics/{durability}", {"durability": durability})
            for number in range(20):
                assert client.write(durability, number, idempotency_key=f"k{number}").status == 200
        epoch = client.get("/v0/topics/fsync").json["epoch"]
        served.kill()
    with Served(tmp_path) as served, served.wait_ready().client() as client:
        for durability in ("fsync", "disk", "memory"):
            page = client.diff(durability).json
            assert [record["data"] for record in page["records"]] == list(range(20))
            assert page["tombstone"] is None
            assert client.write(durability, 0, idempotency_key="k7").json["seqs"] == [8]
        assert client.get("/v0/topics/fsync").json["epoch"] == epoch
        assert served.stop() == 0


@pytest.mark.slow
def test_the_port_file_of_a_killed_server_does_not_mislead(tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    stale.write_text("1\n")
    with Served(tmp_path, TOPICS_PORT="0", TOPICS_PORT_FILE=str(stale)) as served:
        served.wait_ready()
        assert stale.read_text() == f"{served.port}\n"
        served.kill()
    assert stale.exists()


@pytest.mark.slow
def test_a_pipe_for_the_port_stays_a_pipe(tmp_path: Path) -> None:
    """As /dev/stdout does: the number is written to it, and nobody takes it away."""
    pipe = tmp_path / "port"
    os.mkfifo(pipe)
    variables = environment(TOPICS_PORT="0", TOPICS_DATA_DIR=str(tmp_path / "data"))
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reader:
        process = subprocess.Popen(
            [sys.executable, "-m", "topics", "serve"], stderr=subprocess.DEVNULL,
            env=variables | {"TOPICS_PORT_FILE": str(pipe)},
        )  # fmt: skip
        try:
            # A file in its place would leave nothing to read.
            assert select.select([reader], [], [], 30)[0]
            assert int(reader.read(100)) > 0
        finally:
            process.terminate()
            assert process.wait(30) == 0
    assert pipe.is_fifo()


@pytest.mark.slow
@pytest.mark.parametrize("number", quick_first([signal.SIGTERM, signal.SIGINT], 1))
def test_a_drain_answers_what_is_in_flight(tmp_path: Path, number: signal.Signals) -> None:
    with Served(tmp_path) as served, served.wait_ready().client() as client:
        client.write("a", 1)
        replies: list[Reply] = []

        def read() -> None:
            with served.client() as reader:
                replies.append(reader.diff("a", from_seq=1, wait_ms=30_000))

        waiting = threading.Thread(target=read)
        waiting.start()
        while not client.metrics()["topics_long_polls"]:
            time.sleep(0.005)
        began = time.monotonic()
        served.signal(number)
        assert served.wait() == 0
        waiting.join()
        assert time.monotonic() - began < 5
    assert (replies[0].status, replies[0].json["records"]) == (200, [])


@pytest.mark.slow
def test_readiness_is_denied_before_the_door_closes(tmp_path: Path) -> None:
    with Served(tmp_path, TOPICS_DRAIN_NOTICE_MS="30000") as served:
        with served.wait_ready().client() as client:
            served.signal(signal.SIGTERM)
            while (reply := client.get("/v0/ready")).status == 200:
                time.sleep(0.005)
            assert (reply.status, reply.code) == (503, "shutting_down")
            assert int(reply.headers["retry-after"]) >= 1
            assert client.write("a", 1).status == 201
            assert client.get("/v0/health").status == 200
        # Who can not wait says so twice.
        served.signal(signal.SIGTERM)
        assert served.wait() == 1


@pytest.mark.slow
def test_one_directory_has_one_server(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with Served(tmp_path) as served:
        served.wait_ready()
        with pytest.raises(RuntimeError):
            Served(tmp_path / "second", TOPICS_DATA_DIR=str(served.data_dir))
        assert not (tmp_path / "second" / "port").exists()
        assert served.stop() == 0


@pytest.mark.slow
def test_a_port_in_use_is_said_plainly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(RuntimeError, match="in use"):
            Served(tmp_path, TOPICS_PORT=port)


def test_probes_are_answered_during_recovery(tmp_path: Path) -> None:
    go_on = threading.Event()

    def slowly(services: Services) -> Generator[float, None, Engine]:
        steps = Engine.opening(str(tmp_path), settings=services.settings)
        while not go_on.is_set():
            yield 0.25
        return (yield from steps)

    with inside(tmp_path, slowly, TOPICS_API_KEYS="s") as served, served.client("s") as client:
        for path in ("/v0/ready", "/readyz"):
            reply = client.get(path)
            assert (reply.status, reply.code) == (503, "not_ready")
            assert reply.detail["replay_progress"] in (0.0, 0.25)
            assert int(reply.headers["retry-after"]) >= 1
        assert client.get("/v0/health").status == 200
        metrics = client.get("/v0/metrics", Accept="application/json")
        assert metrics.status == 200
        assert metrics.json["topics_ready"] == 0
        assert metrics.json["topics_recovery_progress"] == 0.25
        for reply in (client.write("a", 1), client.diff("a"), client.get("/v0/topics")):
            assert (reply.status, reply.code) == (503, "not_ready")
        # Who may not come in is not told how far we are.
        assert client.with_token("x").get("/v0/topics").status == 401
        go_on.set()
        served.wait_until(lambda: served.services.driver.is_ready)
        assert client.write("a", 1).status == 201


def test_a_stream_that_is_asked_for_during_recovery_opens_after_it(tmp_path: Path) -> None:
    """A browser's EventSource does not come back after a 503."""
    with Engine.open(str(tmp_path)) as engine:
        engine.append("t", [{"data": 1}])
    go_on = threading.Event()

    def slowly(services: Services) -> Generator[float, None, Engine]:
        steps = Engine.opening(str(tmp_path), settings=services.settings)
        while not go_on.is_set():
            yield 0.25
        return (yield from steps)

    keys = {"TOPICS_API_KEYS": "s,other:write"}
    with inside(tmp_path, slowly, **keys) as served, ThreadPoolExecutor(3) as pool:
        key = {"Authorization": "Bearer s"}

        def first(path: str, **headers: str) -> Any:
            try:
                with EventSource(served.port, path, **headers) as events:
                    return events.next().name
            except Refused as refused:
                return refused.code

        asked = [
            pool.submit(first, path, **key)
            for path in ("/v0/topics/t/stream", "/v0/watch/none", "/v0/topics/t/work?node=w")
        ]
        time.sleep(0.2)
        assert not any(future.done() for future in asked)
        # Who may not come in does not wait.
        assert first("/v0/topics/t/stream") == "unauthorized"
        assert first("/v0/topics/t/stream", Authorization="Bearer other") == "forbidden"
        go_on.set()
        found = [future.result(20) for future in asked]
        assert found == ["record", "not_found", "not_a_queue"]


def test_a_server_can_be_stopped_while_it_recovers(tmp_path: Path) -> None:
    def forever(services: Services) -> Generator[float, None, Engine]:
        while True:
            yield 0.5

    with inside(tmp_path, forever) as served, served.client() as client:
        assert client.get("/v0/ready").code == "not_ready"


@pytest.mark.slow
def test_a_failed_sync_is_told_and_ends_the_process(tmp_path: Path) -> None:
    """The outcome is unknown, and said to be; the next start knows which it was."""
    with Served(tmp_path, script=FAILING, NTH="9") as served:
        outcomes = []
        with served.wait_ready().client() as client:
            for number in range(40):
                reply = client.write("a", number, config={"durability": "fsync"})
                outcomes.append((reply.status, reply.code))
                if reply.status >= 500:
                    break
        assert outcomes[-1] == (503, "outcome_unknown")
        assert all(status < 300 for status, _ in outcomes[:-1])
        assert served.wait() == 1
    acknowledged = len(outcomes) - 1
    with Served(tmp_path) as served, served.wait_ready().client() as client:
        if acknowledged:
            found = [record["data"] for record in client.diff("a").json["records"]]
            assert found in (list(range(acknowledged)), list(range(acknowledged + 1)))
        assert served.stop() == 0


def test_a_full_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    fault = Fault("allocate", errno=28, forever=True, nth=10**9)
    small = {"TOPICS_WAL_FILE_BYTES": "65536", "TOPICS_WAL_RESERVE_BYTES": "4096"}

    def opening(services: Services) -> Generator[float, None, Engine]:
        return Engine.opening(str(tmp_path), settings=services.settings, fs=FaultFs(OsFs(), fault))

    with inside(tmp_path, opening, **small) as served, served.client() as client:
        served.wait_until(lambda: served.services.driver.is_ready)
        assert client.write("a", "x").status == 201
        fault.nth = 1
        replies = [client.write("a", "x" * 10_000) for _ in range(10)]
        stored = [reply.status for reply in replies].count(200)
        full = replies[-1]
        assert (full.status, full.code) == (507, "disk_full")
        assert 1 <= stored < 10
        assert client.get("/v0/topics/a").json["head_seq"] == 1 + stored
        assert len(client.diff("a").json["records"]) == 1 + stored
        metrics = client.metrics()
        assert metrics["topics_wal_read_only"] == 1
        assert metrics["topics_wal_submit_full_total"] > 0
        fault.nth = 10**9
        assert client.write("a", "x" * 10_000).json["seqs"] == [2 + stored]
        assert client.metrics()["topics_wal_read_only"] == 0


def test_cold_records_are_fetched_beside_the_loop(tmp_path: Path) -> None:
    cold = {
        "TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_BYTES": "0",
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_BLOCK_CACHE_BYTES": "0",
    }  # fmt: skip
    with inside(tmp_path / "data", **cold) as served, served.client() as client:
        client.write("a", *[f"{n:0>2000}" for n in range(800)])
        served.run(lambda: served.services.engine.checkpoint())
        segments = served.run(lambda: list(served.services.engine.core.segments.live.values()))
        assert segments
        assert all(segment.is_cold for segment in segments)
        found, cursor = [], 0
        while cursor < 800:
            page = client.diff("a", from_seq=cursor, limit=100, wait_ms=30_000).json
            found += [record["$seq"] for record in page["records"]]
            cursor = page["next_from_seq"]
        assert found == list(range(1, 801))
        client.post("/v0/topics/b", {"records": [{"data": n, "tag": f"t{n}"} for n in range(9)]})
        served.run(lambda: served.services.engine.checkpoint())
    with inside(tmp_path / "data", **cold) as served, served.client() as client:
        topic = served.services.engine.core.by_name["b"]
        # As recovery leaves it before maintenance comes by.
        topic.tags, topic.untagged = None, list(topic.blocks)
        asked = {"match": ["tag", "Glob", "t*"]}
        assert client.post("/v0/topics/b/delete", asked).json["deleted"] == 9


@pytest.mark.slow
def test_memory_topics_come_back_after_readiness(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.wait_ready().client() as client:
        for number in range(5):
            client.put(f"/v0/topics/m{number}", {"durability": "memory"})
            client.write(f"m{number}", number)
        assert served.stop() == 0
    with Served(tmp_path) as served, served.wait_ready().client() as client:
        deadline = time.monotonic() + 10
        while not client.get("/v0/ready").json["wal_replay_complete"]:
            assert time.monotonic() < deadline
        counts = {
            entry["topic"]: entry["count"] for entry in client.get("/v0/topics").json["topics"]
        }
        assert counts == {f"m{number}": 1 for number in range(5)}
        assert served.stop() == 0


def test_a_step_of_the_end_that_fails_takes_nothing_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OverflowError("something of a client's can not be stored")

    with inside(tmp_path) as served, served.client() as client:
        client.put("/v0/topics/m", {"durability": "memory"})
        client.write("m", 1, 2)
        services = served.services
        services.on_closing.insert(0, fail)
        wid = client.post("/v0/watch", {"topics": {"m": {"tail": True}}}).json["wid"]
    assert not services.driver.is_ready
    assert "the end goes on without a part of it" in caplog.text
    with inside(tmp_path) as served, served.client() as client:
        assert client.get("/v0/topics/m").json["count"] == 2
        assert client.call("HEAD", f"/v0/watch/{wid}").status == 200


def test_clients_share_one_group(tmp_path: Path) -> None:
    """Writes that arrive together are one write of the log, not one each."""
    with inside(tmp_path) as served, served.client() as client:
        client.write("a", 0)
        clients = [served.client() for _ in range(20)]
        for other in clients:
            other.get("/v0/health")
        stats = served.services.engine.wal_stats
        before = served.run(lambda: (stats.frames_total, stats.batches_total))
        body = b'{"records":[{"data":1}]}'
        with served.standing_still():
            for other in clients:
                other.connection.request(
                    "POST", "/v0/topics/a", body, {"Content-Type": "application/json"}
                )
        assert all(c.connection.getresponse().read() for c in clients)
        after = served.run(lambda: (stats.frames_total, stats.batches_total))
        for other in clients:
            other.close()
        assert client.get("/v0/topics/a").json["count"] == 21
    assert after[1] - before[1] <= 10
