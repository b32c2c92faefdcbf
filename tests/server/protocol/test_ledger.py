"""One bound for all, and the slowest go first: with a clock that the test turns."""

from __future__ import annotations

import pytest

from topics.server.http.ledger import Ledger


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
    world.enter("d", 101)
    assert world.gone == ["a", "b", "c", "d"]
    assert world.ledger.held_bytes == 0


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
