"""Ranges as Arrow: how many records a core makes into columns, and what writes notice of it.

The rates are of processor time, which a busy machine disturbs less: the thread's own, from the
call to the bytes of the answer. Writes and ranges then meet in a server: single writes at a steady
rate, alone and beside a reader that asks for one range after the other, in turns, so that whatever
else the machine does hits both alike.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from bench.bodies import DATA, RECORD_BYTES, batch
from bench.processes import in_child
from bench.report import Report, percentile
from tests.support.servers import Served
from topics.engine.engine import Engine
from topics.engine.reading.ranges import RangePage
from topics.server.routes import arrow
from topics.settings import Settings

RECORDS = 200_000
BATCH = 2000
ROUNDS = 7
RANGE_RECORDS = 25_000
WRITES_A_SECOND = 500
SECONDS = 3
TURNS = 9


def run(report: Report) -> None:
    for name, target in SHAPES:
        figures = in_child(measure, name)
        rate = figures["arrow"]
        report.add(f"range as Arrow, {name}", rate, "records/s", target)
        report.add(f"range as Arrow, {name}: share of a memory copy", rate / figures["copy"], "×")
        report.add(f"range as JSON, {name}", figures["json"], "records/s")
        report.add(f"diff as JSON, {name}", figures["diff"], "records/s")
    _beside_writes(report)


# -- what a core does ----------------------------------------------------------------------------

PLAIN, COLD = "256 bytes of data", "256 bytes of data, in the cold store"
TAGGED = "with tag and node"
RICH = "with tag, node and meta"
STAMPED = "with meta of a router"
SHAPES = (
    (PLAIN, "≥ 1,500,000"), (TAGGED, "≥ 750,000"), (RICH, "≥ 750,000"), (COLD, "≥ 1,500,000"),
    (STAMPED, ""),
)  # fmt: skip


def measure(name: str) -> dict[str, float]:
    """Records a second of processor time, each the best of some rounds."""
    with tempfile.TemporaryDirectory() as path:
        tiers: dict[str, Any] = {}
        if name == COLD:
            tiers = {"cold_dir": f"{path}/cold", "hot_bytes": 0, "resident_bytes": 0}
        with Engine.open(f"{path}/data", settings=Settings(**tiers)) as engine:
            _fill(engine, name)
            engine.checkpoint()
            topic = "copies" if name == STAMPED else "t"
            count = engine.state(topic).head_seq
            encoder = arrow.Encoder()
            return {
                "arrow": _best(count, lambda: _ranges(engine, topic, encoder.encode)),
                "json": _best(count, lambda: _ranges(engine, topic, _as_json)),
                "diff": _best(count, lambda: _diffs(engine, topic)),
                "copy": _best(count, _Copy(count)),
            }


def _fill(engine: Engine, name: str) -> None:
    if name == STAMPED:
        engine.put_router("r", {"source": "t", "dest": "copies", "guarantee": "exactly_once"})
    for first in range(0, RECORDS, BATCH):
        fields = ""
        if name in (TAGGED, RICH):
            fields = ',"tag":"customer-%d","node":"web-%d"'
        if name == RICH:
            fields += ',"meta":{"run":"%d","step":"4bf92f3577b34da6"}'
        records = []
        for n in range(first, first + BATCH):
            numbers = (n % 1000, n % 8, n)[: fields.count("%d")]
            records.append(f'{{"data":{DATA}{fields % numbers}}}')
        engine.append_json("t", ('{"records":[' + ",".join(records) + "]}").encode())
        engine.forward()


def _best(count: int, work: Any) -> float:
    """The best rate of some rounds; the cold store's part is not the thread's."""
    spent = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return count / min(spent)


def _as_json(page: RangePage) -> bytes:
    return page.records_json


def _ranges(engine: Engine, topic: str, answer: Callable[[RangePage], object]) -> None:
    at, is_complete = 0, False
    while not is_complete:
        page = engine.range(topic, from_seq=at)
        answer(page)
        at, is_complete = page.next_from_seq, page.complete


def _diffs(engine: Engine, topic: str) -> None:
    at, is_complete = 0, False
    while not is_complete:
        page = engine.diff(topic, from_seq=at, limit=10_000, include_tags=True)
        _ = page.records_json
        at, is_complete = page.next_from_seq, page.caught_up


class _Copy:
    """A memory copy of as many bytes as the data has."""

    def __init__(self, count: int) -> None:
        self._source = np.ones(count * RECORD_BYTES, np.uint8)
        self._target = np.zeros_like(self._source)

    def __call__(self) -> None:
        self._target[:] = self._source


# -- beside writes -------------------------------------------------------------------------------


def _beside_writes(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path, Served(Path(path)).wait_ready() as server:
        with server.client() as client:
            for _ in range(0, RECORDS, BATCH):
                assert client.post("/v0/topics/t", batch(BATCH)).status in (200, 201)
        alone: list[float] = []
        beside: list[float] = []
        read = 0.0
        for _ in range(TURNS):
            alone.append(percentile(_writes(server.port), 0.99))
            stop, records = multiprocessing.Event(), multiprocessing.Value("q", 0)
            reader = multiprocessing.Process(target=_read, args=(server.port, stop, records))
            reader.start()
            beside.append(percentile(_writes(server.port), 0.99))
            stop.set()
            reader.join()
            read += records.value
    alone_s, beside_s = percentile(alone, 0.5), percentile(beside, 0.5)
    report.add("ranges read beside writes", read / (TURNS * SECONDS), "records/s")
    report.add("p99 of single writes alone", alone_s * 1e3, "ms")
    report.add("p99 of single writes beside ranges", beside_s * 1e3, "ms")
    report.add("p99 of single writes beside ranges, against alone", beside_s / alone_s, "×", "≤ 2")


class _Line:
    """A connection that is asked and answered, without anything of a client's.

    Answers are thrown away where they arrive: a reader on this machine would take the core that
    is to be measured.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(1 << 20))

    def post(self, path: str, body: bytes) -> int:
        """The length of the answer, which is read and not looked at."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._socket.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._socket.recv(65536)
        answer, _, rest = got.partition(b"\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), answer
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        left = length - len(rest)
        while left > 0:
            size = min(left, len(self._buffer))
            left -= self._socket.recv_into(self._buffer, size, socket.MSG_TRUNC)
        return length


def _writes(port: int) -> list[float]:
    line, body, spent = _Line(port), batch(1), []
    began = time.perf_counter()
    for index in range(WRITES_A_SECOND * SECONDS):
        time.sleep(max(began + index / WRITES_A_SECOND - time.perf_counter(), 0))
        start = time.perf_counter()
        line.post("/v0/topics/w", body)
        spent.append(time.perf_counter() - start)
    return spent


def _read(port: int, stop: Event, records: Any) -> None:
    line, at = _Line(port), 0
    while not stop.is_set():
        to_seq = min(at + RANGE_RECORDS, RECORDS)
        body = {"from_seq": at, "to_seq": to_seq, "format": "arrow"}
        line.post("/v0/topics/t/range", json.dumps(body).encode())
        records.value += to_seq - at
        at = 0 if to_seq == RECORDS else to_seq
