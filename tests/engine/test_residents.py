"""Blocks that stay in memory: the oldest goes first, whichever others have gone before."""

from __future__ import annotations

import random
import sys
from array import array

import pytest

from topics.engine.state.block import Block
from topics.engine.state.residents import TOGETHER, Residents
from topics.storage.columns import Columns


def block_of(size: int) -> Block:
    return Block(1, Columns(b"x" * size, array("I", [size]), array("I", [0]), array("Q", [1])))


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_queue_from_which_anybody_may_leave(seed: int) -> None:
    rng = random.Random(seed)
    residents, model = Residents(), list[Block]()
    for _ in range(6 * TOGETHER):
        draw = rng.random()
        if draw < 0.6 or not model:
            model.append(block_of(rng.randint(1, 9)))
            residents.add(model[-1])
        elif draw < 0.8:
            gone = model.pop(rng.randrange(len(model)))
            residents.remove(gone)
            residents.remove(gone)
        elif draw < 0.95:
            assert residents.oldest() is model[0]
            residents.remove(model.pop(0))
        else:
            again = model.pop(rng.randrange(len(model)))
            model.append(again)
            residents.add(again)
        assert residents.bytes == sum(block.size for block in model)
    while model:
        assert residents.oldest() is model[0]
        residents.remove(model.pop(0))
    assert residents.oldest() is None
    assert residents.bytes == 0


def test_a_few_that_stay_take_no_room_for_those_that_left() -> None:
    residents = Residents()
    blocks = [block_of(1) for _ in range(50 * TOGETHER)]
    for block in blocks:
        residents.add(block)
    stay = blocks[::TOGETHER]
    for block in set(blocks) - set(stay):
        residents.remove(block)
    parts = {block.resident_in for block in stay}
    assert sum(sys.getsizeof(part.blocks) for part in parts if part is not None) < 4_000 * len(stay)
    assert residents.oldest() is stay[0]
