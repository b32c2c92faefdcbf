"""Data directories with something of everything in them, and ways to damage and compare them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from topics.engine.engine import Engine
from topics.settings import KIB, Settings
from topics.storage.fs import Fs
from topics.testing import FakeClock

SMALL = Settings(
    threads=False, wal_shards=2, wal_file_bytes=64 * KIB, wal_reserve_bytes=4 * KIB,
    block_bytes=2 * KIB, own_segment_bytes=4 * KIB, segment_bytes=8 * KIB,
)  # fmt: skip


def fill(engine: Engine) -> None:
    """Topics of every class, with tags, nodes, meta, deletes, evictions and two snapshots."""
    for number in range(60):
        tag = f"t{number % 4}"
        record = {"data": {"n": number}, "tag": tag, "node": f"n{number % 3}", "meta": {"k": tag}}
        engine.append("orders", [record], config={"durability": "fsync"})
    engine.append("capped", [{"data": n} for n in range(30)], config={"cap_records": 10})
    engine.append("resident", [{"data": 1}], config={"durability": "ephemeral"})
    engine.append("loose", [{"data": n} for n in range(5)], config={"durability": "memory"})
    engine.append("dropped", [{"data": n} for n in range(5)])
    _work(engine)
    engine.checkpoint()
    engine.delete("orders", match="t1")
    engine.delete_topic("dropped")
    engine.append("orders", [{"data": n, "tag": "late"} for n in range(10)], idempotency_key="k")
    engine.append("capped", [{"data": n} for n in range(7)])
    _work(engine)
    engine.checkpoint()
    _work(engine)
    engine.delete("orders", before_seq=5)
    engine.delete("orders", match="late")
    for number in range(20):
        engine.append("orders", [{"data": {"tail": number}}])
    engine.append("fresh", [{"data": "x" * 200} for _ in range(50)])


def _work(engine: Engine) -> None:
    """Jobs that are held, done, given back and moved."""
    queue = {
        "type": "queue", "durability": "fsync", "leases_durable": True, "max_deliveries": 1,
        "dead_letter": "dead",
    }  # fmt: skip
    engine.put_topic("jobs", queue)
    engine.append("jobs", [{"data": {"job": n}, "tag": f"t{n % 3}"} for n in range(8)])
    one, two, three, *_ = engine.claim("jobs", "a", 5).seqs
    engine.ack("jobs", "a", [two])
    engine.nack("jobs", "a", [one])
    engine.nack("jobs", "a", [three], 60_000)
    engine.claim("jobs", "b", 2)


def busy(path: Path, settings: Settings = SMALL, fs: Fs | None = None) -> Path:
    """A directory in use for a while, closed cleanly."""
    with Engine.open(str(path), settings=settings, fs=fs, clock=FakeClock()) as engine:
        fill(engine)
    return path


def image(path: Path) -> dict[str, bytes]:
    """Every file below `path`, byte for byte, and every directory."""
    found = {}
    for entry in sorted(path.rglob("*")):
        found[str(entry.relative_to(path))] = entry.read_bytes() if entry.is_file() else b"/"
    return found


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)


def look(engine: Engine) -> dict[str, Any]:
    """What readers and auditors see of each topic."""
    seen = {}
    for name in engine.list_topics():
        records, cursor, tombstones = [], 0, []
        while True:
            page = engine.diff(name, from_seq=cursor, include_tags=True, limit=1000)
            records += json.loads(page.records_json)
            if page.tombstone is not None:
                tombstones.append((page.tombstone.gap_from, page.tombstone.gap_to))
            cursor = page.next_from_seq
            if page.caught_up:
                break
        ranges = [(r.first, r.last, r.state) for r in engine.explain(name)]
        state = engine.state(name)
        seen[name] = (records, tombstones, ranges, state.head_seq, state.count, state.bytes)
    return seen


def look_at(path: Path, settings: Settings = SMALL) -> dict[str, Any]:
    with Engine.open(str(path), settings=settings, clock=FakeClock()) as engine:
        return look(engine)


def topics(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TOPICS_WAL_FILE_BYTES": "65536", "TOPICS_WAL_RESERVE_BYTES": "4096",
             **environment},
    )  # fmt: skip
