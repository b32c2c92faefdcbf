"""Topics change their class back and forth, in slices, amid everything that can be under way.

Stages and commits, caps and rejects, cursors with holds, keys, deletes in pieces, routers, queues,
a bucket that is compacted, a disk that is full now and then or fails, orderly stops, kills and
crashes. What is there at rest is there after the next start in every visible detail; what was
acknowledged is there; no seq and no epoch is used twice; every call comes to an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.harness.class_histories import run_class_history
from tests.support.tiers import quick_first

FULL_FROM = 1_000_000


@pytest.mark.parametrize("seed", quick_first(range(60), 12))
def test_changes_of_class_lose_nothing_and_bring_nothing_back(seed: int) -> None:
    """Whatever goes on meanwhile, and however the process ends."""
    run_class_history(seed)


def test_the_same_seed_is_the_same_history() -> None:
    """Everything is drawn from the seed, so that what broke breaks again."""
    for seed in (3, 8):
        first, second = run_class_history(seed), run_class_history(seed)
        assert first.trace == second.trace
        assert first.disk.image_hash() == second.disk.image_hash()


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(2))
def test_very_many_changes_of_class_lose_nothing(
    part: int, deadline: float, tally: Callable[..., None]
) -> None:
    """As many seeds as there is time for."""
    first = seed = FULL_FROM * (part + 1)
    while time.monotonic() < deadline:
        run_class_history(seed)
        seed += 1
    tally(histories=seed - first)
