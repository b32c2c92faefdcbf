"""A failed sync ends everything at once, whoever meets it first.

The note for the next start is left and every ticket of every shard ends, once, whichever call the
failure surfaces through; what was acknowledged and is gone is told, and no seq is used twice.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tiers import quick_first
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.errors import OutcomeUnknown, Poisoned, TopicsError
from topics.settings import Settings
from topics.testing import FakeClock, FakeDisk, Fault, FaultFs, Lateness, MonitorFs

SETTINGS = Settings(
    threads=False, wal_shards=2, wal_file_bytes=65536, wal_reserve_bytes=4096, gc_freeze=False
)
TOPICS = {
    "disk": {"durability": "disk"}, "disk2": {"durability": "disk"},
    "fsync": {"durability": "fsync"}, "fsync2": {"durability": "fsync"},
    "aged": {"durability": "disk", "ttl_ms": 50}, "memory": {"durability": "memory"},
    "jobs": {"type": "queue", "durability": "disk", "leases_durable": True},
    "ephemeral": {"durability": "ephemeral"},
}  # fmt: skip

CALLS: dict[str, Callable[[Engine], Any]] = {
    "flush": lambda e: e.flush(),
    "poll": lambda e: e.poll(),
    "sync": lambda e: e.sync(),
    "maintain": lambda e: e.maintain(),
    "checkpoint": lambda e: e.checkpoint(),
    "close": lambda e: e.close(),
    "state": lambda e: e.state("disk"),
    "state of another": lambda e: e.state("memory"),
    "read what expires": lambda e: e.diff("aged"),
    "explain": lambda e: e.explain("disk"),
    "append": lambda e: e.append("fsync2", [{"data": 1}]),
    "append with a key": lambda e: e.append("disk", [{"data": 1}], idempotency_key="key"),
    "delete": lambda e: e.delete("disk", before_seq=2),
    "drop": lambda e: e.submit_drop("memory", if_empty=False),
    "create": lambda e: e.put_topic("new", {}),
    "another class": lambda e: e.submit_put("disk", {"durability": "fsync"}),
    "promotion": lambda e: e.submit_put("ephemeral", {"durability": "disk"}),
    "resident": lambda e: e.append("ephemeral", [{"data": 1}]),
    "cursor": lambda e: e.put_cursor("disk", "reader", seq=1),
    "claim": lambda e: e.claim("jobs", "worker"),
    "router": lambda e: e.put_router("r", {"source": "disk", "dest": "copy"}),
    "forward": lambda e: e.forward_now(),
}


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.faults = FaultFs(FakeDisk())
        self.engine = Engine.open(
            "/data", clock=self.clock, fs=MonitorFs(self.faults), settings=SETTINGS
        )
        for name, config in TOPICS.items():
            self.engine.put_topic(name, config)
            self.engine.append(name, [{"data": 0}], idempotency_key=f"key {name}")
        self.engine.sync()
        self.late = Lateness(self.faults)
        self.late.attach(self.engine)
        self.answers: dict[Ticket, int] = {}

    def submit(self, name: str) -> Ticket:
        ticket = self.engine.submit_append(name, request_of([{"data": 1}] * 2))
        self.answers[ticket] = int(ticket.done)

        def told(ticket: Ticket) -> None:
            self.answers[ticket] += 1

        ticket.callback = told
        return ticket

    def fail_a_sync(self, shard: int) -> None:
        self.faults.fault = Fault("sync", path_contains=".wal", forever=True)
        self.engine.core.log.shards[shard].sync()
        self.faults.fault = None


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_whoever_meets_the_failure_first_all_are_answered_and_it_is_noted(
    call: str, shard: int
) -> None:
    world = World()
    engine = world.engine
    acked = engine.append("disk", [{"data": "acknowledged"}]).last_seq
    epoch = engine.state("disk").epoch
    for name in ("fsync", "fsync2", "disk", "ephemeral"):
        world.submit(name)
    engine.flush()
    world.clock.advance(100)
    world.fail_a_sync(shard)
    for name in ("disk", "disk2", "fsync", "fsync2", "memory"):
        world.submit(name)
    with contextlib.suppress(Poisoned, OutcomeUnknown):
        CALLS[call](engine)
    for each in (engine.flush, engine.poll, engine.maintain, engine.close):
        with contextlib.suppress(TopicsError):
            each()
    assert set(world.answers.values()) == {1}, "each ticket ends once"
    assert world.faults.exists("/data/POISONED")
    disk = world.faults.inner.kill()  # type: ignore[attr-defined]
    again = Engine.open("/data", clock=world.clock, fs=disk, settings=SETTINGS)
    state = again.state("disk")
    assert state.epoch == epoch
    page = again.diff("disk", from_seq=acked - 1, epoch=epoch)
    is_told = page.tombstone is not None and page.tombstone.gap_from <= acked
    assert is_told or page.records[0].value == "acknowledged"
    assert again.append("disk", [{"data": 2}]).first_seq > acked
    again.close()


@pytest.mark.parametrize("seed", quick_first(range(40), 15))
def test_tickets_end_once_however_syncs_end(seed: int) -> None:
    """Syncs that end late, out of order and failed, between any calls."""
    rng, world = random.Random(seed), World()
    engine = world.engine
    calls = [call for name, call in CALLS.items() if name != "close"]
    for _ in range(60):
        with contextlib.suppress(TopicsError):
            world.submit(rng.choice(sorted(TOPICS.keys() - {"jobs"})))
            for _ in range(rng.randrange(3)):
                world.late.step(rng, fails=0.05)
            if rng.random() < 0.3:
                rng.choice(calls)(engine)
            rng.choice([engine.flush, engine.poll, engine.maintain])()
        world.clock.advance(rng.choice((0, 10, 60)))
    is_poisoned = engine.core.committer.poison is not None
    assert world.faults.exists("/data/POISONED") == is_poisoned
    with contextlib.suppress(TopicsError):
        engine.close()
    assert set(world.answers.values()) == {1}


def test_a_failed_sync_of_marks_ends_the_writes_of_every_shard() -> None:
    """What one thread could not make durable is written to by no other (MonitorFs watches)."""
    world = World()
    engine = world.engine
    tickets = [world.submit(name) for name in ("fsync", "fsync2")]
    engine.flush()
    first, second = engine.core.log.shards
    world.faults.fault = Fault("sync", path_contains="MARKS")
    first.settle()
    second.sync()
    assert first.poison is not None
    assert second.poison is not None
    with pytest.raises(Poisoned):
        engine.poll()
    assert all(isinstance(ticket.error, OutcomeUnknown) for ticket in tickets)
