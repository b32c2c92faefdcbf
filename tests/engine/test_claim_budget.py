"""What one claimant gets in one pass has a budget of bytes, whatever it asked for."""

from __future__ import annotations

import random

import pytest

from tests.support.engines import World
from topics.engine.queues import claims
from topics.engine.state.queue_values import Claimant, Claimed

BUDGET = 1000


@pytest.fixture
def queue(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(claims, "BYTES_MAX", BUDGET)
    world.engine.put_topic("q", {"type": "queue", "lease_ms": 1000})
    return world


def fill(world: World, *sizes: int) -> None:
    for size in sizes:
        world.engine.append("q", [{"data": "x" * size}])


def claim(world: World, *most: int) -> list[Claimed]:
    claimants = [Claimant(f"w{index}", each) for index, each in enumerate(most)]
    return world.engine.submit_claims("q", claimants).result


def test_a_claim_ends_with_the_job_that_crosses_it(queue: World) -> None:
    """The rest is ready and comes with the next claim, in order."""
    fill(queue, *[300] * 10)
    first = queue.engine.claim("q", "a", 100)
    assert (first.seqs, first.ready, first.in_flight) == ([1, 2, 3], 7, 3)
    assert queue.engine.claim("q", "b", 2).seqs == [4, 5]
    assert queue.engine.claim("q", "b", 100).seqs == [6, 7, 8]
    last = queue.engine.claim("q", "b", 100)
    assert (last.seqs, last.ready) == ([9, 10], 0)


def test_a_job_that_is_larger_is_handed_out_alone(queue: World) -> None:
    fill(queue, 5000, 5000, 10)
    assert [queue.engine.claim("q", "a", 9).seqs for _ in range(3)] == [[1], [2], [3]]


def test_jobs_within_one_write_are_told_apart(queue: World) -> None:
    queue.engine.append("q", [{"data": "x" * 300, "tag": f"t{n}"} for n in range(10)])
    queue.engine.ack("q", "a", queue.engine.claim("q", "a", 1).seqs)
    queue.engine.delete("q", match="t4")
    assert queue.engine.claim("q", "a", 100).seqs == [2, 3, 4]
    assert queue.engine.claim("q", "a", 100).seqs == [6, 7, 8]


def test_nobody_is_told_that_there_is_nothing_while_there_is(queue: World) -> None:
    """Each gets one job, and the rest is divided in proportion, each within its own budget."""
    fill(queue, *[300] * 100)
    assert [c.seqs for c in claim(queue, 50, 1, 1)] == [[1, 2, 3], [4], [5]]
    assert [len(c.seqs) for c in claim(queue, 50, 50, 50)] == [3, 3, 3]
    assert [len(c.seqs) for c in claim(queue, *[1] * 20)] == [1] * 20
    fill(queue, *[5000] * 80)
    queue.engine.ack("q", "w0", list(range(1, 101)))
    assert all(c.seqs for c in claim(queue, *[9] * 60))


def test_what_came_back_first_goes_first_whatever_its_seq(queue: World) -> None:
    """Jobs that fail again and again do not keep others away."""
    fill(queue, *[400] * 8)
    assert queue.engine.claim("q", "a", 9).seqs == [1, 2, 3]
    assert queue.engine.claim("q", "b", 9).seqs == [4, 5, 6]
    queue.engine.nack("q", "b", [6, 5, 4])
    queue.engine.nack("q", "a", [1, 2, 3])
    again = queue.engine.claim("q", "c", 9)
    assert again.seqs == [4, 5, 6]
    assert b'"deliveries":2' in again.json
    assert queue.engine.claim("q", "c", 9).seqs == [1, 2, 3]
    assert queue.engine.claim("q", "c", 9).seqs == [7, 8]


def test_what_is_over_the_budget_was_never_handed_out(queue: World) -> None:
    """In a pass for several, of which one had more in its share than it has room for."""
    fill(queue, *[300] * 4, *[10] * 40)
    queue.engine.claim("q", "z", 2)
    queue.engine.nack("q", "z", [1, 2])
    found = claim(queue, 30, 30)
    assert [c.seqs[:4] for c in found] == [[1, 2, 3], [4, 5, 6, 7]]
    got = [*found[0].seqs, *found[1].seqs]
    assert (found[1].ready, found[1].in_flight) == (44 - len(got), len(got))
    while more := queue.engine.claim("q", "z", 1000).seqs:
        got += more
    assert got == list(range(1, 45))


@pytest.mark.parametrize("seed", range(20))
def test_every_job_is_held_by_one_and_all_are_handed_out(queue: World, seed: int) -> None:
    chance = random.Random(seed)
    fill(queue, *(chance.choice((1, 50, 300, 900, 3000)) for _ in range(60)))
    sizes = {r.seq: len(r.data) for r in queue.engine.diff("q", limit=1000).records}
    held: dict[int, str] = {}
    done: set[int] = set()
    while len(done) < 60:
        asked = [chance.choice((1, 2, 30)) for _ in range(chance.randint(1, 4))]
        found = claim(queue, *asked)
        ready = 60 - len(done) - len(held)
        # Where there are enough for all, nobody goes without.
        assert all(c.seqs for c in found) or ready < sum(asked)
        for index, claimed in enumerate(found):
            assert len(claimed.seqs) <= asked[index]
            assert sum(sizes[seq] for seq in claimed.seqs[:-1]) < BUDGET
            assert not held.keys() & set(claimed.seqs)
            held |= dict.fromkeys(claimed.seqs, f"w{index}")
        state = queue.engine.queue_state("q")
        assert (state.ready, state.in_flight) == (60 - len(done) - len(held), len(held))
        for seq in chance.sample(sorted(held), len(held) // 2 + (chance.random() < 0.5)):
            node = held.pop(seq)
            if chance.random() < 0.7:
                assert queue.engine.ack("q", node, [seq]).acked == 1
                done.add(seq)
            else:
                assert queue.engine.nack("q", node, [seq]).nacked == 1
