"""Stages: how fast records are handed in, and how long anybody waits while a million are committed.

In-process, because what counts is the longest time that the loop's thread is kept by one call: its
own time, which a busy machine does not change. Records have 256 bytes; 100 stages of 10,000.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.report import Report
from topics.engine.engine import Engine
from topics.engine.state.stage_request import decode_stage
from topics.settings import Settings
from topics.storage import heap

COUNT, BATCH, DATA_BYTES = 1_000_000, 10_000, 250


class Watch:
    """The longest call so far, in the own time of this thread and by the clock."""

    def __init__(self) -> None:
        self.own_s = self.wall_s = 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        own, wall = time.thread_time(), time.perf_counter()
        answer = call()
        self.own_s = max(self.own_s, time.thread_time() - own)
        self.wall_s = max(self.wall_s, time.perf_counter() - wall)
        return answer


def run(report: Report) -> None:
    # As a server has it.
    heap.use_one_heap()
    for shape, tag in (("plain", {}), ("tagged", {"tag": "orders"})):
        with tempfile.TemporaryDirectory() as name:
            _measure(report, name, shape, tag)


def _measure(report: Report, path: str, shape: str, tag: dict[str, str]) -> None:
    settings = Settings(gc_freeze=True, seal_records=1 << 40, seal_bytes=1 << 40)
    engine = Engine.open(path, settings=settings)
    record = {"data": "x" * DATA_BYTES, **tag}
    body = msgspec.json.encode(
        {"producer": "p", "batch": 0, "topic": "t", "records": [record] * BATCH}
    )
    gc.collect()
    names, began = [], time.perf_counter()
    for _ in range(0, COUNT, BATCH):
        ticket = engine.submit_stage(decode_stage(body, settings))
        while not ticket.done:
            engine.poll()
        names.append(ticket.result.stage)
    report.add(f"records staged, {shape}", COUNT / (time.perf_counter() - began), "records/s")
    watch, began = Watch(), time.perf_counter()
    commit = watch(lambda: engine.submit_commit("p", 0, "q", names))
    while not commit.done:
        watch(engine.flush)
        watch(engine.poll)
        watch(engine.maintain)
    took_s = time.perf_counter() - began
    assert engine.state("t").head_seq == COUNT
    report.add(f"commit of {COUNT:,} records, {shape}", took_s, "s")
    report.add(f"longest call of it, own time, {shape}", watch.own_s * 1000, "ms", "≤ 20")
    report.add(f"longest call of it, by the clock, {shape}", watch.wall_s * 1000, "ms")
    engine.close()
