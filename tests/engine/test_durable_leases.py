"""Durable leases: what was handed out stays handed out, whatever ends the process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.engines import ENDINGS, Ending, World
from topics.clock import WallAt
from topics.engine.state.queue_values import Claimant
from topics.engine.state.write_request import request_of
from topics.engine.upkeep.checkpoint import checkpoint
from topics.errors import DiskFull
from topics.settings import KIB
from topics.testing import FakeClock

CONFIG: dict[str, Any] = {
    "type": "queue", "lease_ms": 1000, "durability": "fsync", "leases_durable": True,
}  # fmt: skip


@pytest.fixture
def queue(world: World) -> World:
    world.engine.put_topic("q", CONFIG)
    return world


def counts(world: World) -> tuple[int, int]:
    state = world.engine.queue_state("q")
    return state.ready, state.in_flight


def taken(world: World, node: str = "b", most: int = 100) -> list[tuple[int, int]]:
    """Seqs and deliveries of what a claim gets."""
    jobs = msgspec.json.decode(world.engine.claim("q", node, most).json)
    return [(job["$seq"], job["deliveries"]) for job in jobs]


def live_a_little(world: World) -> list[tuple[int, str]]:
    """Jobs in every state: 1 acknowledged, 2 held, 3 given back, 4 delayed, 5 extended, 6 fresh."""
    world.fill("q", 6)
    jobs = world.engine.claim("q", "a", 5).jobs
    world.engine.ack("q", "a", [1])
    world.engine.nack("q", "a", [3])
    world.engine.nack("q", "a", [4], 500)
    world.engine.extend("q", "a", [5], 5000)
    return [(job.seq, job.lease_id) for job in jobs]


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
@pytest.mark.parametrize("how", ENDINGS)
def test_leases_survive_with_holder_token_deliveries_and_time_left(
    queue: World, how: Ending, checkpoints: int
) -> None:
    """Held, given back, delayed and extended jobs are as they were, from log or snapshot."""
    ids = dict(live_a_little(queue))
    for _ in range(checkpoints):
        queue.engine.checkpoint()
    queue.clock.advance(400)
    queue.restart(how)
    queue.restart(how)
    assert counts(queue) == (2, 2)
    assert taken(queue) == [(3, 2), (6, 1)]
    queue.clock.advance(100)
    assert taken(queue) == [(4, 2)]
    queue.clock.advance(501)
    assert taken(queue) == [(2, 2)]
    assert queue.engine.ack("q", "a", [2, 5], [ids[2], ids[5]]).skipped == [2]
    assert queue.look("q").seqs == (2, 3, 4, 6)


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_lease_ends_when_its_holder_was_told_after_a_restart_too(
    queue: World, checkpoints: int
) -> None:
    """Whatever part of a millisecond the two clocks are apart by."""
    queue.fill("q", 2)
    told = {job.seq: job.deadline for job in queue.engine.claim("q", "a", 2).jobs}
    queue.clock.advance(300)
    told |= queue.engine.extend("q", "a", [2], 5000).deadlines
    for _ in range(checkpoints):
        queue.engine.checkpoint()
    for jitter_ms in (1, -1, 1):
        queue.clock.jump_wall(jitter_ms)
        assert {held.seq: held.expires_ts for held in queue.engine.held_jobs("q")} == told
    queue.clock.jump_wall(-1)
    queue.restart("kill")
    assert {held.seq: held.expires_ts for held in queue.engine.held_jobs("q")} == told


def test_a_wall_that_was_moved_moves_the_ends_of_leases(queue: World) -> None:
    """They are as far away as before: a lease is measured with the other clock."""
    queue.fill("q", 1)
    deadline = queue.engine.claim("q", "a").jobs[0].deadline
    queue.clock.jump_wall(3_600_000)
    assert [held.expires_ts for held in queue.engine.held_jobs("q")] == [deadline + 3_600_000]


def test_a_pause_between_two_clocks_does_not_move_the_ends_of_leases() -> None:
    """A thread may be kept waiting after it has read the wall, the first time as well."""
    clock = FakeClock()
    pauses_ms = [50, 0, 0, 0, 80, 0, 0]
    read = clock.monotonic_s

    def late() -> float:
        return read() + (pauses_ms.pop(0) if pauses_ms else 0) / 1000

    clock.monotonic_s = late  # type: ignore[method-assign]
    wall_at = WallAt(clock)
    now_ms, wall_ms = round(read() * 1000), clock.wall_ms()
    assert [wall_at(now_ms) for _ in range(3)] == [wall_ms] * 3
    assert pauses_ms == []


def test_a_lease_is_never_longer_after_a_restart_than_before(queue: World) -> None:
    """A wall clock that went back across a restart leaves at most the lease's own length."""
    queue.fill("q", 1)
    queue.engine.claim("q", "a")
    queue.engine.close()
    queue.clock.jump_wall(-3_600_000)
    queue.engine = queue.open()
    assert counts(queue) == (0, 1)
    queue.clock.advance(1001)
    assert counts(queue) == (1, 0)


def test_an_expired_lease_is_expired_after_a_restart_too(queue: World) -> None:
    """Its holder may still acknowledge until the job is handed to somebody else."""
    queue.fill("q", 2)
    queue.engine.claim("q", "a", 2)
    queue.clock.advance(1001)
    queue.engine.checkpoint()
    queue.restart("kill")
    assert counts(queue) == (2, 0)
    assert queue.engine.ack("q", "a", [1]).acked == 1
    assert taken(queue) == [(2, 2)]


def test_a_claim_is_handed_out_only_when_it_is_durable(world: World) -> None:
    """Also on a queue whose jobs need no sync; meanwhile nobody else gets the job."""
    world.engine.put_topic("q", CONFIG | {"durability": "disk"})
    world.fill("q", 2)
    engine = world.engine
    first = engine.submit_claims("q", [Claimant("a")])
    second = engine.submit_claims("q", [Claimant("b", 5)])
    assert not first.done
    assert counts(world) == (0, 2)
    assert first.done
    assert engine.core.committer.is_durable(engine.core.by_name["q"])
    assert (first.result[0].seqs, second.result[0].seqs) == ([1], [2])


def test_what_a_full_disk_refuses_is_as_if_it_had_not_been_asked(queue: World) -> None:
    """A claim that could not be written is not handed out; its jobs return, uncounted."""
    live_a_little(queue)
    queue.clock.advance(600)
    before = counts(queue)
    held = dict(queue.engine.core.by_name["q"].queue.leases)
    queue.disk.capacity_bytes = queue.disk.used_bytes()
    engine, node = queue.engine, "a"
    tickets = [
        engine.submit_append("q", request_of([{"data": "x" * 60_000}])),
        engine.submit_nack("q", node, [2]),
        engine.submit_claims("q", [Claimant("b", 9)]),
        engine.submit_extend("q", node, [5], 100),
        engine.submit_ack("q", node, [5]),
    ]
    queue.engine.flush()
    assert all(isinstance(ticket.error, DiskFull) for ticket in tickets)
    assert counts(queue) == before
    assert queue.engine.core.by_name["q"].queue.leases == held
    queue.disk.capacity_bytes = None
    assert taken(queue) == [(3, 2), (4, 2), (6, 1)]
    queue.clock.advance(600)
    assert taken(queue, "c") == [(2, 2)]


@pytest.mark.parametrize("how", ENDINGS)
def test_leases_become_durable_and_cease_to_be_with_the_config(world: World, how: Ending) -> None:
    """Made durable, the leases that stand are kept; no longer durable, a restart forgets them."""
    world.engine.put_topic("q", CONFIG | {"leases_durable": False})
    live_a_little(world)
    world.engine.put_topic("q", CONFIG)
    world.restart(how)
    assert counts(world) == (2, 2)
    assert taken(world, "c") == [(3, 2), (6, 1)]
    world.engine.put_topic("q", CONFIG | {"leases_durable": False})
    assert counts(world) == (0, 4)
    world.restart(how)
    assert counts(world) == (5, 0)
    assert taken(world) == [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]


def test_an_ephemeral_queue_keeps_its_leases_once_it_is_durable(world: World) -> None:
    """As long as it is ephemeral they go with the jobs; with those, they become durable."""
    world.engine.put_topic("q", CONFIG | {"durability": "ephemeral"})
    world.fill("q", 2)
    assert taken(world, "a", 1) == [(1, 1)]
    world.engine.put_topic("q", CONFIG)
    world.fill("q", 1)
    world.restart("kill")
    assert counts(world) == (2, 1)
    assert world.engine.ack("q", "a", [1]).acked == 1
    world.engine.put_topic("q", CONFIG | {"durability": "ephemeral"})
    world.engine.claim("q", "a")
    world.restart("kill")
    assert counts(world) == (0, 0)


def test_lease_events_during_a_checkpoint_are_neither_lost_nor_doubled(queue: World) -> None:
    """What is claimed and given back between the steps of a checkpoint is there afterwards."""
    queue.fill("q", 40)
    engine = queue.engine
    core = engine.core
    for step, _ in enumerate(checkpoint(core)):
        if step < 12:
            got = engine.claim("q", "a", 3).seqs
            engine.ack("q", "a", got[:1])
            engine.nack("q", "a", got[1:2])
    before = counts(queue)
    tries = dict(core.by_name["q"].queue.tries)
    leases = {seq: lease[:2] for seq, lease in core.by_name["q"].queue.leases.items()}
    queue.restart("crash")
    after = queue.engine.core.by_name["q"].queue
    assert counts(queue) == before
    assert (after.tries, {s: lease[:2] for s, lease in after.leases.items()}) == (tries, leases)


@pytest.mark.slow
def test_lease_events_alone_do_not_let_the_log_grow(world: World) -> None:
    """Workers that only claim and give back cause checkpoints, which trim their events."""
    world.engine.close()
    world.set(seal_bytes=100 * KIB)
    world.engine = world.open()
    world.engine.put_topic("q", CONFIG)
    world.fill("q", 1)
    sizes = []
    for _ in range(1500):
        world.engine.claim("q", "a")
        world.engine.nack("q", "a", [1])
        world.clock.advance(60)
        world.engine.maintain(1.0)
        sizes.append(sum(len(raw) for name, raw in world.disk.files().items() if "/wal/" in name))
    assert max(sizes[500:]) <= max(sizes[:500])
    assert taken(world) == [(1, 1501)]
    world.restart("crash")
    assert counts(world) == (0, 1)
