"""Rewriting beside writes, and what a topic that is overwritten takes on the disk.

A topic of 2 GB, all of it in segments, loses every other record by its tag. Then it is rewritten by
a call, while another connection writes single records to other topics at a fixed rate; beside it
stands the same rate before, with nothing else to do. What is measured is the time from a write to
its answer.

Then a topic is overwritten ten times over, each record deleted by its key after it was written
anew, and nobody calls anything: what its segments take once they have settled, as a multiple of its
live bytes.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path

from bench.bodies import batch
from bench.report import Report, percentile
from bench.routers import Link
from bench.sse import served

TOTAL_BYTES = 2 * 1000**3
RATE = 500
IDLE_S = 20.0
SLOWER_MAX = "≤ 2"
SETTLED_MAX = "≤ 2"
KEYS, ROUNDS = 10_000, 11
ONE = batch(1)


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (port, _):
        _beside_writes(report, port)
    with tempfile.TemporaryDirectory() as name:
        variables = {"TOPICS_SEAL_BYTES": str(4 * 1024**2), "TOPICS_SEAL_AGE_MS": "1000"}
        with served(Path(name), **variables) as (port, _):
            _settling(report, port, Path(name))


def _beside_writes(report: Report, port: int) -> None:
    link = Link(port)
    fill(link, TOTAL_BYTES)
    writers = {name: Writer(port, name) for name in ("disk", "fsync")}
    # All of it is in segments, and nothing else is to be done.
    link.call("POST", "/v0/topics/small-disk/rewrite", b"")
    idle = {name: writer.measure(IDLE_S) for name, writer in writers.items()}
    link.call("POST", "/v0/topics/big/delete", b'{"match":"gone"}')
    done = threading.Event()
    answer: dict[str, int] = {}
    began = time.monotonic()

    def ask() -> None:
        answer.update(json.loads(Link(port).call("POST", "/v0/topics/big/rewrite", b"")))
        done.set()

    asker = threading.Thread(target=ask)
    asker.start()
    busy: dict[str, list[float]] = {name: [] for name in writers}
    while not done.is_set():
        for name, writer in writers.items():
            busy[name] += writer.measure(1.0)
    asker.join()
    report.add("rewrite of 2 GB, half of it gone", time.monotonic() - began, "s")
    report.add("bytes of the topic before", answer["bytes_before"] / 1e6, "MB")
    report.add("bytes of the topic after", answer["bytes_after"] / 1e6, "MB")
    for name in writers:
        compare(report, name, idle[name], busy[name], "a rewrite")


def fill(link: Link, size: int) -> None:
    """A topic `big` of so many bytes, every other record with the tag `gone`."""
    body = batch(1000, ["gone" if n % 2 else "kept" for n in range(1000)])
    link.call("PUT", "/v0/topics/big")
    while True:
        link.call("POST", "/v0/topics/big", body)
        if json.loads(link.call("GET", "/v0/topics/big", b""))["bytes"] >= size:
            return


def compare(report: Report, name: str, idle: list[float], busy: list[float], what: str) -> None:
    """Writes with nothing else to do, and beside something."""
    before, beside = percentile(idle, 0.99), percentile(busy, 0.99)
    report.add(f"single writes, {name}, idle, p99", before * 1e3, "ms")
    report.add(f"the same, longest of {len(idle)}", max(idle) * 1e3, "ms")
    report.add(f"single writes, {name}, beside {what}, p99", beside * 1e3, "ms")
    report.add(f"the same, longest of {len(busy)}", max(busy) * 1e3, "ms")
    report.add(f"p99 beside {what}, {name}", beside / before, "× idle", SLOWER_MAX)


class Writer:
    """Single writes to a topic of one class, at a fixed rate."""

    def __init__(self, port: int, durability: str) -> None:
        self._link = Link(port)
        self._path = f"/v0/topics/small-{durability}"
        self._link.call("PUT", self._path, json.dumps({"durability": durability}).encode())

    def measure(self, seconds: float) -> list[float]:
        """How long each write took; one that is late is sent at once."""
        taken = []
        due = stop = time.perf_counter()
        stop += seconds
        while due < stop:
            time.sleep(max(due - time.perf_counter(), 0))
            began = time.perf_counter()
            self._link.call("POST", self._path, ONE)
            taken.append(time.perf_counter() - began)
            due = max(due + 1 / RATE, time.perf_counter() - 1 / RATE)
        return taken


def _settling(report: Report, port: int, directory: Path) -> None:
    link = Link(port)
    for turn in range(ROUNDS):
        for start in range(0, KEYS, 1000):
            tags = [f"{turn}:{key % 10}" for key in range(start, start + 1000)]
            link.call("POST", "/v0/topics/over", batch(1000, tags))
            if turn:
                gone = json.dumps({"match": f"{turn - 1}:{start // 1000}"}).encode()
                link.call("POST", "/v0/topics/over/delete", gone)
    live = int(json.loads(link.call("GET", "/v0/topics/over", b""))["bytes"])
    taken, since = _segments(directory), time.monotonic()
    report.add("overwritten ten times: live", live / 1e6, "MB")
    report.add("its segments when the last write is answered", taken / live, "× live")
    while time.monotonic() - since < 10.0:
        time.sleep(0.2)
        now = _segments(directory)
        if now != taken:
            taken, since = now, time.monotonic()
    report.add("its segments once they have settled", taken / live, "× live", SETTLED_MAX)


def _segments(directory: Path) -> int:
    total = 0
    for path in directory.glob("*/seg/*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
