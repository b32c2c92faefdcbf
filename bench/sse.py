"""Watching: how long from a write to its event, and what an idle stream costs.

The readers are a compiled program (`sse_reader.c`): in Python they would be what is measured.
One more process on a machine of two cores shows in the tail, so nothing else should be running.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.report import Report

WRITES_PER_S = 200
SECONDS = 5
IDLE = 2000
FLOOD_PER_S = 100_000
SOURCE = Path(__file__).parent / "sse_reader.c"


def run(report: Report) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("  no C compiler: the readers can not be built")
        return
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        reader = directory / "sse_reader"
        subprocess.run([compiler, "-O2", "-o", reader, SOURCE], check=True)
        with served(directory) as (port, pid):
            _latency(report, reader, port, pid, 100, 1, "≤ 3")
            _latency(report, reader, port, pid, 1000, 1, "≤ 25")
            _latency(report, reader, port, pid, 1000, 100, "")
        with served(directory) as (port, _):
            _overload(report, reader, port)
        with served(directory) as (port, pid):
            _memory(report, port, pid)


def _latency(
    report: Report, reader: Path, port: int, pid: int, watchers: int, topics: int, bar: str
) -> None:
    command = [str(reader), *map(str, (port, watchers, WRITES_PER_S, SECONDS, topics))]
    before_s, began_s = cpu_s(pid), time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    use = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    found = json.loads(done.stdout)
    name = f"write to event, {watchers} watchers of {topics} topic{'s' * (topics > 1)}"
    report.add(f"{name}, p50", found["classes"][0]["p50_ms"], "ms")
    report.add(f"{name}, p99", found["classes"][0]["p99_ms"], "ms", bar)
    report.add(f"{name}, write to answer p99", found["ack_p99_ms"], "ms", "≤ 25")
    report.add(f"{name}, frames", found["frames_per_s"], "frames/s")
    report.add(f"{name}, records", found["records_per_s"], "records/s")
    report.add(f"{name}, CPU of the server", use, "cores")
    report.add(f"{name}, missing", found["missing"] + found["repeated"], "records", "≤ 0")


def _overload(report: Report, reader: Path, port: int) -> None:
    """100 topics, ten watchers each, every tenth topic of high priority; then an ordinary load.

    Capacity is what is delivered while ten times as much is asked for as a core could do.
    """

    def load(writes_per_s: int, seconds: int) -> Any:
        command = [str(reader), *map(str, (port, 1000, writes_per_s, seconds, 100, 100, 2))]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)

    flood = load(FLOOD_PER_S, 3)
    capacity = flood["acked"] / flood["took_s"]
    report.add("overload: capacity", capacity, "writes/s")
    found = load(int(capacity * 1.5), 10)
    high, low = found["classes"]
    report.add("overload at 150 %: high priority, p99", high["p99_ms"], "ms")
    report.add("overload at 150 %: low priority, p99", low["p99_ms"], "ms")
    report.add("overload at 150 %: high / low", high["p99_ms"] / low["p99_ms"], "×", "≤ 0.2")
    report.add("overload at 150 %: longest wait of any record", low["max_ms"], "ms", "≤ 10,000")
    report.add("overload at 150 %: refused with 429", found["refused"], "writes")
    report.add("overload at 150 %: 429 without Retry-After", found["unexplained"], "answers", "≤ 0")
    missing = found["missing"] + found["repeated"]
    report.add("overload at 150 %: acknowledged but missing", missing, "records", "≤ 0")
    after = load(200, 5)
    report.add("overload: afterwards, refused", after["refused"], "writes", "≤ 0")
    slowest_ms = max(one["p99_ms"] for one in after["classes"])
    report.add("overload: afterwards, p99 at 200 writes/s", slowest_ms, "ms", "≤ 25")


def cpu_s(pid: int) -> float:
    """What a process has used so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(report: Report, port: int, pid: int) -> None:
    """Resident memory for each idle stream with its session, kernel buffers aside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, IDLE + 1000)), hard))
    client = http.client.HTTPConnection("127.0.0.1", port)
    _post(client, "/v0/topics/idle", {"records": [{"data": 1}]})
    streams = [_open(client, port) for _ in range(IDLE // 10)]
    time.sleep(0.5)
    before = _resident_bytes(pid)
    streams += [_open(client, port) for _ in range(IDLE)]
    time.sleep(0.5)
    after = _resident_bytes(pid)
    report.add("memory of an idle event stream", (after - before) / IDLE / 1024, "KiB", "≤ 8")
    for stream in streams:
        stream.close()


def _post(client: http.client.HTTPConnection, path: str, body: Any) -> Any:
    client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(client.getresponse().read())


def _open(client: http.client.HTTPConnection, port: int) -> socket.socket:
    url = _post(client, "/v0/watch", {"topics": {"idle": {"tail": True}}})["stream_url"]
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    stream.recv(4096)
    return stream


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _is_ready(port: int) -> bool:
    client = http.client.HTTPConnection("127.0.0.1", port)
    client.request("GET", "/v0/ready")
    return client.getresponse().status == 200


@contextmanager
def served(directory: Path, **variables: str) -> Iterator[tuple[int, int]]:
    """A server of its own on a fresh directory, with these settings: its port and its process."""
    data, port_file = tempfile.mkdtemp(dir=directory), directory / "port"
    port_file.unlink(missing_ok=True)
    flags = ["--port", "0", "--port-file", str(port_file), "--data-dir", data]
    server = subprocess.Popen(
        [sys.executable, "-m", "topics", "serve", *flags],
        stderr=subprocess.DEVNULL, env={**os.environ, **variables},
    )  # fmt: skip
    try:
        while not port_file.exists():
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with {server.returncode}")
            time.sleep(0.02)
        port = int(port_file.read_text())
        while not _is_ready(port):
            time.sleep(0.02)
        yield port, server.pid
    finally:
        server.terminate()
        server.wait(20)
