"""The collector looks at little, and what it no longer looks at was not garbage."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from topics.engine.upkeep.freezing import AGE_S, OBJECTS_MAX, Freezer


class Node:
    def __init__(self) -> None:
        self.other: object = None


def ring() -> Node:
    """Two objects that only a collector can free."""
    one, two = Node(), Node()
    one.other, two.other = two, one
    return one


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    gc.collect()
    gc.freeze()
    found = Freezer()
    found.tick(AGE_S)
    yield found
    gc.unfreeze()


def is_frozen(node: object) -> bool:
    return not any(found is node for found in gc.get_objects())


@pytest.mark.slow
def test_a_ring_that_ends_before_it_is_old_is_freed(freezer: Freezer) -> None:
    """A request that was on its way at some tick, and failed with a traceback that holds it."""
    found = ring()
    gone = weakref.ref(found)
    freezer.tick(AGE_S + 0.05)
    assert not is_frozen(found)
    del found
    freezer.tick(2 * AGE_S + 0.05)
    assert gone() is None


@pytest.mark.slow
def test_what_has_lived_for_long_is_not_looked_at_again(freezer: Freezer) -> None:
    found = ring()
    freezer.tick(2 * AGE_S)
    assert is_frozen(found)


@pytest.mark.slow
def test_much_at_once_is_frozen_before_it_is_old(freezer: Freezer) -> None:
    """A hundred thousand topics in a moment: no collection looks at all of them."""
    kept = [Node() for _ in range(OBJECTS_MAX)]
    freezer.tick(AGE_S + 0.05)
    assert is_frozen(kept[-1])


def test_much_between_two_ticks_is_noticed(freezer: Freezer) -> None:
    """A checkpoint makes more in a moment than a collection should look at."""
    assert not freezer.is_behind
    kept = [Node() for _ in range(20 * OBJECTS_MAX)]
    assert freezer.is_behind
    freezer.tick(AGE_S + 0.05)
    assert is_frozen(kept[-1])
    assert not freezer.is_behind


def test_a_tuple_that_another_thread_is_making_is_left_alone(freezer: Freezer) -> None:
    """To hold it for a moment is to fail that thread."""
    failed: list[BaseException] = []
    is_over = threading.Event()

    def make() -> None:
        try:
            while not is_over.is_set():
                tuple([number] for number in range(300))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for tick in range(300):
            freezer.tick(AGE_S + 0.05 * tick)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval_s)
    assert failed == []
