"""Routers through crashes: no copy twice, none skipped, each the same record as before."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from tests.crash.harness.log_harness import SETTINGS
from tests.crash.harness.router_harness import RouterRun, RouterSweep
from tests.crash.harness.router_histories import random_history
from topics.settings import Settings
from topics.testing import CrashPlan

PLANS = {plan.name: plan for plan in CrashPlan.standard()}
QUICK = ("lose-all", "keep-all", "prefix", "odd-sectors")
HISTORIES = 60
SLICED = msgspec.structs.replace(SETTINGS, seal_records=6)


def appends(run: RouterRun) -> None:
    """A disk and an fsync destination, in two shards, and a chain."""
    run.put("a", durability="disk")
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("a", "c")
    run.route("b", "d")
    for turn in range(5):
        run.write("a", 1 + turn % 3)
        run.settle()
    run.write("c", 0 + 1)
    run.settle()


def checkpoints(run: RouterRun) -> None:
    run.put("a", durability="fsync")
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("a", "c")
    for _ in range(4):
        run.write("a", 3)
        run.settle()
        run.checkpoint()
        run.write("a", 2)
        run.settle()


def deletes_on_the_source(run: RouterRun) -> None:
    """What was forwarded stays when its source is deleted, sealed or not."""
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("b", "c")
    for turn in range(4):
        run.write("a", 4)
        run.settle()
        run.delete("a", match="x")
        if turn % 2:
            run.checkpoint()
        run.delete("a", before=3 * turn)
    run.checkpoint()
    run.write("a", 2)
    run.settle()


def capped_source(run: RouterRun) -> None:
    run.put("a", durability="disk", cap_records=3)
    run.put("b", durability="fsync")
    run.route("a", "b")
    for turn in range(8):
        run.write("a", 2)
        run.settle()
        if turn % 3 == 2:
            run.checkpoint()


def dropped_source(run: RouterRun) -> None:
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.write("a", 3)
    run.settle()
    run.checkpoint()
    run.write("a", 2)
    run.settle()
    run.drop("a")
    run.write("e", 1)
    run.checkpoint()
    run.write("e", 1)
    run.checkpoint()


def sliced(run: RouterRun) -> None:
    """Checkpoints under way while records arrive and go."""
    run.put("a", durability="disk", cap_records=4)
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.route("b", "c")
    for turn in range(14):
        run.write("a", 1)
        run.advance(60)
        if turn % 4 == 3:
            run.delete("a", match="x")
    run.settle()


def sliced_disk(run: RouterRun) -> None:
    """A destination whose maps nobody syncs is captured before they are durable."""
    run.route("a", "b")
    for _ in range(16):
        run.write("a", 1)
        run.advance(2)
        run.settle()
        run.clock.advance(50)
    run.settle()


def chain(run: RouterRun) -> None:
    """Four topics in two shards, written in the middle, one of them made again under its name."""
    run.put("b", durability="fsync")
    run.put("d", durability="fsync")
    for source, dest in ("ab", "bc", "cd"):
        run.route(source, dest)
    for turn in range(3):
        run.write("a", 2)
        run.forward()
        run.write("b", 1)
        run.write("c", 1)
        run.settle()
        if turn == 1:
            run.checkpoint()
    run.drop("c")
    run.put("c", durability="fsync")
    run.write("c", 2)
    run.settle()


def changes(run: RouterRun) -> None:
    run.put("b", durability="fsync")
    run.route("a", "b")
    run.write("a", 2)
    run.route("a", "b", preserve_tag=False)
    run.write("a", 2)
    run.settle()
    run.unroute("a", "b")
    run.write("a", 1)
    run.settle()


WORKFLOWS: dict[str, tuple[Callable[[RouterRun], None], Settings]] = {
    "appends": (appends, SETTINGS),
    "checkpoints": (checkpoints, SETTINGS),
    "deletes_on_the_source": (deletes_on_the_source, SETTINGS),
    "capped_source": (capped_source, SETTINGS),
    "dropped_source": (dropped_source, SETTINGS),
    "sliced": (sliced, SLICED),
    "sliced_disk": (sliced_disk, SLICED),
    "chain": (chain, SETTINGS),
    "changes": (changes, SETTINGS),
}


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
