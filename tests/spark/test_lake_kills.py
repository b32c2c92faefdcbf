"""Continuous sync: kill -9 of its driver and of the server, restarts, new topics, the end."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.killing import Driver, Writer, restarted
from tests.spark.lakes import LakeBeside
from tests.spark.support import Log
from tests.support.servers import Served

WAIT_S = 240.0


class Syncing(Driver):
    """`topics lake sync` as a process of its own."""

    def __init__(self, lake: LakeBeside, pattern: str, *flags: str) -> None:
        command = ["-m", "topics", "lake", "sync", pattern, "--lake", str(lake.root), *flags]
        super().__init__(
            command, lake.root.parent / "driver", TOPICS_URL=lake.log.url,
            TOPICS_SPARK_MASTER="local[2]",
        )  # fmt: skip

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert self.is_running, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)


@contextlib.contextmanager
def beside(tmp_path: Path, served: Served) -> Any:
    """A lake without a Spark of this process, beside a server that may be another one later."""
    with served.client() as client:
        log = Log(served, client, None, "killed")  # type: ignore[arg-type]
        yield LakeBeside(log, tmp_path / "lake")


def seq_of(lake: LakeBeside, topic: str) -> int:
    """How far its table is; 0 where there is none yet."""
    try:
        return max((row["_gap_to"] or row["seq"] for row in lake.rows(topic)), default=0)
    except Exception:
        return 0


def run(tmp_path: Path, kills: list[str], chance: random.Random) -> None:
    with contextlib.ExitStack() as ended:
        served = ended.enter_context(Served(tmp_path)).wait_ready()
        lake = ended.enter_context(beside(tmp_path, served))
        lake.log.client.put("/v0/topics/in", {"cap_records": 400})
        writer = Writer(served.port)
        writer.start()
        schema = tmp_path / "schema.json"
        schema.write_text('{"type": "integer", "multipleOf": 3}')
        driver = Syncing(lake, "in", "--schema", str(schema))
        ended.callback(lambda: driver.kill())
        for kill in kills:
            before = seq_of(lake, "in")
            driver.wait_until(lambda before=before: seq_of(lake, "in") > before)
            time.sleep(chance.random() * 2)
            with served.client() as client:
                tag = str(chance.randrange(writer.written))
                client.post("/v0/topics/in/delete", {"match": ["tag", "Eq", tag]})
            if kill == "driver":
                driver.kill()
                driver = Syncing(lake, "in")
            else:
                served.kill()
                served = ended.enter_context(restarted(served, tmp_path)).wait_ready()
        writer.over.set()
        writer.join()
        with served.client() as client:
            head = client.get("/v0/topics/in?touch=false").json["head_seq"]
            explained = client.get("/v0/topics/in/explain").json["ranges"]
        driver.wait_until(lambda: lake.run("status", "--json").json[0]["lag"] == 0)
        # Each record that the schema rejects becomes one dead letter, whatever was killed between.
        driver.wait_until(lambda: letters(lake) == rejected(lake) != [])
        driver.kill()
        assert lake.audit() == []
        check(lake.rows("in"), explained, head)


def letters(lake: LakeBeside) -> list[int]:
    return [letter["seq"] for letter in lake.letters("in")]


def rejected(lake: LakeBeside) -> list[int]:
    return [row["seq"] for row in lake.rows("in") if row["data"] and int(row["data"]) % 3]


def check(rows: list[dict[str, Any]], explained: list[dict[str, Any]], head: int) -> None:
    """The same as the audit, said otherwise: nothing twice, nothing missing but deletes."""
    told: list[int] = []
    for row in rows:
        told += range(row["seq"], (row["_gap_to"] or row["seq"]) + 1)
    deleted = {
        seq
        for part in explained
        if part["state"] == "deleted"
        for seq in range(part["from"], part["to"] + 1)
    }
    assert len(told) == len(set(told))
    assert set(range(1, head + 1)) - set(told) <= deleted


@pytest.mark.timeout(1200)
def test_a_sync_outlives_kills_of_driver_and_server(tmp_path: Path) -> None:
    """Three kills under eviction and deletes: no seq is unexplained and none is there twice."""
    run(tmp_path, ["driver", "server", "driver"], random.Random(2))


@pytest.mark.full(share=2)
@pytest.mark.timeout(3600)
def test_a_sync_outlives_many_kills(tmp_path: Path) -> None:
    chance = random.Random()
    run(tmp_path, [chance.choice(["driver", "server"]) for _ in range(20)], chance)


@pytest.mark.timeout(1200)
def test_a_continuous_sync_takes_new_topics_and_outlives_a_restart(tmp_path: Path) -> None:
    with contextlib.ExitStack() as ended:
        served = ended.enter_context(Served(tmp_path)).wait_ready()
        lake = ended.enter_context(beside(tmp_path, served))
        lake.log.client.put("/v0/topics/c-1", {})
        lake.log.write("c-1", 1, 2)
        driver = Syncing(lake, "c-*", "--continuous", "--json")
        ended.callback(driver.kill)
        driver.wait_until(lambda: seq_of(lake, "c-1") == 2)
        with served.client() as client:
            client.write("c-2", 1)
            client.write("d", 1)
        driver.wait_until(lambda: seq_of(lake, "c-2") == 1)
        assert served.stop() == 0
        time.sleep(3)
        served = ended.enter_context(restarted(served, tmp_path)).wait_ready()
        with served.client() as client:
            client.write("c-1", 3)
        driver.wait_until(lambda: seq_of(lake, "c-1") == 3)
        driver.process.send_signal(signal.SIGTERM)
        out, _ = driver.process.communicate(timeout=60)
        assert driver.process.returncode == 0, driver.said()
        assert [(line["topic"], line["seq"]) for line in json.loads(out)] == [
            ("c-1", 3),
            ("c-2", 1),
        ]
        assert not lake.path("d").exists()
        assert "c-1: 2 rows" in driver.said()
        assert "each further active topic costs about" in driver.said()
