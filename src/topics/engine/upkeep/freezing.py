"""Keeps long-lived state out of the garbage collector, without keeping garbage.

A full collection looks at every object there is: with 100,000 topics it stops all callers for tens
of milliseconds. So what has lived for a while is frozen, and never looked at again. It is still
freed when nothing refers to it any more; only rings of objects that refer to each other are not.

Hence two rules. What comes and goes with callers leaves no ring behind when it ends: connections,
sessions, tickets, claims. And what is frozen has survived a collection of everything that is not
yet frozen, at an age at which a request is long over: a ring that was missed leaks only if it
lived that long.
"""

from __future__ import annotations

import gc
from itertools import repeat

AGE_S = 10.0
# What one collection looks at: a millisecond or two.
OBJECTS_MAX = 4_000

_YOUNG, _YOUNGER, _OLD = 0, 1, 2
# How many objects of each age are not frozen. Listed and let go in one call, between two steps of
# the interpreter: a tuple that another thread is just making may not be held when that goes on, or
# it fails there with a SystemError.
_counts = [map(len, map(gc.get_objects, repeat(age))) for age in (_YOUNG, _YOUNGER, _OLD)]


class Freezer:
    """Of the whole process: for one that is a server (`gc_freeze`)."""

    def __init__(self) -> None:
        self._frozen_s = 0.0
        # No more objects than this are old and not frozen. They are counted when they may be many:
        # to list thousands of them is a third of a millisecond.
        self._old_max = 0
        # How often the collector itself had looked at what is not young any more.
        self._looks = 0

    @property
    def is_behind(self) -> bool:
        """Whether thousands of objects have come since the last tick: the next should not wait."""
        return gc.get_count()[_OLD] > self._looks

    def tick(self, now_s: float) -> None:
        """Called often, so that there is little to look at each time."""
        self._old_max += next(_counts[_YOUNG]) + next(_counts[_YOUNGER])
        may_be_many = self.is_behind or self._old_max >= OBJECTS_MAX
        gc.collect(_YOUNGER)
        if may_be_many:
            self._old_max = next(_counts[_OLD])
        if now_s - self._frozen_s >= AGE_S or self._old_max >= OBJECTS_MAX:
            self._frozen_s, self._old_max = now_s, 0
            gc.collect()
            gc.freeze()
        self._looks = gc.get_count()[_OLD]


def freeze_recovered() -> None:
    """For when everything has been read and nobody is served yet."""
    gc.collect()
    gc.freeze()


def freeze_rest() -> None:
    """For what came after that: it holds no garbage to speak of, and callers wait."""
    gc.freeze()
