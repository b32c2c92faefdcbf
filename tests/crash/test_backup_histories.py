"""Histories backed up while they go on: restored to any moment they are what the model says.

So are directories that a crash of the machine has torn: what they are, their backups are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import pytest

from tests.crash.harness.backup_histories import run_history
from tests.crash.harness.backup_tears import run_tear
from tests.support.tiers import quick_first

Tally = Callable[..., None]
SEEDS_EACH = 5
TEARS_EACH = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", quick_first(range(0, 150, SEEDS_EACH), 1))
def test_any_moment_comes_back(first: int, tally: Tally) -> None:
    """The end and random moments of every backup, checked and compared seq by seq."""
    for seed in range(first, first + SEEDS_EACH):
        tally(backup_histories=1, restores=run_history(seed, steps=25, restores=2))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, TEARS_EACH))
def test_what_a_crash_has_torn_comes_back_as_it_starts(first: int, tally: Tally) -> None:
    """With routers over two shards, whatever the crash took behind the marks."""
    for seed in range(first, first + TEARS_EACH):
        tally(restores=run_tear(seed))


@pytest.mark.full(share=2)
def test_any_moment_of_long_histories_comes_back(deadline: float, tally: Tally) -> None:
    """Many more, and longer."""
    for seed in count(10_000):
        if time.monotonic() > deadline:
            return
        tally(backup_histories=1, restores=run_history(seed, steps=80, restores=5))
