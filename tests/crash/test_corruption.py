"""Bytes that rot: the engine refuses to start, refuses to read, or serves exactly what was written.

One honest limit: after a crash of the machine, damage in the last group of a log that no later mark
covers looks like a torn end. `test_the_window_in_which_rot_looks_torn` measures how much that is.
Files that are emptied, cut, zeroed or gone as a whole are in `test_wholes.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.harness.log_harness import LOSE_ALL, SETTINGS, Run, deterministic
from tests.crash.harness.rot import check_fallback, kind_of, overwrite, sweep
from tests.crash.harness.workflows import COLD_SETTINGS
from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.storage.frames import SECTOR
from topics.testing import FakeClock, FakeDisk


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_rot_is_refused_or_never_served(tier: str, tally: Callable[..., None]) -> None:
    sweep(COLD_SETTINGS if tier == "cold" else SETTINGS, 40, tally)


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_much_rot_is_refused_or_never_served(
    tier: str, deadline: float, tally: Callable[..., None]
) -> None:
    """As many rounds over all files as the time allows."""
    seed = 1
    while time.monotonic() < deadline:
        seed += 1
        sweep(COLD_SETTINGS if tier == "cold" else SETTINGS, 40, tally, seed=seed, until_s=deadline)


def test_one_unreadable_snapshot_costs_nothing() -> None:
    check_fallback()


def test_the_window_in_which_rot_looks_torn() -> None:
    """After a crash of the machine the last group of a shard, and nothing once the log was idle.

    Without such a crash there is no window at all.
    """
    with deterministic(1):
        run = Run()
        run.put("a", durability="fsync")
        for _ in range(5):
            run.append("a", 1)
        assert _lost_to_one_flip(run, run.disk.clone().kill()) == 0
        assert _lost_to_one_flip(run, run.disk.crashed(LOSE_ALL)) == 1, "one write, the last"
        for _ in range(3):
            run.advance(100)
        assert _lost_to_one_flip(run, run.disk.crashed(LOSE_ALL)) == 0


def _lost_to_one_flip(run: Run, disk: FakeDisk) -> int:
    """The most records that one damaged sector of the log takes without a word."""
    worst = 0
    for path, content in disk.files().items():
        if kind_of(path) != "wal":
            continue
        for at in range(SECTOR, len(content.rstrip(b"\0")), SECTOR):
            damaged = bytearray(content)
            damaged[at + 20] ^= 1
            image = disk.clone()
            overwrite(image, path, bytes(damaged))
            try:
                engine = Engine.open(
                    "/data", clock=FakeClock(run.clock.wall_ms()), fs=image, settings=SETTINGS
                )
            except TopicsError:
                continue
            there = "a" in engine.list_topics()
            head = engine.state("a").head_seq if there else 0
            worst = max(worst, run.model.topics["a"].head - head)
    return worst
