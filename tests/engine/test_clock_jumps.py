"""Clocks lie: times never go back, floors never regress, whatever the wall clock does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.support.engines import ENDINGS, Ending, World, gap
from topics.engine.state.write_request import request_of
from topics.errors import TopicFull
from topics.testing import FakeClock

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

JUMPS: dict[str, Callable[[FakeClock], None]] = {
    "back a second": lambda clock: clock.jump_wall(-1000),
    "back a day": lambda clock: clock.jump_wall(-DAY_MS),
    "back to 1970": lambda clock: clock.jump_wall(-clock.wall_ms()),
    "frozen": lambda clock: clock.freeze(),
    "forward a day": lambda clock: clock.jump_wall(DAY_MS),
    "forward a century": lambda clock: clock.jump_wall(36_500 * DAY_MS),
}
jumps = pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)


def times(world: World) -> list[int]:
    return [record.ts for record in world.engine.diff("t", limit=1000).records]


@jumps
@pytest.mark.parametrize("how", [None, *ENDINGS])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_times_never_decrease_with_seq(
    world: World, jump: Callable[[FakeClock], None], how: Ending | None, checkpoint: bool
) -> None:
    """$ts is non-decreasing within a topic, restarts included."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 2)
    world.clock.advance(50)
    world.fill("t", 2)
    jump(world.clock)
    world.fill("t", 2)
    if checkpoint:
        world.engine.checkpoint()
    if how is not None:
        world.restart(how)
    world.fill("t", 2)
    world.clock.advance(10)
    world.fill("t", 2)
    got = times(world)
    assert len(got) == 10
    assert all(a <= b for a, b in pairwise(got))


def test_times_of_an_ephemeral_topic_do_not_go_back_over_a_clean_restart(world: World) -> None:
    """Although its records are gone, later ones are not older than they were."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    before = world.engine.append("t", [{"data": 0}]).ts
    world.end("clean")
    world.clock.jump_wall(-DAY_MS)
    world.engine = world.open()
    assert world.engine.append("t", [{"data": 0}]).ts >= before


@pytest.mark.parametrize("how", [None, *ENDINGS])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("witness", ["diff", "state", "explain", "append"])
def test_what_has_expired_stays_expired_when_the_clock_goes_back(
    world: World, how: Ending | None, checkpoint: bool, witness: str
) -> None:
    """A floor that somebody has seen does not regress with the clock, restarts included."""
    world.engine.put_topic("t", {"ttl_ms": 1000, "durability": "fsync"})
    world.fill("t", 3)
    world.clock.advance(1001)
    if witness == "append":
        world.fill("t", 1)
    else:
        getattr(world.engine, witness)("t")
    if checkpoint:
        world.engine.checkpoint()
    world.clock.jump_wall(-DAY_MS)
    if how is not None:
        world.restart(how)
    state = world.engine.state("t")
    assert (state.earliest_seq, state.evict_floor) == (4, 4)
    assert gap(world.engine.diff("t").tombstone) == (1, 3, "ttl")


def test_a_floor_that_a_refused_write_was_told_stays_when_the_clock_goes_back(world: World) -> None:
    """A full topic says where its records begin, and a kill right after that changes nothing."""
    world.engine.put_topic("t", {"ttl_ms": 1000, "cap_records": 3, "discard": "reject"})
    world.fill("t", 2)
    world.clock.advance(600)
    world.fill("t", 1)
    world.clock.advance(600)
    with pytest.raises(TopicFull) as refused:
        world.engine.submit_append("t", request_of([{"data": 0}] * 3))
    assert refused.value.detail["earliest_seq"] == 3
    world.clock.jump_wall(-DAY_MS)
    world.restart("kill")
    assert world.engine.state("t").earliest_seq == 3


def test_a_frozen_clock_expires_nothing(world: World) -> None:
    """Without time there is no age, however long the process runs."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.clock.freeze()
    world.fill("t", 3)
    world.clock.advance(10_000)
    assert world.engine.state("t").count == 3
    world.clock.unfreeze()
    world.clock.advance(101)
    assert world.engine.state("t").count == 0


def test_a_day_forward_expires_at_once_and_for_good(world: World) -> None:
    """A jump that is corrected afterwards does not bring records back."""
    world.engine.put_topic("t", {"ttl_ms": 3_600_000})
    world.fill("t", 3)
    world.clock.jump_wall(DAY_MS)
    assert world.engine.state("t").count == 0
    world.clock.jump_wall(-DAY_MS)
    world.fill("t", 1)
    assert world.look("t").seqs == (4,)


@pytest.mark.parametrize("how", ENDINGS)
def test_a_clock_that_went_back_does_not_expire_more_after_a_restart(
    world: World, how: Ending
) -> None:
    """Recovery expires what the clock says, not what the times of later records suggest."""
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 100})
    world.fill("t", 1)
    world.clock.advance(1000)
    world.fill("t", 1)
    world.clock.jump_wall(-10_000)
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 100, "ttl_ms": 500})
    world.fill("t", 1)
    assert world.look("t").seqs == (1, 2, 3)
    world.restart(how)
    assert world.look("t").seqs == (1, 2, 3)


@jumps
def test_the_engine_goes_on_whatever_the_clock_does(
    world: World, jump: Callable[[FakeClock], None]
) -> None:
    """Writes, reads, deletes, keys and maintenance work through every jump."""
    world.engine.put_topic("t", {"ttl_ms": 10**9, "cap_records": 50})
    for round_ in range(3):
        world.engine.append("t", [{"data": round_, "tag": "x"}] * 20, idempotency_key=str(round_))
        jump(world.clock)
        world.engine.diff("t")
        world.engine.delete("t", match="x", before_seq=5 + round_)
        world.clock.advance(100)
        world.engine.maintain(1.0)
        world.engine.checkpoint()
    world.restart("kill")
    assert world.engine.state("t").head_seq == 60


def test_a_key_is_not_forgotten_early_when_the_clock_goes_back(world: World) -> None:
    """Going back lengthens the window rather than making a retry a second write."""
    world.engine.append("t", [{"data": 0}], idempotency_key="k")
    world.clock.jump_wall(-DAY_MS)
    assert world.engine.append("t", [{"data": 0}], idempotency_key="k").deduped


def test_a_key_whose_window_has_passed_does_not_come_back(world: World) -> None:
    """What was written while the clock was ahead ends the windows behind it, for good."""
    world.engine.append("t", [{"data": 0}], idempotency_key="k")
    world.clock.jump_wall(HOUR_MS)
    world.engine.append("t", [{"data": 1}], idempotency_key="other")
    world.clock.jump_wall(-HOUR_MS)
    assert not world.engine.append("t", [{"data": 2}], idempotency_key="k").deduped


def test_looking_while_the_clock_is_ahead_forgets_no_key(world: World) -> None:
    """A retry is answered as before when the clock comes back, if nothing was written meanwhile."""
    world.engine.put_topic("t", {"idempotency_window_ms": 1000})
    world.engine.append("t", [{"data": 0}], idempotency_key="old")
    world.clock.advance(800)
    world.engine.append("t", [{"data": 1}], idempotency_key="new")
    world.clock.jump_wall(900)
    assert world.engine.append("t", [{"data": 1}], idempotency_key="new").deduped
    world.clock.jump_wall(-900)
    assert world.engine.append("t", [{"data": 0}], idempotency_key="old").deduped
