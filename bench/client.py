"""The Python client beside redis-py: one process each, one server each, the same machine and run.

Rounds of both are taken in turn, and the best of each counts, so that whatever else the machine
does hits both. Redis persists with an append-only file synced every second.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import redis
import redis.asyncio

from bench.peers import redis as redis_server
from bench.report import Report, percentile
from tests.support.servers import Served
from topics import AsyncClient, Client

ROUNDS = 3
DATA = {"n": 1, "pad": "x" * 200}
TEXT = '{"n":1,"pad":"' + "x" * 200 + '"}'
SINGLES = 2_000
AT_ONCE = 64
EACH = 60
PRODUCED = 300_000
LINES = 1_000_000


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as path, Served(Path(path)).wait_ready() as server:
        url = f"http://127.0.0.1:{server.port}"
        with redis_server(Path(path), "everysec") as port, Client(url) as client:
            _singles(report, client, redis.Redis(port=port))
            asyncio.run(_many(report, url, port))
        with Client(url) as client:
            _produced(report, client)
            _followed(report, client)
        _appended(report, url, Path(path))
    _started(report)


def _singles(report: Report, client: Client, peer: redis.Redis) -> None:
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_p50_us(lambda: client.append("single", [{"data": DATA}])))
        theirs.append(_p50_us(lambda: peer.xadd("single", {"d": TEXT})))
    report.add("one append, Client: p50", min(ours), "µs")
    report.add("one XADD, redis-py: p50", min(theirs), "µs")
    report.add("one append: redis-py's time over ours", min(theirs) / min(ours), "×", "≥ 0.7")


def _p50_us(call: Callable[[], object]) -> float:
    for _ in range(100):
        call()
    times = []
    for _ in range(SINGLES):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return percentile(times, 0.5) * 1e6


async def _many(report: Report, url: str, port: int) -> None:
    ours, theirs = [], []
    peer = redis.asyncio.Redis(port=port, max_connections=AT_ONCE)
    async with AsyncClient(url) as client:
        for _ in range(ROUNDS):
            ours.append(await _rate(lambda: client.append("many", [{"data": DATA}])))
            theirs.append(await _rate(lambda: peer.xadd("many", {"d": TEXT})))
    await peer.aclose()
    report.add(f"{AT_ONCE} appends at once, AsyncClient", max(ours), "writes/s")
    report.add(f"{AT_ONCE} XADDs at once, redis-py", max(theirs), "writes/s")
    report.add(f"{AT_ONCE} at once: ours over redis-py's", max(ours) / max(theirs), "×", "≥ 0.7")


async def _rate(call: Callable[[], Awaitable[object]]) -> float:
    async def repeat(times: int) -> None:
        for _ in range(times):
            await call()

    await asyncio.gather(*(repeat(3) for _ in range(AT_ONCE)))
    began = time.perf_counter()
    await asyncio.gather(*(repeat(EACH) for _ in range(AT_ONCE)))
    return AT_ONCE * EACH / (time.perf_counter() - began)


def _produced(report: Report, client: Client) -> None:
    rates = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        with client.producer() as producer:
            for _ in range(PRODUCED):
                producer.send(f"produced-{number}", DATA)
        rates.append(PRODUCED / (time.perf_counter() - began))
    report.add("Producer, one thread", max(rates), "rec/s", "≥ 150,000")


def _followed(report: Report, client: Client) -> None:
    rates = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        for count, _ in enumerate(client.follow(f"produced-{number}"), 1):
            if count == PRODUCED:
                break
        rates.append(PRODUCED / (time.perf_counter() - began))
    report.add("follow, record by record", max(rates), "rec/s", "≥ 200,000")


def _appended(report: Report, url: str, path: Path) -> None:
    source = path / "lines.jsonl"
    with source.open("w") as file:
        file.writelines(f'{{"n":{number},"pad":"xxxxxxxxxxxxxxxx"}}\n' for number in range(LINES))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "topics", "append", "lines", str(source), "--url", url],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    took_s = time.perf_counter() - began
    report.add("topics append of 1,000,000 lines", LINES / took_s, "lines/s", "≥ 150,000")


def _started(report: Report) -> None:
    """The best of several: a start is mostly reading files, and others read, too."""
    bare = _start_ms("-c", "pass")
    report.add("import topics", _start_ms("-c", "import topics") - bare, "ms", "≤ 30")
    report.add(
        "from topics import Client", _start_ms("-c", "from topics import Client") - bare, "ms"
    )
    report.add("topics --help", _start_ms("-m", "topics", "--help"), "ms", "≤ 250")


def _start_ms(*arguments: str) -> float:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=os.environ
        )
        times.append(time.perf_counter() - began)
    return min(times) * 1000
