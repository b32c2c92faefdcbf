"""Routers: how much later than in its source a record can be seen in its destinations.

Over HTTP on loopback: a reader waits for the destination's next record (`wait_ms`), a writer writes
one to the source, and the time is taken from the first byte of the write until the reader has its
answer. Beside it stands the same with the reader on the source: what is left is the router. Then
each write is followed, on the same connection, by a read of the destination that waits for nothing;
those that miss what was just written are counted. In-process the same is asked of the engine alone.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from bench.bodies import batch
from bench.report import Report, percentile
from bench.sse import served
from topics.engine.engine import Engine

CLASSES = ("disk", "memory", "ephemeral", "fsync")
LENGTHS = (2, 3, 4, 5)
WARM, ROUNDS = 50, 400
ADDED_MS_MAX = "≤ 0.3"
RECORD = batch(1)


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (port, _):
        for durability in CLASSES:
            _over_http(report, port, durability)
    for durability in CLASSES:
        _in_process(report, durability)


class Link:
    """One connection; requests are sent and answered apart."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def send(self, method: str, path: str, body: bytes) -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def receive(self) -> bytes:
        """The body of the next answer."""
        raw = self._left
        while b"\r\n\r\n" not in raw:
            raw += self.socket.recv(1 << 16)
        head, _, rest = raw.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{head!r} {rest!r}")
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        length = int(lower[at:].split(b"\r\n", 1)[0])
        while len(rest) < length:
            rest += self.socket.recv(1 << 16)
        self._left = rest[length:]
        return rest[:length]

    def call(self, method: str, path: str, body: bytes = b"{}") -> bytes:
        self.send(method, path, body)
        return self.receive()

    def close(self) -> None:
        self.socket.close()


def chain(durability: str, length: int) -> list[str]:
    return [f"{durability}-{length}-{number}" for number in range(length)]


def _over_http(report: Report, port: int, durability: str) -> None:
    writer, reader = Link(port), Link(port)
    plain = f"{durability}-plain"
    writer.call("PUT", f"/v0/topics/{plain}", _config(durability))
    alone = _latencies(writer, reader, plain, plain)
    base_ms = percentile(alone, 0.5)
    report.add(f"{durability}: write to seen in the topic itself, p50", base_ms, "ms")
    report.add(
        f"{durability}: write to seen in the topic itself, p99", percentile(alone, 0.99), "ms"
    )
    for length in LENGTHS:
        names = chain(durability, length)
        for name in names:
            writer.call("PUT", f"/v0/topics/{name}", _config(durability))
        for source, dest in pairwise(names):
            body = json.dumps({"source": source, "dest": dest}).encode()
            writer.call("PUT", f"/v0/routers/{source}.{dest}", body)
        taken = _latencies(writer, reader, names[0], names[-1])
        what = f"{durability}: write to seen through {length - 1} routers"
        half_ms = percentile(taken, 0.5)
        target = ADDED_MS_MAX if length == 2 and durability != "fsync" else ""
        report.add(f"{what}, p50", half_ms, "ms")
        report.add(f"{what}, added at p50", half_ms - base_ms, "ms", target)
        report.add(f"{what}, p99", percentile(taken, 0.99), "ms")
        missed = _missed(writer, names[0], names[-1])
        target = "" if durability == "fsync" else "≤ 0"
        report.add(f"{what}: reads behind a write that miss it", missed, "reads", target)
    writer.close()
    reader.close()


def _config(durability: str) -> bytes:
    return json.dumps({"durability": durability}).encode()


def _latencies(writer: Link, reader: Link, source: str, dest: str) -> list[float]:
    """Milliseconds from a write to its arrival at a reader who waits for it."""
    taken = []
    seq = 0
    for index in range(WARM + ROUNDS):
        body = b'{"from_seq":%d,"wait_ms":5000,"limit":1}' % seq
        reader.send("POST", f"/v0/topics/{dest}/diff", body)
        # The reader waits by now: an answer on the other connection came behind it.
        writer.call("GET", "/v0/health")
        began = time.perf_counter()
        writer.send("POST", f"/v0/topics/{source}", RECORD)
        writer.receive()
        page = json.loads(reader.receive())
        if index >= WARM:
            taken.append((time.perf_counter() - began) * 1000)
        seq = page["next_from_seq"]
    return taken


def _missed(link: Link, source: str, dest: str) -> int:
    """How many reads of the destination, each right behind a write, do not find it."""
    head = json.loads(link.call("GET", f"/v0/topics/{dest}"))["head_seq"]
    missed = 0
    for _ in range(ROUNDS):
        link.call("POST", f"/v0/topics/{source}", RECORD)
        page = link.call("POST", f"/v0/topics/{dest}/diff", b'{"from_seq":%d}' % head)
        seqs = [record["$seq"] for record in json.loads(page)["records"]]
        missed += seqs != [head + 1]
        head = max([head + 1, *seqs])
    return missed


def _in_process(report: Report, durability: str) -> None:
    with tempfile.TemporaryDirectory() as path, Engine.open(path) as engine:
        engine.put_topic("plain", {"durability": durability})
        for name in ("a", "b"):
            engine.put_topic(name, {"durability": durability})
        engine.put_router("r", {"source": "a", "dest": "b"})
        alone = _arrivals(engine, "plain", "plain")
        through = _arrivals(engine, "a", "b")
    what = f"in-process, {durability}: append to seen"
    report.add(f"{what} in the topic itself, p50", percentile(alone, 0.5), "ms")
    report.add(f"{what} through a router, p50", percentile(through, 0.5), "ms")
    added = percentile(through, 0.5) - percentile(alone, 0.5)
    target = "" if durability == "fsync" else ADDED_MS_MAX
    report.add(f"{what} through a router, added at p50", added, "ms", target)


def _arrivals(engine: Engine, source: str, dest: str) -> list[float]:
    taken = []
    for _ in range(WARM + ROUNDS):
        began = time.perf_counter()
        engine.append_json(source, RECORD)
        _until(engine, lambda: engine.state(dest).head_seq == engine.state(source).head_seq)
        taken.append((time.perf_counter() - began) * 1000)
    return taken[WARM:]


def _until(engine: Engine, condition: Callable[[], bool]) -> None:
    while not condition():
        engine.poll()
        engine.forward_now()
