"""Histories backed up while they go on: restored to any moment they are what the model says."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import pytest

from tests.crash.harness.backup_histories import run_history
from tests.support.tiers import quick_first

Tally = Callable[..., None]
SEEDS_EACH = 5


@pytest.mark.slow
@pytest.mark.parametrize("first", quick_first(range(0, 150, SEEDS_EACH), 1))
def test_any_moment_comes_back(first: int, tally: Tally) -> None:
    """The end and random moments of every backup, checked and compared seq by seq."""
    for seed in range(first, first + SEEDS_EACH):
        tally(backup_histories=1, restores=run_history(seed, steps=25, restores=2))


@pytest.mark.full(share=2)
def test_any_moment_of_long_histories_comes_back(deadline: float, tally: Tally) -> None:
    """Many more, and longer."""
    for seed in count(10_000):
        if time.monotonic() > deadline:
            return
        tally(backup_histories=1, restores=run_history(seed, steps=80, restores=5))
