"""A backup beside writes: it neither stops them nor doubles their p99.

A directory of 500 MB is backed up, while single records are written to two topics at a fixed rate;
beside it stands the same rate before, with nothing else to do. Then it is backed up again, which
copies only what is new.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bench.report import Report
from bench.rewrite import Writer, compare, fill
from bench.routers import Link
from bench.sse import served

TOTAL_BYTES = 500 * 1000**2
IDLE_S = 20.0
TURN_S = 1.0


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (port, _):
        link = Link(port)
        fill(link, TOTAL_BYTES)
        writers = {kind: Writer(port, kind) for kind in ("disk", "fsync")}
        # All of it is in segments, and nothing else is to be done.
        link.call("POST", "/v0/topics/small-disk/rewrite", b"")
        idle = {kind: writer.measure(IDLE_S) for kind, writer in writers.items()}
        for title in ("first backup", "second backup"):
            busy, status, took_s = _backed_up(link, writers, str(Path(name) / "backups"))
            report.add(f"{title}: bytes copied", status["bytes_copied"] / 1e6, "MB")
            report.add(f"{title}: time", took_s, "s")
            for kind in writers:
                compare(report, kind, idle[kind], busy[kind], f"the {title}")


def _backed_up(
    link: Link, writers: dict[str, Writer], dest: str
) -> tuple[dict[str, list[float]], dict[str, Any], float]:
    """How long writes took while a backup was made, what it says of itself, and its time."""
    busy: dict[str, list[float]] = {kind: [] for kind in writers}
    link.call("POST", "/v0/backup", json.dumps({"dest": dest}).encode())
    while True:
        for kind, writer in writers.items():
            busy[kind] += writer.measure(TURN_S)
        status = json.loads(link.call("GET", "/v0/backup", b""))
        if status["state"] != "running":
            break
    assert status["state"] == "done", status
    return busy, status, (status["ended_ts"] - status["began_ts"]) / 1000
