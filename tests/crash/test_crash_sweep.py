"""Crash before every mutating call, in every way a disk may forget, and recover.

Promises: what was acknowledged in class fsync survives byte for byte, what was rejected never
appears, what is unknown appears once or never, what was deleted stays deleted, each missing seq
has its reason, nothing goes back, and recovering twice is recovering once.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness.log_harness import SETTINGS, Run, Sweep, deterministic
from tests.crash.harness.random_workload import (
    RESTLESS_FROM,
    REWRITING_FROM,
    random_workflow,
    settings_of,
)
from tests.crash.harness.workflows import WORKFLOWS
from tests.support.tiers import quick_first
from topics.settings import Settings
from topics.testing import CrashPlan

SEEDS = Path(__file__).parents[1] / "seeds"
QUICK = ("lose-all", "keep-all", "prefix", "odd-sectors")
PLANS = {plan.name: plan for plan in CrashPlan.standard()}

Tally = Callable[..., None]


def kind_of(failure: str) -> str:
    """The figure of the summary that a broken promise belongs to."""
    if "was deleted, is now live" in failure or "came back" in failure:
        return "resurrected"
    if "explain" in failure or "nobody wrote it" in failure:
        return "unexplained"
    lost = ("was live, is now", "the topic is gone", "head fell", "reads", "CorruptData")
    return "lost" if any(words in failure for words in lost) else "other"


def swept(
    sweep: Sweep,
    workflow: Callable[[Run], None],
    settings: Settings,
    tally: Tally,
    tally_images: Callable[[set[str]], None],
    *,
    seed: int = 1,
    in_passes: bool = False,
) -> None:
    """Runs a sweep and counts what it did and found, also when it fails."""
    try:
        if in_passes:
            sweep.run_in_passes(workflow, settings)
        else:
            sweep.run(workflow, settings, seed=seed)
    except Exception as error:
        found = sweep.failures or [f"{type(error).__name__}: {error}"]
        tally(**Counter(map(kind_of, found)))
        raise
    finally:
        tally_images(sweep.images)
        tally(
            workflows=1, crash_points=sweep.points, recoveries=sweep.checks,
            records_checked=sweep.records_checked,
        )  # fmt: skip


# The long tier has them all; each of these is like another one, and takes more than a minute.
LONG = {"cold_erasing", "overtaken_rewriting"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WORKFLOWS.keys() - LONG))
def test_a_crash_anywhere_keeps_every_promise(
    name: str, tally: Tally, tally_images: Callable[[set[str]], None]
) -> None:
    workflow, settings = WORKFLOWS[name]
    sweep = Sweep([PLANS[plan] for plan in QUICK], nested_every=400)
    swept(sweep, workflow, settings, tally, tally_images)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(SEEDS.glob("sweep-*.json")), ids=lambda p: p.stem)
def test_a_workload_that_failed_before_passes(
    path: Path, tally: Tally, tally_images: Callable[[set[str]], None]
) -> None:
    """Every failing seed of the long tier is kept and run again."""
    seed = json.loads(path.read_text())["seed"]
    sweep = Sweep([PLANS["random-sectors"]], nested_every=120)
    swept(sweep, random_workflow(seed, 25), settings_of(seed), tally, tally_images, seed=seed)


@pytest.mark.parametrize(
    "path", quick_first(sorted(SEEDS.glob("history-*.json")), 10), ids=lambda p: p.stem
)
def test_a_history_that_failed_before_passes(path: Path) -> None:
    """Histories with restarts of every kind that once broke a promise."""
    kept = json.loads(path.read_text())
    run_history(kept["seed"], kept["length"])


@pytest.mark.slow
def test_random_histories_keep_every_promise(tally: Tally) -> None:
    kinds = ((10_000, 60), (RESTLESS_FROM, 40), (REWRITING_FROM, 60))
    for seed in (seed for first, count in kinds for seed in range(first, first + count)):
        run_history(seed, 60)
    tally(histories=160)


@pytest.mark.full(share=6)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", [20_000, RESTLESS_FROM + 1000, REWRITING_FROM + 1000])
def test_very_many_random_histories_keep_every_promise(
    first: int, deadline: float, tally: Tally
) -> None:
    seed = first
    failed: list[str] = []
    while time.monotonic() < deadline:
        try:
            run_history(seed, 60)
        except Exception as error:
            kept = json.dumps({"seed": seed, "length": 60}) + "\n"
            (SEEDS / f"history-{seed}.json").write_text(kept)
            failed.append(f"seed {seed}: {error}"[:2000])
        seed += 1
    tally(histories=seed - first, histories_failed=len(failed))
    assert not failed, "\n".join(failed)


def run_history(seed: int, length: int) -> None:
    with deterministic(seed):
        run = Run(seed=seed, settings=settings_of(seed))
        random_workflow(seed, length)(run)
        run.verify()


@pytest.mark.full(share=1.5)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_anywhere_in_any_way(
    name: str, deadline: float, tally: Tally, tally_images: Callable[[set[str]], None]
) -> None:
    """All plans, random ones too, and crashes inside the recovery of crashes."""
    workflow, settings = WORKFLOWS[name]
    sweep = Sweep(CrashPlan.standard(), every=16, random_plans=4, nested_every=25, until_s=deadline)
    swept(sweep, workflow, settings, tally, tally_images, in_passes=True)


@pytest.mark.full(share=10)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(2))
def test_a_crash_anywhere_in_random_workloads(
    part: int, deadline: float, tally: Tally, tally_images: Callable[[set[str]], None]
) -> None:
    """As many seeds as the time allows; a failing one is written to tests/seeds."""
    seed = part
    failed: list[str] = []
    while time.monotonic() < deadline:
        sweep = Sweep(
            random.Random(seed).sample(CrashPlan.standard(), 5),
            random_plans=2, every=1 + seed % 3, nested_every=60, until_s=deadline,
        )  # fmt: skip
        try:
            workflow = random_workflow(seed, 10 + seed % 30)
            swept(sweep, workflow, settings_of(seed), tally, tally_images, seed=seed)
        except Exception as error:
            (SEEDS / f"sweep-{seed}.json").write_text(json.dumps({"seed": seed}) + "\n")
            failed.append(f"seed {seed}: {error}"[:2000])
        seed += 2
    tally(workloads=seed // 2, workloads_failed=len(failed))
    assert not failed, "\n".join(failed)


def test_the_same_seed_gives_the_same_history() -> None:
    """A failure can be replayed: two runs of a seed end with the same disk."""
    ends = []
    for _ in range(2):
        sweep = Sweep([], kills=False)
        last: list[str] = []
        workflow = random_workflow(7, 30)

        def remember(run: Run, workflow: Callable[[Run], None] = workflow) -> None:
            workflow(run)
            last.append(run.disk.image_hash())  # noqa: B023

        sweep.run(remember, SETTINGS, seed=7)
        ends.append((last, sweep.points))
    assert ends[0] == ends[1]
