"""The engine in-process: appends, reads, retention, memory, recovery. 256-byte records."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import msgspec

from bench.bodies import batch
from bench.processes import in_child, resident_bytes, timed
from bench.report import Report, percentile
from topics.engine.engine import Engine
from topics.engine.state.write_request import PlainWriteRequest, WriteRequest
from topics.settings import MIB, MS_MAX, Settings
from topics.storage import heap
from topics.types import Page

# Big enough that no checkpoint runs inside a measurement that is not about one.
UNSEALED = Settings(seal_bytes=1 << 40, seal_records=1 << 40, seal_age_ms=MS_MAX)

# As the server runs it, with a checkpoint of everything inside the measurement.
SERVING = msgspec.structs.replace(UNSEALED, seal_bytes=64 * MIB, gc_freeze=True)


def run(report: Report) -> None:
    # As the server's process does.
    heap.use_one_heap()
    appends(report)
    reads(report)
    retention(report)
    memory(report)
    recovery(report)
    many_topics(report)


def appends(report: Report) -> None:
    body = batch(1000)
    decoder = msgspec.json.Decoder(PlainWriteRequest)
    full = msgspec.json.Decoder(WriteRequest)
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=UNSEALED) as engine:
        engine.append_json("warm", body)
        alone, through = [], []
        for _ in range(600):
            alone.append(timed(lambda: decoder.decode(body)))
            through.append(timed(lambda: engine.append_json("plain", body)))
        ratio = median(alone) / median(through)
        report.add("decode 1,000-record bodies with msgspec alone", 1000 / median(alone), "rec/s")
        report.add("append 1,000-record bodies to a disk topic", 1000 / median(through), "rec/s")
        report.add("append as a share of decoding alone", ratio, "ratio", "≥ 0.22")
        alone_full = median([timed(lambda: full.decode(body)) for _ in range(100)])
        report.add("decode with every optional field in the type", 1000 / alone_full, "rec/s")
        tagged = [batch(1000, [f"tag-{i}-{j}" for j in range(1000)]) for i in range(200)]
        spent = timed(lambda: [engine.append_json("tagged", one) for one in tagged])
        report.add("tagged appends, a tag of its own each", 200_000 / spent, "rec/s", "≥ 300,000")
        single = batch(1)
        spent = timed(lambda: [engine.append_json("single", single) for _ in range(50_000)])
        report.add("single appends to a disk topic", 50_000 / spent, "rec/s")
        engine.put_topic("sure", {"durability": "fsync"})
        waits = [timed(lambda: engine.append_json("sure", single)) for _ in range(500)]
        report.add("single append to an fsync topic, p50", median(waits) * 1e6, "µs")


def reads(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=UNSEALED) as engine:
        for _ in range(200):
            engine.append_json("log", batch(1000))
        for _ in range(50_000):
            engine.append_json("singles", batch(1))
        for name, written in (("log", "in 1,000s"), ("singles", "singly")):
            head = engine.state(name).head_seq
            starts = [index * 7919 % (head - 1000) for index in range(3000)]
            pages = [partial(engine.diff, name, from_seq=at, limit=1000) for at in starts]
            # As the server sends it, in pieces; and as one text, which copies 300 KB.
            spent = median([timed(page) for page in pages])
            joined = median([timed(partial(_joined, page)) for page in pages])
            label = f"diff of 1,000 contiguous records written {written}, p50"
            report.add(label, spent * 1e6, "µs", "≤ 30")
            report.add(f"{label}, copied into one text", joined * 1e6, "µs")


def _joined(page: Callable[[], Page]) -> bytes:
    return page().records_json


def retention(report: Report) -> None:
    """The cost of an append that evicts, and of a read that expires, at two sizes."""
    single = batch(1)
    spent = {}
    with tempfile.TemporaryDirectory() as path, Engine.open(path, settings=UNSEALED) as engine:
        for records in (10_000, 400_000):
            name = f"cap-{records}"
            engine.put_topic(name, {"cap_records": records})
            for _ in range(records // 1000):
                engine.append_json(name, batch(1000))
            cost = [timed(partial(engine.append_json, name, single)) for _ in range(5000)]
            spent[records] = median(cost)
            report.add(f"append that evicts, cap {records:,}, p50", median(cost) * 1e6, "µs")
    report.add("evicting: 40 times the records cost", spent[400_000] / spent[10_000], "×", "≤ 1.5")
    for records in (10_000, 400_000):
        spent[records] = _expire_all(records)
        report.add(f"expiry of {records:,} records at once", spent[records] * 1e6, "µs")
    # Dropping whole blocks is amortised; per record it must not grow.
    each = (spent[400_000] / 400_000) / (spent[10_000] / 10_000)
    report.add("expiring: cost a record at 40 times the records", each, "×", "≤ 1.5")


def _expire_all(records: int) -> float:
    from topics.testing import FakeClock

    clock = FakeClock()
    settings = msgspec.structs.replace(UNSEALED, threads=False)
    with (
        tempfile.TemporaryDirectory() as path,
        Engine.open(path, clock=clock, settings=settings) as engine,
    ):
        engine.put_topic("ttl", {"ttl_ms": 1000})
        for _ in range(records // 1000):
            engine.append_json("ttl", batch(1000))
        clock.advance(5000)
        spent = timed(lambda: engine.diff("ttl"))
        assert engine.state("ttl").count == 0
        return spent


def memory(report: Report) -> None:
    for how, limit in (("in 1,000s", 40), ("singly", 40), ("tagged", 250)):
        with tempfile.TemporaryDirectory() as path:
            each = in_child(memory_of_a_million, path, how)
        label = "with a tag of its own" if how == "tagged" else f"written {how}"
        report.add(f"index of 1 M records {label}", each, "B/record", f"≤ {limit}")


def memory_of_a_million(path: str, how: str) -> float:
    """Resident bytes a record beyond the record's own wire bytes."""
    engine = Engine.open(path, settings=UNSEALED)
    engine.append_json("warm", batch(1000))
    single = batch(1)
    gc.collect()
    before = resident_bytes()
    if how == "singly":
        for _ in range(1_000_000):
            engine.append_json("log", single)
    for index in range(1000 if how != "singly" else 0):
        tags = [f"tag-{index:04d}-{i:04d}" for i in range(1000)] if how == "tagged" else None
        engine.append_json("log", batch(1000, tags))
    engine.sync()
    gc.collect()
    return (resident_bytes() - before - engine.state("log").bytes) / 1_000_000


def recovery(report: Report) -> None:
    for how, count, bar in (
        ("in 1,000s", 2_000_000, "3,000,000"),
        ("singly", 1_000_000, "400,000"),
    ):
        with tempfile.TemporaryDirectory() as path:
            in_child(write_and_die, path, how, count)
            rates = [in_child(recover, path)["rate"] for _ in range(3)]
        report.add(
            f"recovery after a kill, no snapshot, written {how}", max(rates), "rec/s", f"≥ {bar}"
        )


def write_and_die(path: str, how: str, count: int) -> int:
    engine = Engine.open(path, settings=UNSEALED)
    per = 1 if how == "singly" else 1000
    body = batch(per)
    for _ in range(count // per):
        engine.append_json("log", body)
    engine.sync()
    return count


def recover(path: str) -> dict[str, float]:
    began = time.perf_counter()
    engine = Engine.open(path, settings=UNSEALED)
    spent = time.perf_counter() - began
    count = sum(engine.state(name).count for name in engine.list_topics(limit=1 << 30))
    return {"rate": count / spent, "seconds": spent, "count": count}


def many_topics(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path:
        in_child(write_many_topics, path)
        found = in_child(open_many_topics, path)
    report.add("100,000 topics of 10 records: resident each", found["each"], "B", f"≤ {6 * 1024}")
    report.add("100,000 topics: recovery", found["seconds"], "s", "≤ 15")
    report.add("100,000 topics: longest pause afterwards", found["pause_ms"], "ms", "≤ 20")


def write_many_topics(path: str) -> int:
    engine = Engine.open(path, settings=UNSEALED)
    body = msgspec.json.Decoder(PlainWriteRequest).decode(batch(10))
    for index in range(100_000):
        engine.submit_append(f"topic-{index}", body)
        if index % 200 == 199:
            engine.sync()
    engine.sync()
    return 100_000


def open_many_topics(path: str) -> dict[str, float]:
    import numpy  # noqa: F401  # part of the baseline, not of the topics

    before = resident_bytes()
    began = time.perf_counter()
    engine = Engine.open(path, settings=SERVING)
    seconds = time.perf_counter() - began
    gc.collect()
    each = (resident_bytes() - before) / 100_000
    single = batch(1)
    pauses = []
    # Long enough for a checkpoint of all of them to run beside the writes.
    stop = time.perf_counter() + 20
    index = 0
    while time.perf_counter() < stop:
        index = (index + 7919) % 100_000
        pauses.append(timed(partial(engine.append_json, f"topic-{index}", single)))
    return {
        "each": each, "seconds": seconds, "pause_ms": max(pauses) * 1000,
        "p99_ms": percentile(pauses, 0.99) * 1000, "cpus": float(os.cpu_count() or 0),
    }  # fmt: skip
