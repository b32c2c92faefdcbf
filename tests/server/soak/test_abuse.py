"""Whoever behaves hardly notices those who do not, and the server does not grow by them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from tests.server.soak.test_nothing_is_left_behind import resident_bytes
from tests.server.soak.visits import prepare
from tests.support.servers import Client, Served

Tally = Callable[..., None]
ROOT = Path(__file__).parents[3]
# One call of the bystander each.
PACE_S = 0.01
GROWTH_MAX = 1.05
SLOWER_MAX = 3.0
# Below this a percentile is noise of the machine: beside other tests, and alone.
P99_S_MIN, ALONE_P99_S_MIN = 0.02, 0.001
SETTINGS = {
    "TOPICS_RESIDENT_BYTES": "1000000", "TOPICS_BLOCK_CACHE_BYTES": "1000000",
    "TOPICS_SESSION_TTL_MS": "1000", "TOPICS_LOG_LEVEL": "error", "TOPICS_SEAL_AGE_MS": "5000",
    "TOPICS_SEAL_RECORDS": "5000",
}  # fmt: skip


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """This process, and what it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cores_apart() -> tuple[set[int], set[int]]:
    """One for the server and the others for everybody else, where there are two.

    A kernel may put whom the server wakes behind it on its core, until the next tick (4 ms) finds
    that another core is free. Clients that are elsewhere do not wait for that.
    """
    all_cores = os.sched_getaffinity(0)
    own = {min(all_cores)}
    return own, all_cores - own or own


@contextlib.contextmanager
def abused(port: int) -> Iterator[None]:
    # They are somewhere else, and take nothing of the core that the bystander has here.
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.server.soak.abuse", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
        assert process.poll() is None, "nobody did any harm"
    finally:
        process.kill()
        process.wait()


def stand_by(client: Client, seconds: float) -> list[float]:
    """How long small writes and reads take, at a pace, for a while."""
    took: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        reply = client.write("bystander", len(took))
        assert reply.status == 200, reply.raw
        page = client.diff("bystander", from_seq=reply.json["last_seq"] - 1)
        assert page.json["records"][0]["data"] == len(took)
        took.append(time.monotonic() - began)
        time.sleep(PACE_S)
    return took


def p99_s(took: list[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]


def ride(served: Served, tally: Tally, seconds: float, p99_s_min: float) -> None:
    """A tenth of the time idle, a fifth to warm up, the rest counts."""
    with served, served.client() as client:
        served.wait_ready()
        prepare(served.port)
        client.put("/v0/topics/bystander", {"cap_records": 100})
        idle_s = p99_s(stand_by(client, seconds / 10))
        took: list[float] = []
        with abused(served.port):
            stand_by(client, seconds / 5)
            sizes = [resident_bytes(served)]
            for _ in range(10):
                took += stand_by(client, seconds * 0.07)
                sizes.append(resident_bytes(served))
        assert served.stop() == 0
    tally(
        abuse_seconds=int(seconds), abuse_calls=len(took), abuse_us=int(p99_s(took) * 1e6),
        abuse_idle_us=int(idle_s * 1e6), abuse_kib=max(sizes) >> 10, abuse_first_kib=sizes[0] >> 10,
    )  # fmt: skip
    assert max(sizes) < GROWTH_MAX * sizes[0], [size >> 20 for size in sizes]
    assert p99_s(took) < SLOWER_MAX * max(idle_s, p99_s_min), (p99_s(took), idle_s)


@pytest.mark.slow
def test_a_bystander_hardly_notices_abuse(tmp_path: Path, tally: Tally) -> None:
    ride(Served(tmp_path, **SETTINGS), tally, 20, P99_S_MIN)


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.timeout(0)
def test_a_bystander_hardly_notices_abuse_for_long(
    tmp_path: Path, tally: Tally, deadline: float
) -> None:
    own, others = cores_apart()
    with on_cores(own):
        served = Served(tmp_path, **SETTINGS)
    with on_cores(others):
        ride(served, tally, max(deadline - time.monotonic(), 60), ALONE_P99_S_MIN)
