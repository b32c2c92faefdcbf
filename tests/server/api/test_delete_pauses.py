"""However much a delete removes, everybody else is served meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Client, Served
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.settings import Settings

BATCH = 1000
# What is written, by number, and what removes it: scattered, all of one tag, all, every second.
SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "glob": (lambda n: f"t-{n}", {"match": ["tag", "Glob", "t-*"]}),
    "eq": (lambda _: "same", {"match": "same"}),
    "before_seq": (lambda n: f"t{n % 7}", {"before_seq": 10**12}),
    "every second": (lambda n: f"{'xy'[n % 2]}{n % 1000}", {"match": ["tag", "Glob", "x*"]}),
}


def records(start: int, tag: Any) -> list[dict[str, Any]]:
    return [{"data": 0, "tag": tag(n)} for n in range(start, start + BATCH)]


class Probe(threading.Thread):
    """Asks for the server's health over and over; how long the longest answer took."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self.is_over = False
        self.longest_s = 0.0

    def run(self) -> None:
        with self._served.client() as client:
            while not self.is_over:
                began = time.perf_counter()
                client.get("/v0/health")
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
                time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_delete_does_not_stop_the_server(
    served: Served, client: Client, topic: str, shape: str
) -> None:
    """By the clock, on a machine that may be busy: a bound that one piece of work would break."""
    tag, body = SHAPES[shape]
    count = 60_000
    for start in range(0, count, BATCH):
        client.post(f"/v0/topics/{topic}", {"records": records(start, tag)})
    probe = Probe(served)
    probe.start()
    done = client.post(f"/v0/topics/{topic}/delete", body)
    time.sleep(0.2)
    probe.is_over = True
    probe.join()
    assert done.json["deleted"] == (count // 2 if shape == "every second" else count)
    assert probe.longest_s < 0.5


def longest_ms(path: Path, shape: str, count: int, *, is_sealed: bool) -> float:
    """The most of this thread's own time that any one call took, from the delete to its end."""
    tag, body = SHAPES[shape]
    settings = Settings(resident_bytes=0 if is_sealed else 1 << 40, seal_records=1 << 40)
    engine = Engine.open(str(path), settings=settings)
    engine.put_topic("t", {"durability": "disk"})
    for start in range(0, count, BATCH):
        engine.submit_append("t", request_of(records(start, tag)))
        engine.flush()
        engine.maintain()
    engine.sync()
    if is_sealed:
        engine.checkpoint()
    longest_s, ticket = 0.0, None
    while ticket is None or not ticket.done or engine.core.is_deleting:
        for call in (engine.flush, engine.poll, engine.maintain):
            began = time.thread_time()
            if ticket is None:
                ticket = engine.submit_delete(
                    "t", before_seq=body.get("before_seq"), match=body.get("match")
                )
            call()
            longest_s = max(longest_s, time.thread_time() - began)
    assert ticket.result.deleted >= count // 2
    engine.close()
    return longest_s * 1000


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_call_of_a_delete_takes_long(tmp_path: Path, shape: str, is_sealed: bool) -> None:
    assert longest_ms(tmp_path / "data", shape, 40_000, is_sealed=is_sealed) < 20


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_call_of_a_delete_of_a_million_takes_long(
    tmp_path: Path, shape: str, is_sealed: bool
) -> None:
    assert longest_ms(tmp_path / "data", shape, 1_000_000, is_sealed=is_sealed) < 20
