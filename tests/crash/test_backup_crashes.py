"""Crash before every mutating call of a backup and of a restore.

Promises: a backup whose manifest is there is whole, and those before it stay so; a directory under
the name that a restore was asked for is whole; after either crash the same thing can be done again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.harness.backup_sweep import DEST, PLANS, crash_backups, crash_restores, prepared
from topics.engine.offline import backups
from topics.storage.tiers import DirectoryStore
from topics.testing import CrashPlan, Fault, FaultFs
from topics.testing.faultfs import Operation

Tally = Callable[..., None]


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_dir", "pread"])
def test_a_place_that_fails_costs_the_backup_and_nothing_else(operation: Operation) -> None:
    """Any call to it fails once: there is no second backup, words say so, and writes go on."""
    world = prepared()
    nth, is_failing = 0, True
    while is_failing:
        nth += 1
        fault = Fault(operation, nth=nth, path_contains=DEST)
        store = DirectoryStore(FaultFs(world.disk, fault), DEST)
        world.clock.advance(1)
        world.engine.maintenance.backups.begin(DEST, store)
        while world.engine.maintenance.backups.is_running:
            world.engine.maintenance.step()
        status = world.engine.backup_status
        assert status is not None
        is_failing = bool(fault.fired)
        found = backups.verify(DirectoryStore(world.disk, DEST))
        assert found.ok, found.problems
        if status.state == "failed":
            assert status.error
        world.fill("a", 1)
    assert nth > 1
    assert status.state == "done"


@pytest.mark.slow
def test_a_crash_anywhere_leaves_no_backup_that_is_not_whole(tally: Tally) -> None:
    """Killed or crashed: what is named is there, byte for byte."""
    tally(crash_points=crash_backups(PLANS))


@pytest.mark.slow
@pytest.mark.parametrize("is_moment", [False, True])
def test_a_crash_anywhere_leaves_no_directory_that_is_not_whole(
    is_moment: bool, tally: Tally
) -> None:
    """Of the end of a backup, and of a moment in it."""
    tally(crash_points=crash_restores(PLANS, is_moment=is_moment))


@pytest.mark.full
@pytest.mark.timeout(0)
def test_any_crash_leaves_what_is_whole(tally: Tally) -> None:
    """In all ways."""
    plans = list(CrashPlan.standard())
    points = crash_backups(plans)
    points += sum(crash_restores(plans, is_moment=is_moment) for is_moment in (False, True))
    tally(crash_points=points)
