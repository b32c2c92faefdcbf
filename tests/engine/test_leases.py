"""Leases: one holder at a time, until it acknowledges, gives back or runs out of time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.engines import ENDINGS, Ending, World
from topics.engine.state.queue_values import Claimant, Claimed
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound

LEASE_MS = 1000


@pytest.fixture
def queue(world: World) -> World:
    world.engine.put_topic("q", {"type": "queue", "lease_ms": LEASE_MS})
    return world


def counts(world: World) -> tuple[int, int]:
    state = world.engine.queue_state("q")
    told = world.engine.state("q").queue
    assert told == state
    return state.ready, state.in_flight


def taken(world: World, node: str = "a", most: int = 100, **options: Any) -> list[int]:
    return world.engine.claim("q", node, most, **options).seqs


def told(claimed: Claimed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(claimed.json)
    return found


def test_a_claim_leases_the_next_jobs_in_order_and_counts_the_rest(queue: World) -> None:
    """Jobs come ascending by seq; what is leased is in flight, what waits is ready."""
    queue.fill("q", 5)
    first = queue.engine.claim("q", "a", 2)
    assert (first.seqs, first.ready, first.in_flight) == ([1, 2], 3, 2)
    second = queue.engine.claim("q", "b", 9)
    assert (second.seqs, second.ready, second.in_flight) == ([3, 4, 5], 0, 5)
    assert taken(queue) == []
    assert counts(queue) == (0, 5)


def test_a_job_is_told_with_its_lease_and_its_record(queue: World) -> None:
    """The wire object has the lease's fields beside the record's own, data as it was written."""
    body = b'{"records":[{"data":1.0,"tag":"t","node":"n","meta":{"k":"v"}},{"data":{"$seq":9}}]}'
    queue.engine.append_json("q", body)
    claimed = queue.engine.claim("q", "a", 2)
    deadline = queue.clock.wall_ms() + LEASE_MS
    one, two = told(claimed)
    assert b'"data":1.0' in claimed.json
    assert one == {
        "$seq": 1, "$ts": queue.clock.wall_ms(), "$node": "n", "$tag": "t", "data": 1.0,
        "meta": {"k": "v"}, "lease_id": claimed.jobs[0].lease_id, "deadline": deadline,
        "deliveries": 1,
    }  # fmt: skip
    assert two["data"] == {"$seq": 9}
    assert [(job.seq, job.deadline) for job in claimed.jobs] == [(1, deadline), (2, deadline)]
    assert [msgspec.json.decode(job.json[:-1]) for job in claimed.jobs] == [one, two]
    assert len({job.lease_id for job in claimed.jobs}) == 2


def test_only_the_holder_acknowledges_and_the_job_is_deleted(queue: World) -> None:
    """An ack counts for what its node holds, skips the rest, and can be repeated."""
    queue.fill("q", 3)
    taken(queue, "a", 2)
    taken(queue, "b", 1)
    done = queue.engine.ack("q", "a", [1, 3, 99, 2, 1])
    assert (done.acked, done.skipped, done.ready, done.in_flight) == (2, [3, 99], 0, 1)
    assert queue.look("q").seqs == (3,)
    again = queue.engine.ack("q", "a", [1, 2])
    assert (again.acked, again.skipped) == (0, [1, 2])
    assert [(part.first, part.state) for part in queue.engine.explain("q")] == [
        (1, "deleted"), (3, "live"),
    ]  # fmt: skip


def test_a_lease_holds_up_to_its_deadline_and_runs_out_behind_it(queue: World) -> None:
    """An expired lease is ready at once; the job comes back in front of fresh ones, counted."""
    queue.fill("q", 3)
    taken(queue, "a", 2)
    queue.clock.advance(LEASE_MS)
    assert counts(queue) == (1, 2)
    queue.clock.advance(1)
    assert counts(queue) == (3, 0)
    claimed = queue.engine.claim("q", "b", 3)
    assert [(job["$seq"], job["deliveries"]) for job in told(claimed)] == [(1, 2), (2, 2), (3, 1)]


def test_the_holder_of_an_expired_lease_may_act_until_somebody_else_holds_the_job(
    queue: World,
) -> None:
    """Expiry makes a job claimable; only the next claim takes it from its holder."""
    queue.fill("q", 3)
    taken(queue, "a", 3)
    queue.clock.advance(LEASE_MS + 1)
    assert queue.engine.ack("q", "a", [1]).acked == 1
    assert queue.engine.extend("q", "a", [2], LEASE_MS).extended == 1
    assert counts(queue) == (1, 1)
    assert taken(queue, "b") == [3]
    late = queue.engine.ack("q", "a", [3])
    assert (late.acked, late.skipped) == (0, [3])
    assert counts(queue) == (0, 2)


def test_jumps_of_the_wall_clock_neither_end_nor_revive_a_lease(queue: World) -> None:
    """Only the time that passes counts."""
    queue.fill("q", 1)
    taken(queue)
    queue.clock.jump_wall(10 * LEASE_MS)
    assert counts(queue) == (0, 1)
    queue.clock.jump_wall(-20 * LEASE_MS)
    queue.clock.advance(LEASE_MS + 1)
    assert counts(queue) == (1, 0)


def test_a_nacked_job_comes_back_at_once_or_when_its_delay_is_over(queue: World) -> None:
    """A delayed job is neither ready nor in flight until then."""
    queue.fill("q", 3)
    taken(queue, "a", 2)
    back = queue.engine.nack("q", "a", [1, 3])
    assert (back.nacked, back.skipped, back.ready, back.in_flight) == (1, [3], 2, 1)
    later = queue.engine.nack("q", "a", [2], delay_ms=50)
    assert (later.nacked, later.ready, later.in_flight) == (1, 2, 0)
    assert queue.engine.ack("q", "a", [1, 2]).skipped == [1, 2]
    assert taken(queue, "b") == [1, 3]
    queue.clock.advance(49)
    assert counts(queue) == (0, 2)
    queue.clock.advance(1)
    assert counts(queue) == (1, 2)
    assert told(queue.engine.claim("q", "b"))[0]["deliveries"] == 2


def test_an_extended_lease_runs_from_now_on(queue: World) -> None:
    """Extend sets, it does not add: it may also shorten. The delivery is not counted again."""
    queue.fill("q", 2)
    claimed = queue.engine.claim("q", "a", 2)
    queue.clock.advance(600)
    longer = queue.engine.extend("q", "a", [1, 7], LEASE_MS)
    assert (longer.extended, longer.skipped) == (1, [7])
    assert longer.deadlines == {1: queue.clock.wall_ms() + LEASE_MS}
    queue.clock.advance(600)
    assert taken(queue, "b") == [2]
    assert queue.engine.extend("q", "a", [1], 1).deadlines == {1: queue.clock.wall_ms() + 100}
    queue.clock.advance(101)
    assert taken(queue, "b") == [1]
    assert queue.engine.extend("q", "a", [1], LEASE_MS).skipped == [1]
    assert claimed.deadline < queue.clock.wall_ms()


def test_lease_ids_fence_a_node_against_its_own_earlier_self(queue: World) -> None:
    """With ids, only the very lease counts; it stays the same when it is extended."""
    queue.fill("q", 1)
    old = queue.engine.claim("q", "a").jobs[0].lease_id
    queue.clock.advance(LEASE_MS + 1)
    new = queue.engine.claim("q", "a").jobs[0].lease_id
    assert old != new
    assert queue.engine.extend("q", "a", [1], 5000, [old]).skipped == [1]
    assert queue.engine.nack("q", "a", [1], 0, [old]).skipped == [1]
    assert queue.engine.ack("q", "a", [1], [old]).skipped == [1]
    assert queue.engine.extend("q", "a", [1], 5000, [new]).extended == 1
    assert queue.engine.ack("q", "a", [1], [new]).acked == 1


def test_a_release_gives_back_only_the_leases_it_names(queue: World) -> None:
    """What a closed stream held comes back at once; what has moved on since stays where it is."""
    queue.fill("q", 3)
    jobs = queue.engine.claim("q", "a", 3).jobs
    queue.engine.nack("q", "a", [2])
    assert taken(queue, "b") == [2]
    ticket = queue.engine.submit_release("q", [(job.seq, job.lease_id) for job in jobs])
    assert ticket.result == 2
    assert counts(queue) == (2, 1)


@pytest.mark.parametrize("way", ["before_seq", "tag", "cap", "ttl", "drop"])
def test_a_lease_goes_with_its_job_whatever_took_it(world: World, way: str) -> None:
    """Deleted, evicted or expired: nobody holds it, it is never handed out, counters are exact."""
    caps: dict[str, Any] = {"cap": {"cap_records": 3}, "ttl": {"ttl_ms": 500}}.get(way, {})
    world.engine.put_topic("q", {"type": "queue", "lease_ms": LEASE_MS, **caps})
    for _ in range(3):
        world.engine.append("q", [{"data": 0, "tag": "x"}])
    world.clock.advance(400)
    taken(world, "a", 3)
    world.engine.nack("q", "a", [2])
    world.engine.nack("q", "a", [3], delay_ms=300)
    world.engine.append("q", [{"data": 0}] * 3)
    if way == "before_seq":
        world.engine.delete("q", before_seq=4)
    elif way == "tag":
        world.engine.delete("q", match="x")
    elif way == "ttl":
        world.clock.advance(101)
    elif way == "drop":
        world.engine.delete_topic("q")
        world.engine.put_topic("q", {"type": "queue"})
        assert counts(world) == (0, 0)
        return
    assert counts(world) == (3, 0)
    assert world.engine.ack("q", "a", [1, 2, 3]).skipped == [1, 2, 3]
    assert taken(world, "b") == [4, 5, 6]
    world.clock.advance(400)
    assert taken(world, "b") == []


def test_a_cohort_is_served_in_proportion_to_what_it_asked_for(queue: World) -> None:
    """Ten workers that ask for ten of fifty jobs get five each; leftovers go round in turn."""
    queue.fill("q", 50)
    ticket = queue.engine.submit_claims("q", [Claimant(f"w{i}", 10) for i in range(10)])
    shares = [claimed.seqs for claimed in ticket.result]
    assert [len(seqs) for seqs in shares] == [5] * 10
    assert sorted(seq for seqs in shares for seq in seqs) == list(range(1, 51))
    queue.fill("q", 9)
    ticket = queue.engine.submit_claims("q", [Claimant("big", 20), Claimant("small", 10)])
    assert [len(claimed.seqs) for claimed in ticket.result] == [6, 3]
    got = [0, 0, 0]
    for _ in range(30):
        queue.fill("q", 1)
        ticket = queue.engine.submit_claims("q", [Claimant(f"w{i}", 8) for i in range(3)])
        for index, claimed in enumerate(ticket.result):
            got[index] += len(claimed.seqs)
    assert got == [10, 10, 10]


@pytest.mark.slow
def test_a_claim_passes_over_deleted_jobs_by_runs(world: World) -> None:
    """A hundred thousand jobs that are gone are one step for the cursor."""
    world.engine.put_topic("q", {"type": "queue", "durability": "ephemeral"})
    for _ in range(100):
        world.engine.append("q", [{"data": 0, "tag": "x"}] * 1000)
    world.engine.append("q", [{"data": 0}] * 2)
    world.engine.claim("q", "a", 1)
    world.engine.delete("q", match="x")
    assert taken(world) == [100_001, 100_002]


@pytest.mark.parametrize("how", ENDINGS)
def test_a_restart_forgets_leases_that_are_not_durable(queue: World, how: Ending) -> None:
    """Every job in flight can be claimed again at once, and counts its deliveries anew."""
    queue.engine.put_topic("q", {"type": "queue", "lease_ms": LEASE_MS, "durability": "fsync"})
    queue.fill("q", 4)
    before = queue.engine.claim("q", "a", 3)
    queue.engine.ack("q", "a", [2])
    queue.restart(how)
    assert counts(queue) == (3, 0)
    claimed = queue.engine.claim("q", "a", 9)
    assert [(job["$seq"], job["deliveries"]) for job in told(claimed)] == [(1, 1), (3, 1), (4, 1)]
    ids = [job.lease_id for job in (*before.jobs, *claimed.jobs)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_an_ack_is_as_durable_as_its_topic(world: World, durability: str) -> None:
    """Acknowledged jobs stay gone after a kill in every class that keeps jobs at all."""
    world.engine.put_topic("q", {"type": "queue", "durability": durability})
    world.fill("q", 3)
    taken(world)
    assert world.engine.ack("q", "a", [1, 3]).acked == 2
    world.restart("kill")
    assert taken(world) == ([] if durability == "ephemeral" else [2])


def test_reading_a_queue_leaves_its_leases_alone(queue: World) -> None:
    """A diff sees leased jobs like any others and claims nothing."""
    queue.fill("q", 3)
    taken(queue, "a", 1)
    assert queue.look("q").seqs == (1, 2, 3)
    assert counts(queue) == (2, 1)


def test_due_tells_when_the_next_job_comes_back(queue: World) -> None:
    """The next expiry or the end of the next delay, None when nothing is on its way."""
    queue.fill("q", 3)
    now_s = queue.clock.monotonic_s()
    assert queue.engine.queue_handle("q").due_s is None
    queue.engine.nack("q", "a", [1], 50)
    assert queue.engine.queue_handle("q").due_s is None
    taken(queue, "a", 2)
    assert queue.engine.queue_handle("q").due_s == pytest.approx(now_s + 1.001)
    queue.engine.nack("q", "a", [1], 200)
    assert queue.engine.queue_handle("q").due_s == pytest.approx(now_s + 0.2)
    queue.engine.ack("q", "a", [2])
    queue.clock.advance(200)
    assert taken(queue, "b", lease_ms=400) == [1, 3]
    assert queue.engine.queue_handle("q").due_s == pytest.approx(now_s + 0.601)
    queue.engine.ack("q", "b", [1, 3])
    assert queue.engine.queue_handle("q").due_s is None


def test_what_does_not_fit_is_refused_with_nothing_changed(queue: World) -> None:
    """Nodes, seqs and ids are checked before anything happens; a log is not a queue."""
    engine = queue.engine
    queue.fill("q", 2)
    taken(queue)
    most = engine.core.settings.max_claim
    bad: list[Any] = [[], [True], ["1"], [2**64]]
    for seqs in bad:
        with pytest.raises(InvalidRequest):
            engine.ack("q", "a", seqs)
    many = list(range(most + 1))
    with pytest.raises(BatchTooLarge):
        engine.ack("q", "a", many)
    with pytest.raises(BatchTooLarge):
        engine.extend("q", "a", many, 1000)
    with pytest.raises(InvalidRequest):
        engine.ack("q", "a", [1, 2], ["lease_1"])
    for node in ("", "n" * 129, "\udc00", 5):
        with pytest.raises(InvalidRequest):
            engine.claim("q", node)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            engine.nack("q", node, [1])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        engine.claim("q", "a", True)
    with pytest.raises(InvalidRequest):
        engine.extend("q", "a", [1], -1)
    with pytest.raises(InvalidRequest):
        engine.nack("q", "a", [1], -1)
    assert counts(queue) == (0, 2)
    engine.put_topic("log")
    with pytest.raises(NotAQueue):
        engine.claim("log", "a")
    with pytest.raises(TopicNotFound):
        engine.ack("nowhere", "a", [1])
