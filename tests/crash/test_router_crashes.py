"""Routers through crashes: no copy twice, none skipped, each the same record as before."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.harness.router_harness import RouterSweep
from tests.crash.harness.router_histories import random_history
from tests.crash.harness.router_workflows import WORKFLOWS
from topics.testing import CrashPlan

PLANS = {plan.name: plan for plan in CrashPlan.standard()}
QUICK = ("lose-all", "keep-all", "prefix", "odd-sectors")
HISTORIES = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_keeps_routers_true(name: str, tally: Callable[..., None]) -> None:
    workflow, settings = WORKFLOWS[name]
    sweep = RouterSweep([PLANS[plan] for plan in QUICK], every=2)
    sweep.run(workflow, settings)
    tally(workflows=1, crash_points=sweep.points, recoveries=sweep.checks)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_random_chains_of_routers_keep_every_promise(
    block: int, tally: Callable[..., None]
) -> None:
    """Every directory opens; copies are the fold of their source; what is missing is told."""
    for seed in range(block * HISTORIES, (block + 1) * HISTORIES):
        run_seed(seed)
    tally(router_histories=HISTORIES)


@pytest.mark.full
@pytest.mark.timeout(0)
def test_many_random_chains_of_routers_keep_every_promise(
    deadline: float, tally: Callable[..., None]
) -> None:
    seed = first = 1_000_000
    while time.monotonic() < deadline:
        run_seed(seed)
        seed += 1
    tally(router_histories=seed - first)


def run_seed(seed: int) -> None:
    try:
        random_history(seed)
    except Exception as error:
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")


@pytest.mark.full
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_in_any_way_keeps_routers_true(
    name: str, deadline: float, tally: Callable[..., None]
) -> None:
    workflow, settings = WORKFLOWS[name]
    sweep = RouterSweep(CrashPlan.standard(), every=16, until_s=deadline)
    sweep.run_in_passes(workflow, settings)
    tally(workflows=1, crash_points=sweep.points, recoveries=sweep.checks)
