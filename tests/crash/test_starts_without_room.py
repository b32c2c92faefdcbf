"""A start writes down what it decided, or it has failed; a full disk has room enough for that."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.engines import PATH, Ending, World, explained
from topics.engine.engine import Engine
from topics.errors import DiskFull, TopicsError
from topics.settings import KIB
from topics.storage import columns, segment
from topics.testing import Fault, FaultFs, MonitorFs
from topics.testing.faultfs import Operation, ReadEffect

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


@pytest.mark.parametrize("nth", range(1, 11))
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


@pytest.mark.slow
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


def test_what_a_start_takes_back_for_want_of_room_is_vouched_for_by_nobody() -> None:
    """It goes on with smaller files, and MARKS knows of those only (MonitorFs watches)."""
    world = World(wal_shards=3)
    world.end("clean")
    full = Fault("allocate", nth=3, errno=errno.ENOSPC, path_contains=".wal")
    fs = MonitorFs(FaultFs(world.disk, full))
    with Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings) as engine:
        engine.append("a", [{"data": 1}])
    assert full.fired


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    ["open", "create", "listdir", "sync_dir", "unlink", "rename", "pwrite", "allocate"],
)
def test_a_start_that_failed_takes_nothing_from_an_orderly_stop(operation: Operation) -> None:
    """Nobody has seen anything of it: the next one finds the stop as it was."""
    world = World(wal_shards=2)
    world.engine.put_topic("ephemeral", {"durability": "ephemeral"})
    world.fill("ephemeral", 2)
    world.engine.checkpoint()
    epoch = world.engine.state("ephemeral").epoch
    world.end("clean")
    stopped = world.disk
    for nth in range(1, 30):
        world.disk = stopped.clone()
        fs = FaultFs(world.disk, Fault(operation, nth=nth, errno=errno.EMFILE))
        with contextlib.suppress(TopicsError):
            started = Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings)
            fs.fault = None
            started.close()
        with world.open() as engine:
            assert engine.state("ephemeral").epoch == epoch


def capped(durability: str) -> World:
    """A topic whose cap has evicted a part of a sealed block."""
    world = World()
    world.engine.put_topic("t", {"durability": durability, "cap_bytes": 1400})
    for size in (900, 10, 10, 10, 10, 10):
        world.engine.append("t", [{"data": "x" * size}])
    world.engine.checkpoint()
    world.engine.append("t", [{"data": "x" * 400}])
    return world


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("kind", ["memory", "descriptors", "one read", "one flip"])
@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_a_start_counts_what_a_cap_evicted_or_has_failed(
    durability: str, kind: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It guesses only where the disk can not read: what was seen within the cap stays there."""
    world = capped(durability)
    before = world.look("t")
    assert before.seqs == (2, 3, 4, 5, 6, 7)
    world.end("kill")
    fs = FaultFs(world.disk)
    if kind == "memory":
        read, left = segment.read_block, [MemoryError("planned"), *[None] * (nth - 1)]
        monkeypatch.setattr(segment, "read_block", lambda *given: _or_fails(left, read, *given))
    elif kind == "descriptors":
        fs.fault = Fault("open", nth=nth, errno=errno.EMFILE, path_contains=".seg")
    else:
        effect: ReadEffect = "bit-flip" if kind == "one flip" else "error"
        fs.fault = Fault("pread", nth=nth, path_contains=".seg", read_effect=effect)
    with contextlib.suppress(MemoryError, TopicsError):
        world.engine = Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings)
        monkeypatch.undo()
        fs.fault = None
        assert world.look("t") == before
        world.end("kill")
    monkeypatch.undo()
    world.engine = world.open()
    assert world.look("t") == before


def test_what_could_not_be_counted_is_counted_by_whoever_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic of class memory is brought back at its first use, and for that memory may run out."""
    world = capped("memory")
    before = world.look("t")
    world.end("kill")
    steps = Engine.opening(PATH, clock=world.clock, fs=world.disk, settings=world.settings)
    try:
        while True:
            next(steps)
    except StopIteration as ready:
        world.engine = ready.value
    read, left = segment.read_block, [MemoryError("planned")]
    monkeypatch.setattr(segment, "read_block", lambda *given: _or_fails(left, read, *given))
    with pytest.raises(MemoryError):
        world.engine.state("t")
    assert world.look("t") == before


def _or_fails(left: list[MemoryError | None], call: Callable[..., Any], *given: Any) -> Any:
    failure = left.pop() if left else None
    if failure is not None:
        raise failure
    return call(*given)


def test_a_start_that_fails_at_its_very_end_lets_go_of_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Topics of class memory come last; whoever opens again brings them back."""
    world = World()
    world.engine.append("m", [{"data": 1, "tag": "x"}], config={"durability": "memory"})
    world.end("clean")
    decode, left = columns.decode, [MemoryError("planned")]
    monkeypatch.setattr(columns, "decode", lambda *given: _or_fails(left, decode, *given))
    with pytest.raises(MemoryError):
        world.open()
    world.engine = world.open()
    assert world.look("m").seqs == (1,)
