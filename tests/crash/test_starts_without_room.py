"""A start writes down what it decided, or it has failed; a full disk has room enough for that."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.support.engines import PATH, Ending, World, explained
from topics.engine.engine import Engine
from topics.errors import DiskFull
from topics.settings import KIB
from topics.testing import Fault, FaultFs

CLASSES = ("memory", "disk", "ephemeral")


def shown(engine: Engine) -> dict[str, Any]:
    """What readers go by: the epoch, the head, and what became of every seq."""
    states = {name: engine.state(name) for name in CLASSES}
    return {
        name: (state.epoch, state.head_seq, explained(engine, name))
        for name, state in states.items()
    }


def _delete_until_full(world: World) -> None:
    for number in range(10_000):
        world.engine.delete("t", before_seq=number)


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_start_that_could_not_write_what_it_decided_has_failed(error: int, nth: int) -> None:
    """Whichever write of it finds no room: what a start that became ready shows stays so."""
    world = World(wal_shards=2)
    for name in CLASSES:
        world.engine.put_topic(name, {"durability": name})
        world.fill(name, 3)
    world.end("crash")
    fs = FaultFs(world.disk, Fault("pwrite", path_contains=".wal", nth=nth, errno=error))
    try:
        engine = Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings)
    except DiskFull:
        engine = world.open()
    before = shown(engine)
    engine.close()
    world.engine = world.open()
    assert shown(world.engine) == before
    assert before["disk"][2][-1][2] == "crash"


@pytest.mark.parametrize("ending", ["kill", "crash"])
def test_a_full_disk_has_room_for_what_a_start_decides_of_many_topics(ending: Ending) -> None:
    """A new epoch, a floor or a hole is written down for each of them, start after start."""
    world = World(wal_shards=1, wal_file_bytes=1024 * KIB, wal_reserve_bytes=256 * KIB)
    for number in range(300):
        durability = CLASSES[number % len(CLASSES)]
        world.engine.put_topic(f"t{number}", {"durability": durability})
        world.fill(f"t{number}", 1)
    world.engine.put_topic("t", {"durability": "fsync"})
    world.disk.capacity_bytes = world.disk.used_bytes()
    with pytest.raises(DiskFull):
        world.fill("t", 1000, data="x" * 9000)
    with pytest.raises(DiskFull):
        _delete_until_full(world)
    engine = world.restart(ending)
    assert engine.delete("t", before_seq=2)
    kept = [f"t{number}" for number in range(300) if number % len(CLASSES) != 2]
    before = {name: (engine.state(name).epoch, explained(engine, name)) for name in kept}
    engine = world.restart("kill")
    after = {name: (engine.state(name).epoch, explained(engine, name)) for name in kept}
    assert after == before
