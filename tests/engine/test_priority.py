"""Effective priority: the manual one, or a bonus that halves every thirty seconds."""

from __future__ import annotations

import pytest

from topics.engine.reading.priority import age_boost, effective, recency_bonus
from topics.engine.state.names import Names
from topics.types import TopicConfig


@pytest.mark.parametrize(
    ("elapsed_s", "bonus"),
    [
        (-5, 500),
        (0, 500),
        (15, 354),
        (30, 250),
        (60, 125),
        (120, 31),
        (299, 0),
        (300, 0),
        (9999, 0),
    ],
)
def test_the_bonus_decays_as_specified(elapsed_s: int, bonus: int) -> None:
    assert recency_bonus(elapsed_s * 1000) == bonus


def test_the_table_is_as_good_as_the_formula() -> None:
    for elapsed_ms in range(0, 300_000, 371):
        exact = 500 * 2 ** (-elapsed_ms / 30_000)
        assert abs(recency_bonus(elapsed_ms) - exact) <= 0.51


def test_a_manual_priority_overrides_and_age_is_added() -> None:
    def at(config: TopicConfig, consumed: int | None = 0, waited: int = 0) -> int:
        return effective(config, consumed_ms=consumed, now_ms=1000, waited_ms=waited)

    assert at(TopicConfig(priority=0)) == 0
    assert at(TopicConfig(priority=-1000), waited=10_000) == 0
    assert at(TopicConfig()) == recency_bonus(1000)
    assert at(TopicConfig(), consumed=None) == 0
    assert at(TopicConfig(auto_priority=False)) == 0
    assert at(TopicConfig(), consumed=None, waited=1000) == 100
    assert age_boost(10**9) == 1000


def test_names_are_paged_by_prefix_in_byte_order() -> None:
    topics = dict.fromkeys(["b", "a:2", "a:1", "A", "a"])
    names = Names(topics)
    assert names.page([""], after="", limit=3) == ["A", "a", "a:1"]
    assert names.page([""], after="a:1", limit=3) == ["a:2", "b"]
    assert names.page(["a:", "a", "b"], after="", limit=9) == ["a", "a:1", "a:2", "b"]
    assert names.page(["a:", "A"], after="a", limit=9) == ["a:1", "a:2"]
    names.add("aa")
    names.discard("a:2")
    assert names.page(["a"], after="a", limit=9) == ["a:1", "aa"]
    assert names.page([], after="", limit=9) == []
