"""Runs of seqs behave as the sets that they stand for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topics.lake.spans import Span, common, end_from, joined, of_seqs, within, without

NUMBERS = st.sets(st.integers(1, 30))
SPANS = NUMBERS.map(lambda numbers: of_seqs(np.array(sorted(numbers), dtype=np.int64)))


def members(spans: list[Span]) -> set[int]:
    return {seq for first, last in spans for seq in range(first, last + 1)}


@given(NUMBERS)
def test_runs_hold_what_they_were_made_of(numbers: set[int]) -> None:
    spans = of_seqs(np.array(sorted(numbers), dtype=np.int64))
    assert members(spans) == numbers
    assert all(before[1] + 1 < after[0] for before, after in pairwise(spans))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5))))
def test_joined_runs_are_apart_and_lose_nothing(pairs: list[tuple[int, int]]) -> None:
    given = [(first, first + more) for first, more in pairs]
    assert joined(given) == of_seqs(np.array(sorted(members(given)), dtype=np.int64))


@given(SPANS, SPANS)
def test_what_is_left_and_what_is_common(spans: list[Span], others: list[Span]) -> None:
    assert members(list(without(spans, others))) == members(spans) - members(others)
    assert members(list(common(spans, others))) == members(spans) & members(others)


@given(SPANS, st.integers(0, 31))
def test_one_comes_as_far_as_the_run_goes(spans: list[Span], seq: int) -> None:
    expected = seq
    while expected + 1 in members(spans):
        expected += 1
    assert end_from(spans, seq) == expected


@given(SPANS, st.integers(1, 30), st.integers(0, 10))
def test_those_with_a_part_in_a_window(spans: list[Span], first: int, more: int) -> None:
    last = first + more
    expected = [span for span in spans if span[0] <= last and span[1] >= first]
    assert within(spans, first, last) == expected
