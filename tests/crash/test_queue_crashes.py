"""Leases through crashes: one holder at a time, acknowledged once, every job somewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.harness.log_harness import deterministic
from tests.crash.harness.queue_histories import random_history
from tests.crash.harness.queue_sweep import QueueSweep
from tests.crash.harness.queue_workflows import WORKFLOWS
from tests.support.engines import World
from topics.testing import CrashPlan

PLANS = {plan.name: plan for plan in CrashPlan.standard()}
QUICK = ("lose-all", "keep-all", "odd-sectors")


Tally = Callable[..., None]


def swept(
    name: str,
    sweep: QueueSweep,
    tally: Tally,
    tally_images: Callable[[set[str]], None],
    *,
    in_passes: bool = False,
) -> None:
    new, steps = WORKFLOWS[name]
    try:
        if in_passes:
            sweep.run_in_passes(new, steps)
        else:
            sweep.run(new, steps)
    finally:
        tally_images(sweep.images)
        tally(
            workflows=1, crash_points=sweep.points, recoveries=sweep.checks,
            other=len(sweep.failures),
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_keeps_leases_true(
    name: str, tally: Tally, tally_images: Callable[[set[str]], None]
) -> None:
    sweep = QueueSweep([PLANS[plan] for plan in QUICK], every=2, random_plans=1)
    swept(name, sweep, tally, tally_images)


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_in_any_way_keeps_leases_true(
    name: str, deadline: float, tally: Tally, tally_images: Callable[[set[str]], None]
) -> None:
    sweep = QueueSweep(CrashPlan.standard(), every=16, random_plans=4, until_s=deadline)
    swept(name, sweep, tally, tally_images, in_passes=True)


@pytest.mark.slow
def test_random_lease_histories_keep_every_promise(tally: Tally) -> None:
    """Claims, expiry, delays, extensions, restarts and dead letters, in any order."""
    for seed in range(60):
        _run(seed)
    tally(lease_histories=60)


@pytest.mark.full(share=3)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(2))
def test_very_many_random_lease_histories_keep_every_promise(
    part: int, deadline: float, tally: Tally
) -> None:
    """As many as the time allows."""
    done, failed = 0, []
    while time.monotonic() < deadline:
        seed = 1000 + 2 * done + part
        done += 1
        try:
            _run(seed, 60 if seed % 10 else 200)
        except Exception as error:
            failed.append(f"seed {seed}: {type(error).__name__}: {error}"[:2000])
            if len(failed) == 5:
                break
    tally(lease_histories=done)
    assert not failed, "\n".join(failed)


def _run(seed: int, length: int = 60) -> None:
    with deterministic(seed):
        random_history(seed, length)


def test_an_acknowledged_job_that_a_crash_brings_back_takes_the_first_live_seq_back() -> None:
    """In class disk; it was deleted and is live again, so nothing of it is told as a loss."""
    world = World()
    world.engine.put_topic("jobs", {"type": "queue", "durability": "disk"})
    world.fill("jobs", 2)
    world.engine.sync()
    world.engine.claim("jobs", "worker")
    world.engine.ack("jobs", "worker", [1])
    assert world.look("jobs").earliest == 2
    engine = world.restart("crash")
    look = world.look("jobs")
    assert (look.earliest, look.evict_floor, look.seqs) == (1, 1, (1, 2))
    assert engine.diff("jobs").tombstone is None
    assert engine.claim("jobs", "another").seqs == [1]
