"""Runs of numbers, as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.consecutive import consecutive

FIRSTS = st.integers(0, 2**64 - 1) | st.sampled_from((0, 1, 999, 1000, 999_999, 10**6))


@given(FIRSTS, st.integers(1, 2500), st.binary(max_size=3))
def test_each_is_written_as_it_would_be_alone(first: int, count: int, between: bytes) -> None:
    alone = [b"%d" % number for number in range(first, first + count)]
    assert consecutive(first, count, between) == between.join(alone)
