"""What a continuous sync says of its own delay is what happened."""

from __future__ import annotations

from topics.lake.freshness import EVERY_S, FIRST_S, Freshness


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_it_says_the_worst_age_and_the_cost_of_one_more() -> None:
    clock, said = Clock(), list[str]()
    freshness = Freshness(4, 0.5, said.append, clock)
    for n in range(5):
        freshness.seen(f"t{n}")
    clock.now_s += 1
    # A change that comes while it is read does not make the first one younger.
    freshness.seen("t0")
    for n in range(4):
        freshness.committed(f"t{n}", 1.0)
    clock.now_s += 2
    freshness.committed("t4", 3.0)
    freshness.tell_if_due()
    assert said == []
    clock.now_s += FIRST_S
    freshness.tell_if_due()
    (words,) = said
    assert words == (
        "5 active topics: rows are in their tables after at most 3.5 s; "
        "each further active topic costs about 0.35 s"
    )


def test_a_change_that_came_to_no_row_makes_later_ones_no_older() -> None:
    clock, said = Clock(), list[str]()
    freshness = Freshness(4, 0.5, said.append, clock)
    freshness.seen("t")
    freshness.unchanged("t")
    clock.now_s += 1000
    freshness.seen("t")
    clock.now_s += 1
    freshness.committed("t", 1.0)
    freshness.tell()
    assert "after at most 1.5 s" in said[0]


def test_it_is_silent_about_nothing_and_said_again_each_minute() -> None:
    clock, said = Clock(), list[str]()
    freshness = Freshness(4, 0.5, said.append, clock)
    freshness.tell()
    assert said == []
    freshness.seen("t")
    freshness.committed("t", 2.0)
    clock.now_s += EVERY_S - 1
    freshness.tell_if_due()
    assert said == []
    clock.now_s += 1
    freshness.tell_if_due()
    (words,) = said
    assert words == (
        "1 active topic: rows are in their tables after at most 0.5 s; "
        "each further active topic costs about 2.00 s"
    )
    clock.now_s += 1000
    freshness.tell_if_due()
    assert len(said) == 1
