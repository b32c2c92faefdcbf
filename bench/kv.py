"""The key-value store, embedded, over HTTP and beside a hash of Redis: gets, puts, scans; then
compaction, memory and space.

Both servers persist, Redis with an append-only file synced every second; both clients are in
Python, one call after the other, in rounds that are taken in turn.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
import redis

from bench.engine import UNSEALED
from bench.peers import redis as redis_server
from bench.report import Report, percentile
from bench.sse import served
from topics.client.client import Client
from topics.engine.engine import Engine
from topics.kv.embedded import KeyValue, buckets_of, open_bucket
from topics.settings import MIB, Settings

VALUE = {"v": "x" * 80}
KEYS = 20_000
# What is deleted around a scan, and how many versions a compaction removes.
DELETED = 1_000_000
LIVE = 1000
VERSIONS = 1_000_000
# Nothing has changed on the disk for so long: it has settled.
SETTLED_S = 5.0
# Calls of a round over a connection, and rounds.
CALLS, ROUNDS = 1000, 3


def run(report: Report) -> None:
    gets_and_puts(report)
    over_connections(report)
    scans(report)
    compaction(report)
    memory(report)
    space(report)


def key_of(number: int) -> str:
    return f"k{number:08d}"


def fill(engine: Engine, topic: str, keys: int, size: int = 1000) -> None:
    """Puts by writes to the log: many at once."""
    for at in range(0, keys, size):
        stop = min(at + size, keys)
        engine.append(topic, [{"data": n, "tag": key_of(n)} for n in range(at, stop)])


def latencies(calls: int, call: Callable[[int], object]) -> list[float]:
    found = []
    for index in range(calls):
        began = time.perf_counter()
        call(index)
        found.append(time.perf_counter() - began)
    return found


def gets_and_puts(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=UNSEALED) as engine:
        raw = latencies(KEYS, lambda n: engine.append("raw", [{"data": VALUE, "tag": key_of(n)}]))
        kv = open_bucket(engine, "b")
        put = latencies(KEYS, lambda n: kv.put(key_of(n), VALUE))
        report.add("put, embedded", KEYS / sum(put), "puts/s")
        report.add("put as a share of an append", sum(raw) / sum(put), "ratio", "≥ 0.3")
        got = latencies(KEYS, lambda n: kv.get(key_of((n * 7919) % KEYS)))
        report.add("get, embedded, p50", median(got) * 1e6, "µs", "≤ 3")


def over_connections(report: Report) -> None:
    encode, decode = msgspec.json.encode, msgspec.json.decode
    with (
        tempfile.TemporaryDirectory() as path,
        served(Path(path)) as (port, _),
        redis_server(Path(path), "everysec") as peer_port,
        Client(f"http://127.0.0.1:{port}") as client,
        redis.Redis(port=peer_port) as peer,
    ):
        kv = client.kv("b")
        calls: dict[str, Callable[[int], object]] = {
            "put over HTTP, p50": lambda n: kv.put(key_of(n), VALUE),
            "HSET by redis-py, p50": lambda n: peer.hset("b", key_of(n), encode(VALUE)),
            "get over HTTP, p50": lambda n: kv.get(key_of(n)),
            "HGET by redis-py, p50": lambda n: decode(peer.hget("b", key_of(n))),
        }
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                found[name].append(median(latencies(CALLS, call)))
    for name, medians in found.items():
        report.add(name, min(medians) * 1e6, "µs")


def scans(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=UNSEALED) as engine:
        fill(engine, "kv:alone", LIVE)
        fill(engine, "kv:among", DELETED)
        alone, among = open_bucket(engine, "alone"), open_bucket(engine, "among")
        # Filled before, as it would have been by use.
        assert (alone.size, among.size) == (LIVE, DELETED)
        began = time.perf_counter()
        hidden = among.delete_range("k")
        spent = time.perf_counter() - began
        assert hidden == DELETED
        step = DELETED // LIVE
        keys = [key_of(n * step) for n in range(LIVE)]
        engine.append("kv:among", [{"data": 1, "tag": key} for key in keys])
        report.add("range delete of 1,000,000 keys", spent * 1000, "ms")
        ratio = fastest(among) / fastest(alone)
        report.add("scan of 1,000 among 1,000,000 deleted, against none", ratio, "×", "≤ 2")


def fastest(kv: KeyValue) -> float:
    found = []
    for _ in range(15):
        began = time.perf_counter()
        assert len(list(kv.scan())) == LIVE
        found.append(time.perf_counter() - began)
    return min(found)


def compaction(report: Report) -> None:
    """A million superseded versions go, in slices beside puts."""
    settings = UNSEALED
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=settings) as engine:
        other = open_bucket(engine, "other")
        quiet = percentile(latencies(3000, lambda n: other.put(f"q{n}", 1)), 0.99)
        for _ in range(11):
            fill(engine, "kv:b", VERSIONS // 10)
        buckets, topic = buckets_of(engine), engine.find_bucket("kv:b")
        assert topic is not None
        open_bucket(engine, "b").get("k")
        before = topic.live_count
        ticket = buckets.compactor.ask(buckets.get("b"), 0, "")
        beside: list[float] = []
        began = time.perf_counter()
        while not ticket.done:
            buckets.work(0.002)
            engine.maintain()
            engine.poll()
            beside += latencies(5, lambda n: other.put(f"q{n}", 1))
        spent = time.perf_counter() - began
        report.add("versions removed beside puts", (before - topic.live_count) / spent, "rec/s")
        ratio = percentile(beside, 0.99) / quiet
        report.add("p99 of puts beside compaction, against none", ratio, "×", "≤ 3")


def memory(report: Report) -> None:
    """The index of a live key, without the text of the key and its value."""
    keys = 1_000_000
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=UNSEALED) as engine:
        fill(engine, "kv:b", keys)
        assert open_bucket(engine, "b").size == keys
        held = buckets_of(engine).get("b").index
        size = sys.getsizeof(held.live) + held.keys.size_bytes
        size += sum(map(sys.getsizeof, held.live.values()))
        report.add("memory of a live key beyond key and value", size / keys, "B", "≤ 200")


def space(report: Report) -> None:
    """Overwritten for ten times its size and then left alone, a bucket settles near what it holds.

    What waits for age waits for a second here.
    """
    settings = Settings(
        seal_bytes=4 * MIB, wal_file_bytes=4 * MIB, segment_bytes=2 * MIB, seal_age_ms=1000
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=settings) as engine:
        kv, value = open_bucket(engine, "b"), "x" * 800
        for _ in range(10):
            for at in range(0, 10_000, 500):
                records = [{"data": value, "tag": key_of(n)} for n in range(at, at + 500)]
                engine.append("kv:b", records)
                buckets_of(engine).work(0.002)
        live = 10_000 * 900
        assert kv.size == 10_000
        taken, since_s = used(path), time.monotonic()
        report.add("disk of it when the last write is answered", taken / live, "×")
        while time.monotonic() - since_s < SETTLED_S:
            engine.maintain()
            engine.poll()
            buckets_of(engine).work(0.002)
            if (now := used(path)) != taken:
                taken, since_s = now, time.monotonic()
        report.add("disk of a bucket overwritten ten times, of its live", taken / live, "×",
                   "≤ 2")  # fmt: skip


def used(path: str) -> int:
    """Bytes that are written, of files that are allocated ahead what is used."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
