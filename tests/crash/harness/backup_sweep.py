"""Crashes before every mutating call of a backup and of a restore, and what they may leave."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.engines import PATH, World
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.check import check
from topics.engine.offline.restore import restore
from topics.storage.tiers import DirectoryStore
from topics.testing import CrashPlan, FakeClock, FakeDisk

DEST, TARGET = "/backups", "/restored"
QUICK = ("lose-all", "keep-all", "odd-sectors", "dirs-lost-data-kept")
PLANS = [plan for plan in CrashPlan.standard() if plan.name in QUICK]
# Every so many crashes what follows is tried as well.
DEEP_EVERY = 12

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
    assert len(list(backups.manifests(DirectoryStore(world.disk, DEST)))) == 2
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
