"""The server beside Redis Streams, in one run on one machine, as ratios.

Both persist: Redis with an append-only file synced every second (as our `disk` class, which syncs
every few milliseconds), and before each answer for the fsync row. The load comes from wrk and
redis-benchmark, one thread each. Rounds of both are taken in turn, so that whatever else the
machine does hits both, and the best of each counts.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.bodies import DATA, batch
from bench.report import Report
from tests.support.servers import Served

SECONDS = 3
ROUNDS = 3
SCRIPT = str(Path(__file__).parent / "wrk_post.lua")


def run(report: Report) -> None:
    missing = [
        tool for tool in ("wrk", "redis-server", "redis-benchmark") if not shutil.which(tool)
    ]
    if missing:
        raise SystemExit(f"install {', '.join(missing)} first (Debian: wrk, redis-server)")
    with tempfile.TemporaryDirectory() as path, Served(Path(path)).wait_ready() as server:
        url = f"http://127.0.0.1:{server.port}"
        with redis(Path(path), "everysec") as port:
            _singles(report, url, port, path)
            _batches(report, url, port, path)
            _reads(report, url, port, path)
        with redis(Path(path), "always") as port:
            with server.client() as client:
                assert client.put("/v0/topics/sure", {"durability": "fsync"}).status == 201
            _synced(report, url, port, path)


def _singles(report: Report, url: str, port: int, path: str) -> None:
    _compare(
        report, "single writes, 32 connections", "writes/s", "≥ 0.6",
        lambda: wrk(f"{url}/v0/topics/single", batch(1), 32, path),
        lambda: redis_rate(port, 32, 1, "XADD", "single", "*", "d", DATA),
    )  # fmt: skip


def _batches(report: Report, url: str, port: int, path: str) -> None:
    _compare(
        report, "batches of 1,000, 4 connections", "rec/s", "≥ 2",
        lambda: wrk(f"{url}/v0/topics/batches", batch(1000), 4, path) * 1000,
        lambda: redis_rate(port, 4, 1000, "XADD", "batches", "*", "d", DATA),
    )  # fmt: skip


def _reads(report: Report, url: str, port: int, path: str) -> None:
    asked = b'{"from_seq":5000,"limit":1000}'
    command = ("XRANGE", "batches", "-", "+", "COUNT", "1000")
    _compare(
        report, "reads of 1,000, 8 connections", "rec/s", "≥ 2",
        lambda: wrk(f"{url}/v0/topics/batches/diff", asked, 8, path) * 1000,
        lambda: redis_rate(port, 8, 1, *command, requests=5_000) * 1000,
    )  # fmt: skip


def _synced(report: Report, url: str, port: int, path: str) -> None:
    _compare(
        report, "writes synced before the answer, 64 connections", "writes/s", "≥ 0.5",
        lambda: wrk(f"{url}/v0/topics/sure", batch(1), 64, path),
        lambda: redis_rate(port, 64, 1, "XADD", "sure", "*", "d", DATA),
    )  # fmt: skip


def _compare(
    report: Report,
    what: str,
    unit: str,
    target: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
) -> None:
    rounds = [(ours(), theirs()) for _ in range(ROUNDS)]
    best = [max(rates) for rates in zip(*rounds, strict=True)]
    report.add(f"{what}: topics", best[0], unit)
    report.add(f"{what}: Redis Streams", best[1], unit)
    report.add(f"{what}: ratio", best[0] / best[1], "×", target)


def wrk(
    url: str,
    body: bytes,
    connections: int,
    path: str,
    *,
    seconds: int = SECONDS,
    headers: Sequence[str] = (),
) -> float:
    """Requests a second."""
    file = Path(path) / "body.json"
    file.write_bytes(body)
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", SCRIPT, url],
        env={**os.environ, "BODY_FILE": str(file), "HEADERS": "\n".join(headers)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if "Non-2xx" in done.stdout:
        raise RuntimeError(f"{url}: {done.stdout}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def redis_rate(
    port: int, connections: int, pipeline: int, *command: str, requests: int = 150_000
) -> float:
    """Commands a second."""
    done = subprocess.run(
        ["redis-benchmark", "-p", str(port), "-c", str(connections), "-P", str(pipeline),
         "-n", str(requests), "--csv", *command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout.strip().splitlines()[-1].split(",")[1].strip('"'))


@contextmanager
def redis(path: Path, appendfsync: str) -> Iterator[int]:
    """A Redis server on a free port, with an append-only file of its own."""
    directory = path / f"redis-{appendfsync}"
    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory),
         "--appendonly", "yes", "--appendfsync", appendfsync, "--save", "",
         "--auto-aof-rewrite-percentage", "0"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()
