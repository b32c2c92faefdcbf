"""Whole histories from a seed: any topology, any mixture, threads, faults and ends as they come.

A seed stands for its bounds, its steps, the order in which syncs and background jobs end, and what
goes wrong. After every start, and at the end, what is there is held against what was promised.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness.histories.draws import REWRITING_FROM, mood_of
from tests.crash.harness.histories.history import failure, kept_as, run, steps_of
from tests.support.tiers import quick_first

SEEDS = Path(__file__).parents[1] / "seeds"
QUICK_COUNT = 300

Tally = Callable[..., None]


def count(totals: Counter[str], tally: Tally) -> None:
    tally(**{f"whole_{name}": value for name, value in totals.items()})


@pytest.mark.slow
@pytest.mark.parametrize("first", [1_000_000, 2_000_000, REWRITING_FROM])
def test_histories_of_every_kind_keep_every_promise(first: int, tally: Tally) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + QUICK_COUNT):
        broken = failure(seed, totals=totals)
        assert broken is None, kept_as(seed, broken)[1]
    count(totals, tally)


@pytest.mark.parametrize(
    "path", quick_first(sorted(SEEDS.glob("whole-*.json")), 15), ids=lambda p: p.stem
)
def test_a_history_that_broke_a_promise_keeps_it(path: Path) -> None:
    """Every failing seed of the long tier is kept, as few steps as break it, and run again."""
    kept = json.loads(path.read_text())
    run(kept["seed"], kept["steps"])


@pytest.mark.full(share=36)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(2))
def test_very_many_histories_of_every_kind_keep_every_promise(
    part: int, deadline: float, tally: Tally
) -> None:
    """As many seeds as the time allows; a failing one is shrunk and written to tests/seeds."""
    totals: Counter[str] = Counter()
    failed: list[str] = []
    seed = 10_000_000 * (part + 1)
    while time.monotonic() < deadline and len(failed) < 5:
        broken = failure(seed, totals=totals)
        if broken is not None:
            kept, text = kept_as(seed, broken)
            (SEEDS / f"whole-{seed}.json").write_text(json.dumps(kept) + "\n")
            failed.append(text)
        seed += 1
    totals["failed"] = len(failed)
    count(totals, tally)
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_the_same_seed_is_the_same_history() -> None:
    """Steps, threads, faults and ends are drawn from the seed and from nothing else."""
    for seed in range(40, 48):
        ends = []
        for _ in range(2):
            world = run(seed)
            ends.append((world.log, world.late.trace, world.disk.image_hash(), world.tallies))
        assert ends[0] == ends[1]


def test_what_a_history_leaves_out_changes_nothing_of_the_rest() -> None:
    """A step draws from a number of its own: so a failing history can be made shorter."""
    steps = steps_of(7, mood_of(7))
    assert run(7, steps).log == run(7).log
    assert run(7, steps[:4]).log[:4] == run(7).log[:4]
