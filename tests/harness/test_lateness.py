"""A late sync vouches for what was there when it began, and ends when the test says so."""

from __future__ import annotations

import contextlib
import random

import pytest

from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.errors import OutcomeUnknown, Poisoned
from topics.settings import Settings
from topics.testing import FakeClock, FakeDisk, FaultFs, Lateness, MonitorFs

SETTINGS = Settings(
    threads=False, wal_shards=2, wal_file_bytes=65536, wal_reserve_bytes=4096, gc_freeze=False
)


class Late:
    """Two `fsync` topics, one on each shard, of an engine whose syncs a test ends."""

    def __init__(self) -> None:
        self.faults = FaultFs(FakeDisk())
        self.engine = Engine.open(
            "/data", clock=FakeClock(), fs=MonitorFs(self.faults), settings=SETTINGS
        )
        for name in ("a", "b"):
            self.engine.put_topic(name, {"durability": "fsync"})
        self.late = Lateness(self.faults)
        self.late.attach(self.engine)
        self.shard = {name: self.engine.core.by_name[name].id % 2 for name in ("a", "b")}

    def write(self, name: str) -> Ticket:
        ticket = self.engine.submit_append(name, request_of([{"data": 0}]))
        self.engine.flush()
        return ticket


def test_a_sync_covers_what_was_written_before_it_began_and_nothing_later() -> None:
    world = Late()
    early = world.write("a")
    world.late.take("begin sync", world.shard["a"], None)
    later = world.write("a")
    world.late.take("end sync", world.shard["a"], None)
    world.engine.poll()
    assert (early.done, later.done) == (True, False)
    world.late.drain()
    world.engine.poll()
    assert later.result.first_seq == 2


def test_shards_end_out_of_order() -> None:
    """Over some seeds, either of two shards is answered first."""
    first = set()
    for seed in range(20):
        world, rng = Late(), random.Random(seed)
        tickets = {name: world.write(name) for name in ("a", "b")}
        while not any(ticket.done for ticket in tickets.values()):
            world.late.step(rng)
            world.engine.poll()
        first.update(name for name, ticket in tickets.items() if ticket.done)
    assert first == {"a", "b"}


def test_a_failed_sync_poisons() -> None:
    world, rng = Late(), random.Random(1)
    ticket = world.write("a")
    world.late.step(rng, fails=1.0)
    world.late.step(rng, fails=1.0)
    with pytest.raises(Poisoned):
        world.engine.poll()
    assert isinstance(ticket.error, OutcomeUnknown)
    world.engine.close()


def test_a_blocking_call_ends_what_it_waits_for_and_close_the_rest() -> None:
    world = Late()
    world.write("b")
    assert world.engine.append("a", [{"data": 1}]).first_seq == 1
    world.engine.checkpoint()
    world.write("b")
    world.engine.close()
    again = Engine.open("/data", clock=FakeClock(), fs=world.faults, settings=SETTINGS)
    assert again.state("b").head_seq == 2
    again.close()


def test_a_job_runs_when_it_is_its_turn() -> None:
    """A checkpoint stands still while the log is synced, and while a file of its own is."""
    world, rng = Late(), random.Random(3)
    world.write("a")
    world.late.drain()
    world.engine.maintain()
    for name in ("a", "b"):
        world.write(name)
    assert world.engine.begin_checkpoint()
    seen: list[str] = []
    while world.engine.maintain():
        before = world.late.pending
        world.engine.maintain()
        assert world.late.pending == before, "it went on without what it waits for"
        seen.append(world.late.step(rng) or "")
    assert {"begin sync 0", "end sync 1", "job 0"} <= set(seen)
    assert world.engine.core.numbers.snapshot == 1


def test_the_next_log_file_is_a_step_of_its_own_behind_a_sync() -> None:
    """So over some seeds a log goes on in another file before it and after it."""
    seen = set()
    for seed in range(20):
        world, rng = Late(), random.Random(seed)
        shard = world.engine.core.log.shards[world.shard["a"]]
        while shard.current.number == 1:
            world.engine.submit_append("a", request_of([{"data": "x" * 2000}]))
            world.engine.flush()
            if rng.random() < 0.2:
                world.late.step(rng)
        made = any(step.startswith("prepare") for step in world.late.trace)
        seen.add(made)
        world.late.drain()
        world.engine.poll()
        world.engine.close()
    assert seen == {True, False}


@pytest.mark.parametrize("seed", range(30))
def test_a_next_log_file_that_can_not_be_made_is_no_loss(seed: int) -> None:
    """Some failures poison, want of room and descriptors does not; what was answered is there."""
    world, rng = Late(), random.Random(seed)
    shard = world.engine.core.log.shards[world.shard["a"]]
    tickets = []
    while not shard.is_filling:
        tickets.append(world.engine.submit_append("a", request_of([{"data": "x" * 2000}])))
        world.engine.flush()
    while not any(step.startswith("prepare") for step in world.late.pending):
        world.late.take("begin sync", shard.index, None)
        world.late.take("end sync", shard.index, None)
    while any(step.startswith("prepare") for step in world.late.pending):
        world.late.step(rng, fails=1.0)
    with contextlib.suppress(Poisoned):
        while world.engine.poll():
            pass
    done = [ticket for ticket in tickets if ticket.done and ticket.error is None]
    assert done or shard.poison is not None
    world.engine.close()
    world.faults.fault = None
    again = Engine.open("/data", clock=FakeClock(), fs=world.faults, settings=SETTINGS)
    assert again.state("a").head_seq >= len(done)
    again.close()


def test_equal_seeds_take_equal_steps() -> None:
    def trace(seed: int) -> list[str]:
        world, rng = Late(), random.Random(seed)
        for turn in range(40):
            world.write("ab"[rng.randrange(2)])
            world.late.step(rng)
            world.engine.poll()
            if turn % 10 == 9:
                world.late.drain()
        world.engine.close()
        return world.late.trace

    assert trace(5) == trace(5) != trace(6)
