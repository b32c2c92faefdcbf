"""A real process, a real disk, SIGKILL: nothing acknowledged is lost and nothing is alarmed."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from topics.engine.engine import Engine
from topics.settings import Settings

SETTINGS = Settings(
    wal_shards=2, wal_file_bytes=256 * 1024, wal_reserve_bytes=8192, gc_freeze=False
)

Tally = Callable[..., None]

IDLE = """
import sys, time
from topics.engine.engine import Engine
from topics.settings import Settings
engine = Engine.open(sys.argv[1])
for number in range(100):
    durability = ("fsync", "disk")[number % 2]
    engine.put_topic(f"t{number}", {"durability": durability})
    engine.append(f"t{number}", [{"data": number}])
print("ready", flush=True)
time.sleep(60)
"""

BUSY = """
import sys
from topics.engine.engine import Engine
from topics.settings import Settings
engine = Engine.open(
    sys.argv[1],
    settings=Settings(
        wal_shards=2, wal_file_bytes=256 * 1024, wal_reserve_bytes=8192, seal_records=300
    ),
)
classes = ("fsync", "disk", "memory")
for name in classes:
    engine.put_topic(name, {"durability": name})
number = 0
while True:
    number += 1
    name = classes[number % 3]
    done = engine.append(name, [{"data": number}], idempotency_key=f"{sys.argv[2]}-{number}")
    print(name, done.last_seq, number, flush=True)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True,
        env={**os.environ},
    )  # fmt: skip


def kill(process: subprocess.Popen[str]) -> str:
    """Ends it without a word, and returns what it had said."""
    os.kill(process.pid, signal.SIGKILL)
    said, _ = process.communicate(timeout=30)
    return said


@pytest.mark.slow
def test_100_idle_topics_killed_raise_no_tombstone(tmp_path: Path) -> None:
    process = start(IDLE, str(tmp_path / "data"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    kill(process)
    with Engine.open(str(tmp_path / "data"), settings=SETTINGS) as engine:
        tombstones = 0
        for number in range(100):
            page = engine.diff(f"t{number}")
            assert page.count == 1, f"t{number} lost its record"
            assert [part.state for part in engine.explain(f"t{number}")] == ["live"]
            tombstones += page.tombstone is not None
        assert tombstones == 0


class Killed:
    """A data directory whose writer is killed again and again, and what it had acknowledged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kills = 0
        self.acknowledged: dict[str, dict[int, int]] = {"fsync": {}, "disk": {}, "memory": {}}

    def turn(self, seconds: float) -> None:
        process = start(BUSY, str(self.directory), str(self.kills))
        assert process.stdout is not None
        # Now and then before it has come up.
        first = process.stdout.readline() if self.kills % 4 else ""
        time.sleep(seconds)
        for line in [first, *kill(process).splitlines()]:
            parts = line.split()
            if len(parts) == 3:
                self.acknowledged[parts[0]][int(parts[1])] = int(parts[2])
        self.kills += 1

    def check(self) -> int:
        """How many acknowledged records there were; all of them must be there."""
        with Engine.open(str(self.directory), settings=SETTINGS) as engine:
            for name, written in self.acknowledged.items():
                if not written:
                    continue
                found: dict[int, int] = {}
                cursor = 0
                while cursor < engine.state(name).head_seq:
                    page = engine.diff(name, from_seq=cursor, limit=1000)
                    assert page.tombstone is None, page.tombstone
                    found.update({record.seq: record.value for record in page.records})
                    cursor = page.next_from_seq
                for seq, number in written.items():
                    assert found.get(seq) == number, f"{name}: {seq} reads {found.get(seq)}"
        return sum(map(len, self.acknowledged.values()))


@pytest.mark.slow
def test_a_process_killed_under_load_loses_nothing_acknowledged(
    tmp_path: Path, tally: Tally
) -> None:
    """Five kills in a row, in every class that writes: the page cache outlives the process."""
    killed = Killed(tmp_path / "data")
    for turn in range(5):
        killed.turn(0.8 + 0.1 * turn)
    records = killed.check()
    assert records > 100, "the load was none"
    tally(kills=killed.kills, kill_records=records)


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
def test_a_process_killed_very_often_loses_nothing_acknowledged(
    tmp_path: Path, deadline: float, tally: Tally
) -> None:
    """Ten kills to a directory, at any time after its start, recovery included."""
    draw = random.Random(1)
    for number in itertools.count():
        if time.monotonic() > deadline:
            break
        killed = Killed(tmp_path / str(number))
        for _ in range(10):
            killed.turn(draw.uniform(0.3, 1.5))
        tally(kills=killed.kills, kill_records=killed.check())
        shutil.rmtree(killed.directory)
