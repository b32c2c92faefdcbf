"""A real process that writes in batches, killed again and again: every batch is there once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.test_killed_process import kill, start
from tests.support.engines import read_all
from topics.engine.engine import Engine
from topics.settings import Settings

SETTINGS = Settings(wal_shards=2, wal_file_bytes=256 * 1024, wal_reserve_bytes=8192)
PARTS, RECORDS = 3, 4
TOPICS = ("fsync", "disk")

# As a sink does it: it begins with the batch that it does not know the end of, and stages it anew.
SINK = """
import itertools, sys
from topics.engine.engine import Engine
from topics.settings import Settings
from topics.storage.fs import OsFs
from topics.testing import BufferedFs
path, first, is_buffered = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "buffered"
settings = Settings(
    wal_shards=2, wal_file_bytes=256 * 1024, wal_reserve_bytes=8192, seal_records=400
)
engine = Engine.open(path, settings=settings, fs=BufferedFs(OsFs()) if is_buffered else None)
for name in ("fsync", "disk"):
    engine.put_topic(name, {"durability": name})
for batch in itertools.count(first):
    stages = []
    for part in range(3):
        for topic in ("fsync", "disk"):
            records = [{"data": [batch, part, n]} for n in range(4)]
            made = engine.stage(topic, records, producer="sink", batch=batch, part=part)
            stages.append(made.stage)
    done = engine.commit("sink", batch, query="q", stages=stages)
    print(batch, done.repeated, flush=True)
"""


def last_told(said: list[str], before: int) -> int:
    told = [int(line.split()[0]) for line in said if len(line.split()) == 2]
    return max(told, default=before)


def check(path: Path, told: int) -> int:
    """Every batch up to the one told last is there once and whole; of the next one all or none."""
    with Engine.open(str(path), settings=SETTINGS) as engine:
        for topic in engine.list_topics() if told < 0 else TOPICS:
            found: Counter[tuple[int, ...]] = Counter()
            for page in read_all(engine, topic, limit=1000):
                found.update(tuple(record.value) for record in page.records)
            assert set(found.values()) <= {1}, f"{topic}: something is there twice"
            batches = Counter(batch for batch, _, _ in found)
            assert set(batches) >= set(range(told + 1)), f"{topic}: a batch is gone"
            assert set(batches) <= set(range(told + 2)), f"{topic}: {sorted(batches)[-3:]}"
            assert set(batches.values()) <= {PARTS * RECORDS}, f"{topic}: a batch is half there"
    return told + 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "buffered"])
def test_a_sink_that_is_killed_writes_every_batch_once(
    tmp_path: Path, how: str, tally: Callable[..., None]
) -> None:
    """Also on a disk that forgets with the process what was not synced, as a machine would."""
    told = -1
    for turn in range(5):
        process = start(SINK, str(tmp_path / "data"), str(told + 1), how)
        assert process.stdout is not None
        # Now and then before it has come up.
        first = [process.stdout.readline() for _ in range(turn % 4)]
        time.sleep(0.3 + 0.1 * turn)
        told = last_told([*first, *kill(process).splitlines()], told)
        check(tmp_path / "data", told)
    assert told >= 5, "the load was none"
    tally(kills=5, kill_records=told + 1)
