"""Faults that no sweep comes by: each ends in a typed error or as if nothing had been."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest

from tests.crash.harness.io_errors import workload
from tests.crash.harness.log_harness import LOSE_ALL, ROOT, SETTINGS, Run, deterministic
from tests.support.engines import PATH, World, values
from topics.engine.engine import Engine
from topics.engine.state.topic import JOIN_BYTES_MAX
from topics.engine.state.write_request import request_of
from topics.errors import CorruptData, OutcomeUnknown, Poisoned, StorageError
from topics.settings import Settings
from topics.storage import columns, frames
from topics.testing import FakeClock, FakeDisk, Fault, FaultFs
from topics.testing.modelcheck import look, require

HOUR_MS = 3_600_000


def exhausted() -> None:
    raise MemoryError


def test_a_write_without_memory_is_rejected_and_the_next_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 1)
    with monkeypatch.context() as patch:
        patch.setattr(frames, "encode_group", lambda **_: exhausted())
        with pytest.raises(StorageError, match="no memory"):
            world.fill("t", 1)
    world.fill("t", 1)
    assert world.look("t").seqs == (1, 2)
    world.restart("crash")
    assert world.look("t").seqs == (1, 2)


def test_whoever_waits_for_a_sync_thread_that_fails_is_told() -> None:
    """Its error is not one of the disk; the outcome is unknown all the same."""
    disk, clock = FakeDisk(), FakeClock()
    fs = FaultFs(disk)
    engine = Engine.open(PATH, clock=clock, fs=fs, settings=Settings(threads=True, wal_shards=2))
    engine.put_topic("t", {"durability": "fsync"})
    fs.fault = Fault("sync", path_contains="/wal/", action=exhausted)
    with pytest.raises((OutcomeUnknown, Poisoned)):
        engine.append("t", [{"data": 1}])
    with pytest.raises(Poisoned):
        engine.append("t", [{"data": 2}])
    engine.close()


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_a_clock_that_jumps_during_a_sync_lowers_nothing(jump_ms: int) -> None:
    disk, clock = FakeDisk(), FakeClock()
    fs = FaultFs(disk)
    engine = Engine.open(PATH, clock=clock, fs=fs, settings=Settings(threads=False, wal_shards=2))
    engine.put_topic("t", {"durability": "fsync", "ttl_ms": 1000})
    for nth in range(1, 6):
        fs.fault = Fault(
            "sync", nth, errno=0, sync_effect="persisted",
            action=lambda: clock.jump_wall(jump_ms),
        )  # fmt: skip
        before = engine.state("t")
        times = [engine.append("t", [{"data": n}]).ts for n in range(4)]
        clock.advance(1001)
        after = engine.state("t")
        assert times == sorted(times)
        assert after.evict_floor >= before.evict_floor
        assert after.head_seq == before.head_seq + 4
    fs.fault = None
    floor = engine.state("t").evict_floor
    image = disk.crash(LOSE_ALL)
    again = Engine.open(PATH, clock=clock, fs=image, settings=Settings(threads=False, wal_shards=2))
    assert again.state("t").evict_floor >= floor


def test_a_filesystem_without_directory_syncs_is_refused() -> None:
    """Names would not be durable, and nothing could be promised."""
    fs = FaultFs(FakeDisk(), Fault("sync_dir", errno=errno.EINVAL, forever=True))
    with pytest.raises(StorageError):
        Engine.open(PATH, clock=FakeClock(), fs=fs)


@pytest.mark.parametrize("lies_from", [1, 3, 6, 9, 14])
def test_a_disk_that_lies_about_syncs_loses_but_does_not_deceive(lies_from: int) -> None:
    """What was acknowledged may be gone. What is read was written, and damage is refused."""
    with deterministic(1):
        seen: list[FaultFs] = []

        def wrap(disk: FakeDisk) -> FaultFs:
            seen.append(FaultFs(disk))
            return seen[-1]

        run = Run(wrap=wrap)
        seen[0].fault = Fault(
            "sync", lies_from, errno=0, sync_effect="ignored", forever=True, path_contains="/wal/"
        )
        workload(run)
        image = run.disk.crashed(LOSE_ALL)
        try:
            engine = open_again(image)
        except CorruptData:
            return
        first = {name: contents(engine, name, run) for name in engine.list_topics()}
        engine.close()
        engine = open_again(image)
        assert {name: contents(engine, name, run) for name in engine.list_topics()} == first


def open_again(image: FakeDisk) -> Engine:
    return Engine.open(ROOT, clock=FakeClock(), fs=image, settings=SETTINGS)


def contents(engine: Engine, name: str, run: Run) -> dict[int, dict[str, Any]]:
    """The records of a topic, each of which must have been written so."""
    seen = look(engine, name)
    topic = run.model.topics.get(name)
    for seq, record in seen.records.items():
        if topic is not None and seen.state["epoch"] == topic.epoch:
            require(record == topic.entries[seq - 1].content(seq), f"{name}: {seq} reads {record}")
    return seen.records


def test_a_router_whose_read_failed_goes_on_and_so_do_the_others() -> None:
    """One failed read neither stops its router nor takes the turn of another one."""
    clock, fs = FakeClock(), FaultFs(FakeDisk())
    settings = Settings(threads=False, wal_shards=2)
    with Engine.open(PATH, clock=clock, fs=fs, settings=settings) as engine:
        for name in "ac":
            engine.put_topic(name, {"durability": "fsync"})
            engine.append(name, [{"data": name}])
        engine.checkpoint()
    with Engine.open(PATH, clock=clock, fs=fs, settings=settings) as engine:
        engine.submit_router("a->b", {"source": "a", "dest": "b", "from_seq": 0})
        engine.submit_router("c->d", {"source": "c", "dest": "d", "from_seq": 0})
        engine.sync()
        fs.fault = Fault("pread", path_contains=".seg")
        with pytest.raises(StorageError):
            engine.forward()
        assert [values(engine.diff(name)) for name in "bd"] == [[], ["c"]]
        assert engine.router("a->b").blocked
        clock.advance(2000)
        engine.forward()
        assert values(engine.diff("b")) == ["a"]
        assert not engine.router("a->b").blocked


@pytest.mark.parametrize("nth", [1, 2])
def test_a_step_of_a_router_that_can_not_be_put_together_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """It is made later, as a whole: nothing is passed over and nothing is copied twice."""
    world = World()
    engine = world.engine
    engine.put_topic("a", {"durability": "ephemeral"})
    engine.put_router("a->b", {"source": "a", "dest": "b"})
    # Each of them is a piece of its own.
    large = ["x" * JOIN_BYTES_MAX, "y" * JOIN_BYTES_MAX]
    for value in large:
        engine.submit_append("a", request_of([{"data": value}]))
    calls = itertools.count(1)
    encode = columns.encode

    def fails(*given: Any, **named: Any) -> Any:
        return exhausted() if next(calls) == nth else encode(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(columns, "encode", fails)
        with pytest.raises(MemoryError):
            engine.forward()
    world.clock.advance(2000)
    while engine.forward():
        pass
    assert values(engine.diff("b")) == large
    world.restart("kill")
    assert values(world.engine.diff("b")) == large


def test_a_step_into_memory_that_the_log_refused_is_seen_by_nobody() -> None:
    """Copies in an ephemeral topic come with the cursor that is behind them, or not at all."""
    clock, fs = FakeClock(), FaultFs(FakeDisk())
    with Engine.open(
        PATH, clock=clock, fs=fs, settings=Settings(threads=False, wal_shards=2)
    ) as engine:
        engine.put_topic("a", {"durability": "fsync"})
        engine.put_topic("b", {"durability": "ephemeral"})
        engine.put_router("a->b", {"source": "a", "dest": "b", "guarantee": "exactly_once"})
        engine.submit_append("a", request_of([{"data": 1}, {"data": 2}]))
        engine.sync()
        fs.fault = Fault("pwrite", errno=errno.ENOSPC, path_contains=".wal")
        engine.forward()
        assert fs.fault.fired
        assert values(engine.diff("b")) == []
        clock.advance(2000)
        engine.forward()
        assert values(engine.diff("b")) == [1, 2]
