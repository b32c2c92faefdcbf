"""Crash before every mutating call of producers that stage and commit, and recover.

Promises: a batch that was answered is there once, whole, where it was told; one that was not is
there whole or not at all, for each topic, and repeating it makes it whole; a stage that was told is
there, one that was dropped or committed does not come back; repeats are answered as the first time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.harness.stage_harness import StageSweep
from tests.crash.harness.stage_lateness import run_late_history
from tests.crash.harness.stage_workflows import WORKFLOWS, run_history
from topics.testing import CrashPlan

QUICK = ("lose-all", "keep-all", "odd-sectors", "dirs-lost-data-kept")
PLANS = [plan for plan in CrashPlan.standard() if plan.name in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_leaves_no_batch_half_or_twice(
    name: str, tally: Callable[..., None], tally_images: Callable[[set[str]], None]
) -> None:
    """At every call, in several ways, the process killed or the machine crashed."""
    sweep = StageSweep(PLANS)
    sweep.run(*WORKFLOWS[name])
    tally_images(sweep.images)
    tally(workflows=1, crash_points=sweep.points, recoveries=sweep.checks)


@pytest.mark.parametrize("seed", range(5))
def test_random_batches_are_there_once(seed: int) -> None:
    """Several producers and attempts; orderly stops as often as kills and crashes together."""
    run_history(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_calls_that_end_late_leave_no_batch_half_or_twice(seed: int) -> None:
    """Syncs and files that end late, out of order, or fail; the same commit twice at once."""
    run_late_history(seed)


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("history", [run_history, run_late_history])
def test_very_many_random_batches_are_there_once(
    history: Callable[[int], object], deadline: float, tally: Callable[..., None]
) -> None:
    """As many seeds as there is time for."""
    seed = 1000
    while time.monotonic() < deadline:
        history(seed)
        seed += 1
    tally(histories=seed - 1000)


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_in_any_way(name: str, tally: Callable[..., None]) -> None:
    """All plans."""
    sweep = StageSweep(CrashPlan.standard(), deep_every=2)
    sweep.run(*WORKFLOWS[name])
    tally(workflows=1, crash_points=sweep.points, recoveries=sweep.checks)
