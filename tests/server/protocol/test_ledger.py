"""One bound for all, and the slowest go first: with a clock that the test turns."""

from __future__ import annotations

import pytest

from topics.server.http.ledger import FRESH_BYTES_PER_S, Ledger


class World:
    def __init__(self, bytes_max: int, *, is_inward: bool = True) -> None:
        self.now = 100.0
        self.gone: list[str] = []
        self.ledger: Ledger[str] = Ledger(
            "things", bytes_max, is_inward=is_inward, now=lambda: self.now, cut=self.gone.append
        )
        self.enter = self.ledger.enter

    def later(self, seconds: float) -> None:
        self.now += seconds


def test_within_the_bound_nobody_is_cut() -> None:
    world = World(100)
    world.enter("a", 60)
    world.enter("b", 40)
    assert (world.gone, world.ledger.held_bytes, world.ledger.is_scarce) == ([], 100, True)
    world.ledger.leave("a")
    world.ledger.leave("a")
    assert (world.ledger.held_bytes, world.ledger.is_scarce) == (40, False)


def test_past_the_bound_whoever_stands_still_goes_first() -> None:
    """However fast it came, and however little the others have brought so far."""
    world = World(1000)
    world.enter("stalled", 960)
    for step in range(1, 40):
        world.later(0.5)
        world.enter("steady", step)
    world.enter("new", 5)
    assert (world.gone, world.ledger.held_bytes, world.ledger.cuts) == (["stalled"], 44, 1)


def test_a_drop_now_and_then_is_not_fast() -> None:
    world = World(1000)
    world.enter("dripping", 500)
    for step in range(20):
        world.later(0.9)
        world.enter("dripping", 500 + step)
        world.enter("steady", 10 * step)
    world.enter("new", 400)
    assert world.gone == ["dripping"]


def test_an_answer_moves_by_being_taken_and_not_by_growing() -> None:
    world = World(100, is_inward=False)
    world.enter("growing", 10)
    world.enter("read", 60)
    for size in (50, 40, 30):
        world.later(0.9)
        world.enter("read", size)
        world.enter("growing", 60 - size)
    world.enter("new", 50)
    assert world.gone == ["growing"]


def test_as_many_go_as_have_to_and_the_last_may_be_the_newcomer() -> None:
    world = World(100)
    world.enter("a", 40)
    world.enter("b", 40)
    world.later(2.0)
    world.enter("c", 95)
    assert world.gone == ["a", "b"]
    world.later(2.0)
    world.enter("d", 101)
    assert world.gone == ["a", "b", "c", "d"]
    assert world.ledger.held_bytes == 0


PACE = 10 * FRESH_BYTES_PER_S


def steady_answer(world: World, pace: int) -> None:
    """An answer of 3 s that is taken at a steady pace, and half of it is left."""
    for step in range(16):
        world.enter("steady", pace * (30 - step) // 10)
        world.later(0.1)


def test_answers_that_nobody_has_begun_to_take_go_before_one_that_moves() -> None:
    world = World(6 * PACE, is_inward=False)
    steady_answer(world, PACE)
    for name in "abcdef":
        world.enter(name, 2 * PACE)
        world.later(0.01)
    assert "steady" not in world.gone
    assert len(world.gone) == 4


def test_bodies_that_came_at_once_go_before_one_that_comes_steadily() -> None:
    """However much they brought: nobody knows whether any more of it will come."""
    world = World(6 * PACE)
    for step in range(16):
        world.enter("steady", PACE * step // 10)
        world.later(0.1)
    for name in "abc":
        for part in range(1, 5):
            world.enter(name, part * PACE // 2)
            world.later(0.01)
    assert "steady" not in world.gone
    assert len(world.gone) == 1


@pytest.mark.parametrize("is_inward", [True, False])
def test_who_moves_a_little_now_and_then_keeps_no_newcomer_out(is_inward: bool) -> None:
    """Else a few connections that drip would have the room for themselves."""
    world = World(1000, is_inward=is_inward)
    for step in range(20):
        world.enter("dripping", 900 + (step if is_inward else -step))
        world.later(0.5)
    world.enter("new", 200)
    assert world.gone == ["dripping"]


def test_of_those_that_have_just_begun_whoever_holds_the_most_goes() -> None:
    """One is cut instead of a hundred."""
    world = World(1000)
    for step in range(10):
        world.enter(f"small-{step}", 20)
    world.enter("large", 700)
    world.later(0.1)
    world.enter("last", 150)
    assert world.gone == ["large"]


def test_an_answer_that_is_taken_fast_is_not_slow_because_it_is_new() -> None:
    world = World(6 * PACE, is_inward=False)
    steady_answer(world, 2 * FRESH_BYTES_PER_S)
    world.enter("quick", 5 * PACE)
    world.later(0.1)
    world.enter("quick", 4 * PACE)
    world.enter("new", 2 * PACE)
    assert world.gone == ["new"]
    world.enter("more", 2 * PACE)
    assert world.gone == ["new", "more"]


def test_without_a_bound_it_is_known_how_much_there_is() -> None:
    world = World(0)
    world.enter("a", 10**12)
    assert (world.gone, world.ledger.held_bytes, world.ledger.is_scarce) == ([], 10**12, False)


def test_the_log_tells_of_cuts_and_not_of_each(caplog: pytest.LogCaptureFixture) -> None:
    world = World(10)
    for name in "abc":
        world.enter(name, 11)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "things passed 10 bytes" in caplog.text
    world.later(1.0)
    world.enter("d", 11)
    assert "4 so far" in caplog.text


def test_what_the_system_has_of_an_answer_was_not_taken_yet() -> None:
    """Neither does an answer move by going there, nor stand still while it goes on from there."""
    world = World(1000, is_inward=False)
    world.ledger.enter("filling", 500, 0)
    world.ledger.enter("read", 100, 400)
    for step in range(1, 25):
        world.later(0.1)
        world.ledger.enter("filling", 500 - 10 * step, 10 * step)
        world.ledger.enter("read", 100, 400 - 10 * step)
    world.enter("new", 800)
    assert world.gone == ["filling"]
