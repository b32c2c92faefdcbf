"""Appends beside a reader of a 2 GB topic that lives on a real S3 endpoint.

The reader works as the server's does: a read that misses goes to a thread, the caller goes on.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from bench.bodies import batch
from bench.report import Report, percentile
from tests.support.s3 import S3Server
from topics.engine.engine import Engine
from topics.engine.state.block import Block
from topics.engine.state.segments import ColdMiss
from topics.settings import MIB, Settings
from topics.storage.columns import Columns

COLD_BYTES = 2_000_000_000
WRITES_A_SECOND = 1000
SECONDS = 15


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path, S3Server(Path(path)) as server:
        os.environ.update(server.env)
        settings = Settings(
            cold_dir=server.url("cold"), hot_bytes=0, resident_bytes=0, seal_bytes=256 * MIB
        )
        sys.setswitchinterval(0.0005)
        engine = Engine.open(str(Path(path) / "data"), settings=settings)
        with engine:
            _fill(engine)
            _measure(engine, report)


def _fill(engine: Engine) -> None:
    body = batch(1000)
    while engine.core.by_name.get("old") is None or engine.state("old").bytes < COLD_BYTES:
        engine.append_json("old", body)
    engine.checkpoint()
    held = engine.core.segments.live.values()
    assert held
    assert all(segment.is_cold for segment in held)
    # The payload must come over the wire, not from a cache.
    engine.core.settings = msgspec.structs.replace(engine.core.settings, seal_bytes=1 << 40)


def _measure(engine: Engine, report: Report) -> None:
    store = engine.core.segments.store
    assert store is not None
    idle, _ = _append_for(engine, None)
    reader = Reader(engine)
    fetched = store.bytes_fetched
    beside, records = _append_for(engine, reader)
    fetched = store.bytes_fetched - fetched
    reader.close()
    idle_p99, beside_p99 = percentile(idle, 0.99), percentile(beside, 0.99)
    report.add("cold tier: bytes of the topic", engine.state("old").bytes / 1e6, "MB")
    report.add("cold tier: fetched from S3 while appending", fetched / 1e6, "MB")
    report.add("cold tier: records read meanwhile", records, "records")
    report.add("append p99 alone", idle_p99 * 1e6, "µs")
    report.add("append p99 beside cold reads", beside_p99 * 1e6, "µs")
    report.add("append p99 beside cold reads, against alone", beside_p99 / idle_p99, "×", "≤ 2")


class Reader:
    """Reads the topic from its start, over and over, never waiting for the store itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.records = 0
        self._cursor = 0
        self._pool = ThreadPoolExecutor(1)
        self._ahead: list[Block] = []
        self._fetch: Future[list[Columns]] | None = None

    def step(self) -> None:
        if self._fetch is not None:
            if not self._fetch.done():
                return
            for block, columns in zip(self._ahead, self._fetch.result(), strict=True):
                self.engine.core.segments.admit(block, columns)
            self._fetch = None
        try:
            page = self.engine.diff_now("old", from_seq=self._cursor, limit=1000)
        except ColdMiss as miss:
            self._ahead = miss.ahead
            self._fetch = self._pool.submit(self.engine.ask(miss).read)
            return
        self.records += page.count
        self._cursor = 0 if page.caught_up else page.next_from_seq

    def close(self) -> None:
        self._pool.shutdown()


def _append_for(engine: Engine, reader: Reader | None) -> tuple[list[float], int]:
    """Single appends at a steady rate; how long each took."""
    single = batch(1)
    spent = []
    began = time.perf_counter()
    for index in range(WRITES_A_SECOND * SECONDS):
        due = began + index / WRITES_A_SECOND
        while True:
            left = due - time.perf_counter()
            if left <= 0:
                break
            if reader is not None:
                reader.step()
            time.sleep(min(left, 0.0002))
        start = time.perf_counter()
        engine.append_json("new", single)
        spent.append(time.perf_counter() - start)
    return spent, reader.records if reader is not None else 0
