"""Topics that come, are written and are trimmed: 1,000 of them, from 32 clients at once.

Each client makes a topic, sends five writes one after the other, and deletes what is before the
last of them (`before_seq`); then the next topic. Everything waits for its answer. Creations and
deletes are synced before they are answered, so what counts is how many share a sync. The second row
is the same with the five topics of a chain of routers in place of one topic.
"""

from __future__ import annotations

import json
import selectors
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from bench.bodies import batch
from bench.report import Report
from bench.routers import Link
from bench.sse import served

TOPICS, CLIENTS, WRITES = 1000, 32, 5
ROUNDS = 3
RECORD = batch(1)
# Method, path, body.
Asked = tuple[str, str, bytes]
Script = Callable[[int], Iterator[Asked]]


def run(report: Report) -> None:
    for what, script in (("five writes each", _alone), ("chains of five", _chained)):
        best = 0.0
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as name, served(Path(name)) as (port, _):
                best = max(best, _rate(port, script))
        name = f"topics made, written and trimmed, {what}, {CLIENTS} clients"
        report.add(name, best, "topics/s")


def _alone(number: int) -> Iterator[Asked]:
    name = f"churn-{number}"
    yield "PUT", f"/v0/topics/{name}", b"{}"
    for _ in range(WRITES):
        yield "POST", f"/v0/topics/{name}", RECORD
    yield "POST", f"/v0/topics/{name}/delete", json.dumps({"before_seq": WRITES}).encode()


def _chained(number: int) -> Iterator[Asked]:
    """Every fifth number is a chain: as many topics, and a record written to the first."""
    if number % WRITES:
        return
    names = [f"chain-{number}-{place}" for place in range(WRITES)]
    for name in names:
        yield "PUT", f"/v0/topics/{name}", b"{}"
    for source, dest in pairwise(names):
        body = json.dumps({"source": source, "dest": dest}).encode()
        yield "PUT", f"/v0/routers/{source}.{dest}", body
    for _ in range(WRITES):
        yield "POST", f"/v0/topics/{names[0]}", RECORD
    for name in names:
        yield "POST", f"/v0/topics/{name}/delete", json.dumps({"before_seq": WRITES}).encode()


def _rate(port: int, script: Script) -> float:
    numbers = iter(range(TOPICS))
    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    for _ in range(CLIENTS):
        link = Link(port)
        work = _work(numbers, script)
        selector.register(link.socket, selectors.EVENT_READ, (link, work))
        link.send(*next(work))
    left = CLIENTS
    while left:
        for key, _ in selector.select():
            link, work = key.data
            link.receive()
            asked = next(work, None)
            if asked is None:
                selector.unregister(link.socket)
                link.close()
                left -= 1
            else:
                link.send(*asked)
    return TOPICS / (time.perf_counter() - began)


def _work(numbers: Iterator[int], script: Script) -> Iterator[Asked]:
    for number in numbers:
        yield from script(number)
