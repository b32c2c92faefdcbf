"""Crash before every mutating call of a backup and of a restore.

Promises: a backup whose manifest is there is whole, and those before it stay so; a directory under
the name that a restore was asked for is whole; after either crash the same thing can be done again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.engines import PATH, World
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.check import check
from topics.engine.offline.restore import restore
from topics.storage.tiers import DirectoryStore
from topics.testing import CrashPlan, FakeClock, FakeDisk, Fault, FaultFs
from topics.testing.faultfs import Operation

DEST, TARGET = "/backups", "/restored"
QUICK = ("lose-all", "keep-all", "odd-sectors", "dirs-lost-data-kept")
PLANS = [plan for plan in CrashPlan.standard() if plan.name in QUICK]
# Every so many crashes what follows is tried as well.
DEEP_EVERY = 12

Tally = Callable[..., None]
Look = Callable[[FakeDisk, bool], None]


def prepared() -> World:
    """Two snapshots, a log, deletes, a backup, and something new since."""
    world = World()
    for _ in range(2):
        world.fill("a", 4, tag="x")
        world.engine.append("b", [{"data": "y" * 700}] * 3)
        world.engine.checkpoint()
    world.engine.delete("a", before_seq=3)
    world.engine.backup(DEST)
    world.clock.advance(10)
    world.fill("a", 4)
    world.engine.checkpoint()
    world.fill("b", 2)
    return world


def sweep(disk: FakeDisk, plans: list[CrashPlan], look: Look) -> list[int]:
    """Looks at what any crash from now on may leave; a list that ends with how many there were."""
    seen: list[int] = [0]

    def mutating(_index: int, _operation: str, _path: str) -> None:
        for plan in plans:
            seen[0] += 1
            image = disk.crashed(plan)
            look(image, seen[0] % DEEP_EVERY == 0)

    disk.on_mutation = mutating
    return seen


def crash_backups(plans: list[CrashPlan]) -> int:
    world = prepared()
    settings = world.settings

    def look(image: FakeDisk, is_deep: bool) -> None:
        store = DirectoryStore(image, DEST)
        found = backups.verify(store)
        assert found.ok, found.problems
        assert found.backups in (1, 2)
        if not is_deep:
            return
        clock = FakeClock(world.clock.wall_ms() + 1000)
        with Engine.open(PATH, fs=image, clock=clock, settings=settings) as engine:
            engine.backup(DEST)
            heads = {name: engine.state(name).head_seq for name in ("a", "b")}
        compare(image, clock, heads)

    seen = sweep(world.disk, plans, look)
    world.engine.backup(DEST)
    world.disk.on_mutation = None
    assert len(backups.manifests(DirectoryStore(world.disk, DEST))) == 2
    return seen[0]


def compare(disk: FakeDisk, clock: FakeClock, heads: dict[str, int]) -> None:
    """The newest backup is restored, and has all of it."""
    store = DirectoryStore(disk, DEST)
    restore(disk, store, TARGET, backups.choose(store)[0], clock=clock)
    with Engine.open(TARGET, fs=disk, clock=clock) as engine:
        assert {name: engine.state(name).head_seq for name in heads} == heads


def crash_restores(plans: list[CrashPlan], *, is_moment: bool) -> int:
    world = prepared()
    world.engine.backup(DEST)
    moment = world.clock.wall_ms() - 10 if is_moment else None
    store = DirectoryStore(world.disk, DEST)
    manifest, at = backups.choose(store, at_ms=moment)
    heads = {"a": 8, "b": 6} if is_moment else {"a": 12, "b": 8}

    def look(image: FakeDisk, is_deep: bool) -> None:
        if image.exists(TARGET):
            assert check(image, TARGET, clock=world.clock).ok
            with Engine.open(TARGET, fs=image, clock=world.clock) as engine:
                assert {name: engine.state(name).head_seq for name in heads} == heads
        elif is_deep:
            there = DirectoryStore(image, DEST)
            restore(image, there, TARGET, manifest, moment=at, clock=world.clock)

    seen = sweep(world.disk, plans, look)
    restore(world.disk, store, TARGET, manifest, moment=at, clock=world.clock)
    world.disk.on_mutation = None
    look(world.disk.crashed(PLANS[0]), False)
    assert world.disk.crashed(PLANS[0]).exists(TARGET)
    return seen[0]


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
