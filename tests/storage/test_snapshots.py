"""Snapshots that can not be read: once, for a while, or for good."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.engines import World, tagged
from topics.errors import StorageError
from topics.storage import snapshot
from topics.testing import FakeDisk
from topics.testing.faultfs import Fault, FaultFs, ReadEffect

SNAPSHOTS = "/data/snap"


def sealed_world() -> World:
    """Three checkpoints, each with records, deletes and a cap that has evicted, and a tail."""
    world = World(disk=FaultFs(FakeDisk()))  # type: ignore[arg-type]
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 9})
    for _ in range(3):
        world.engine.append("t", tagged("x", None, None, None))
        world.engine.delete("t", match="x")
        world.engine.checkpoint()
    world.engine.append("t", tagged("y"))
    return world


def fault_of(world: World, fault: Fault | None) -> None:
    assert isinstance(world.disk, FaultFs)
    world.disk.fault = fault


def newest(world: World) -> int:
    return snapshot.numbers(world.disk, SNAPSHOTS)[0]


def damage(world: World, number: int, at: int) -> None:
    file = world.disk.open(f"{SNAPSHOTS}/{snapshot.file_name(number)}")
    (byte,) = file.pread(1, at)
    file.pwrite(bytes([byte ^ 0x41]), at)
    file.sync()
    file.close()


def readable(world: World) -> list[int]:
    found = []
    for number in snapshot.numbers(world.disk, SNAPSHOTS):
        snapshot.read(world.disk, SNAPSHOTS, number)
        found.append(number)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["bit-flip", "truncation", "zero-sector"])
@pytest.mark.parametrize("at", [0, 30, 100])
def test_one_wrong_read_of_a_snapshot_costs_nothing(effect: ReadEffect, at: int) -> None:
    """It is read again; nothing is set aside or trimmed, now or at the start after."""
    for nth in range(1, 20):
        world = sealed_world()
        before, files = world.look("t"), set(world.disk.listdir("/data/seg"))
        world.engine.close()
        fault = Fault("pread", path_contains=".snap", nth=nth, read_effect=effect, damage_at=at)
        fault_of(world, fault)
        world.engine = world.open()
        assert world.look("t") == before
        assert set(world.disk.listdir("/data/seg")) == files
        world.engine.checkpoint()
        fault_of(world, None)
        world.restart()
        assert world.look("t") == before
        assert world.disk.listdir("/data/quarantine") == []
        assert len(readable(world)) == 2
        world.engine.close()
        if not fault.fired:
            break
    assert nth > 4


@pytest.mark.parametrize("checkpoints", [0, 1, 2, 3])
def test_a_snapshot_that_can_be_read_again_later_finds_all_it_names(checkpoints: int) -> None:
    """Nothing is cleared away on the ground of a snapshot that could not be read."""
    world = sealed_world()
    before, number = world.look("t"), newest(world)
    world.engine.close()
    name = snapshot.file_name(number)
    fault_of(world, Fault("pread", path_contains=name, forever=True, read_effect="bit-flip"))
    world.engine = world.open()
    assert world.look("t") == before
    for _ in range(checkpoints):
        world.engine.checkpoint()
    fault_of(world, None)
    for _ in range(3):
        world.restart()
        assert world.look("t") == before
    for number in readable(world)[:-1]:
        # Each of those that are kept would do.
        damage(world, number, 600)
        world.restart()
        assert world.look("t") == before


@pytest.mark.parametrize("at", [0, 20, 560, -1])
def test_two_snapshots_are_kept_that_are_readable_in_full(at: int) -> None:
    """A damaged one does not count as one of the two, whichever part of it is damaged."""
    world = sealed_world()
    before = world.look("t")
    for _ in range(3):
        world.engine.close()
        number = newest(world)
        path = f"{SNAPSHOTS}/{snapshot.file_name(number)}"
        size = world.disk.open(path, writable=False).size()
        damage(world, number, at % size)
        world.engine = world.open()
        assert world.look("t") == before
        world.engine.checkpoint()
        assert number not in snapshot.numbers(world.disk, SNAPSHOTS)
        assert len(readable(world)) == 2


def test_segments_that_the_log_does_not_account_for_are_never_removed() -> None:
    """Leftovers go once the log was seen to have their records, whatever became of the rest."""
    world = sealed_world()
    world.engine.close()
    for name in world.disk.listdir("/data/wal"):
        world.disk.unlink(f"/data/wal/{name}")
    segments = world.disk.listdir("/data/seg")
    for name in world.disk.listdir("/data/snap"):
        world.disk.unlink(f"/data/snap/{name}")
    with contextlib.suppress(StorageError):
        world.engine = world.open()
    kept = {*world.disk.listdir("/data/seg"), *world.disk.listdir("/data/quarantine")}
    assert set(segments) <= kept
