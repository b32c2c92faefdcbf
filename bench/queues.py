"""Queues beside a Redis Streams consumer group, and what a large queue costs.

The workers are one compiled program (`queue_worker.c`) that speaks to both sides in the same loop:
claim, acknowledge, again. Redis appends to its file and syncs every second; our queues are of class
`disk`. An acknowledged job is deleted here; in Redis it stays in the stream, and XACK only takes it
off the list of what is pending.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.bodies import DATA, batch
from bench.peers import redis
from bench.report import Report, percentile
from bench.sse import served

WORKERS, CLAIM, JOBS = 50, 8, 20_000
ROUNDS = 21
WINDOW_MS = 20
READY, LEASED = 1_000_000, 100_000
PROBES = 2000
BATCH = 10_000
SOURCE = Path(__file__).parent / "queue_worker.c"


def run(report: Report) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("  no C compiler: the workers can not be built")
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        worker = directory / "queue_worker"
        subprocess.run([compiler, "-O2", "-o", worker, SOURCE, "-lm"], check=True)
        with served(directory) as (port, _), redis(directory, "everysec") as redis_port:
            _throughput(report, worker, port, redis_port)
            _fairness(report, worker, port)
        with served(directory) as (port, _):
            _large(report, port)


def _throughput(report: Report, worker: Path, port: int, redis_port: int) -> None:
    """Rounds of both in turn, so that whatever else the machine does hits both."""
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        with Api(port) as api:
            api.queue(f"jobs-{number}")
            api.fill(f"jobs-{number}", JOBS)
        ours.append(_work(worker, "http", port, f"jobs-{number}"))
        _fill_redis(redis_port, f"jobs-{number}")
        theirs.append(_work(worker, "redis", redis_port, f"jobs-{number}"))
    name = f"claim {CLAIM} and ack, {WORKERS} workers, {JOBS:,} jobs"
    best = [max(one["jobs_per_s"] for one in rounds) for rounds in (ours, theirs)]
    report.add(f"{name}: topics", best[0], "jobs/s")
    report.add(f"{name}: Redis Streams", best[1], "jobs/s")
    report.add(f"{name}: ratio", best[0] / best[1], "×", "≥ 1.0")
    report.add("claim latency, p50: topics", min(one["p50_ms"] for one in ours), "ms")
    report.add("claim latency, p99: topics", min(one["p99_ms"] for one in ours), "ms")
    report.add("claim latency, p99: Redis Streams", min(one["p99_ms"] for one in theirs), "ms")
    lost = sum(one["skipped"] + JOBS - one["jobs"] for one in ours)
    report.add("jobs handed out twice or not at all", lost, "jobs", "≤ 0")


def _fairness(report: Report, worker: Path, port: int) -> None:
    with Api(port) as api:
        api.queue("fair", claim_jitter_ms=WINDOW_MS)
        api.fill("fair", JOBS)
    found = _work(worker, "http", port, "fair")
    name = f"spread over {WORKERS} workers, window of {WINDOW_MS} ms"
    report.add(f"{name}: coefficient of variation", found["variation"], "", "≤ 0.1")
    report.add(f"{name}: claim p99", found["p99_ms"], "ms")


def _large(report: Report, port: int) -> None:
    """Claims from a queue with many jobs and leases, beside claims from an empty one."""
    with Api(port) as api:
        for name in ("empty", "small", "large"):
            api.queue(name, lease_ms=86_400_000)
        api.fill("small", PROBES * CLAIM)
        api.fill("large", LEASED + READY)
        for _ in range(LEASED // 1000):
            api.claim("large", "holder", 1000)
        for _ in range(200):
            api.claim("empty", "warm", CLAIM)
        times: dict[str, list[float]] = {"empty": [], "small": [], "large": []}
        for _ in range(PROBES):
            for name, taken in times.items():
                began = time.perf_counter()
                api.claim(name, "probe", CLAIM)
                taken.append((time.perf_counter() - began) * 1e6)
    half = {name: percentile(taken, 0.5) for name, taken in times.items()}
    report.add("claim from an empty queue, p50", half["empty"], "us")
    report.add(f"claim of {CLAIM} from a queue with just those, p50", half["small"], "us")
    name = f"claim of {CLAIM} from {READY:,} ready beside {LEASED:,} leases"
    report.add(f"{name}, p50", half["large"], "us")
    report.add(f"{name}, p99", percentile(times["large"], 0.99), "us")
    report.add(f"{name}: beside an empty queue", half["large"] / half["empty"], "×", "≤ 2")
    report.add(f"{name}: beside just those", half["large"] / half["small"], "×", "≤ 2")


def _work(worker: Path, kind: str, port: int, name: str) -> dict[str, Any]:
    command = [str(worker), kind, *map(str, (port, name, WORKERS, CLAIM, JOBS))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _fill_redis(port: int, name: str) -> None:
    add = _resp("XADD", name, "*", "d", DATA)
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(add * JOBS + _resp("XGROUP", "CREATE", name, "workers", "0"))
        answers = b""
        while not answers.endswith(b"+OK\r\n"):
            answers += link.recv(1 << 16)


def _resp(*words: str) -> bytes:
    parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


class Api:
    """One connection to a server of ours."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port)

    def queue(self, name: str, **config: Any) -> None:
        self._call("PUT", f"/v0/topics/{name}", json.dumps({"type": "queue", **config}).encode())

    def fill(self, name: str, count: int) -> None:
        for first in range(0, count, BATCH):
            body = batch(min(BATCH, count - first))
            self._call("POST", f"/v0/topics/{name}?return_seqs=false", body)

    def claim(self, name: str, node: str, most: int) -> None:
        body = b'{"node":"%b","max":%d}' % (node.encode(), most)
        self._call("POST", f"/v0/topics/{name}/claim", body)

    def _call(self, method: str, path: str, body: bytes) -> None:
        self._link.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._link.getresponse()
        text = answer.read()
        if answer.status not in (200, 201):
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
