"""The account of what became of seqs, told in pieces that are short for everybody else."""

from __future__ import annotations

import random
from array import array

import pytest

from topics.engine.state.account import Account
from topics.types import DELETED, EVICTED, EXPIRED


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_pieces_are_those_of_the_whole(seed: int) -> None:
    """However few ranges a piece may have, and although the account goes on between two of them."""
    choice = random.Random(seed)
    account = Account(choice.choice((1, 7)))
    for _ in range(60):
        account.extend(
            account.next + choice.randrange(4), choice.choice((DELETED, EVICTED, EXPIRED))
        )
    first, last = choice.choice((1, 1, 20)), account.next - choice.choice((1, 1, 9))
    whole = account.runs(first, last, EVICTED)
    found: array[int] = array("Q")
    low = max(first, account.base)
    for begin, end in account.pieces(first, last, 3):
        assert begin == low <= end
        low = end + 1
        assert len(list(account.ranges(begin, end))) <= 3
        found.extend(account.runs(begin, end, EVICTED))
        account.extend(account.next + 1, choice.choice((DELETED, EVICTED)))
    assert low == last + 1
    assert found == whole
