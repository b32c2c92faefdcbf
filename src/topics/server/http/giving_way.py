"""Work beside the loop that leaves others their turn on its core.

A system lets a thread that computes go on until its timer ticks, up to 4 ms on some, while the loop
or a client on the same machine waits for just this core. That, and not the interpreter's lock, is
most of what a write notices of a range that is rendered. So such work gives way by itself, between
two calls of a fraction of a millisecond each, and whoever waits is next: under load it gets less
than its share. Where nobody waits this is a system call and no more; and where the loop has had
nothing to do for a while, it is not done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import cast

# How long such work goes on; it may be longer by the call that it is in.
WORK_S = 0.0002
# How long somebody who was there is taken to be there still.
PRESENT_S = 1.0


def _yielding() -> Callable[[], object]:
    try:
        # Not os.sched_yield, which keeps the interpreter's lock up to Python 3.11.
        return cast("Callable[[], object]", ctypes.CDLL(None).sched_yield)
    except (OSError, AttributeError):
        return partial(sleep, 0)


# Whoever waits for this thread's core is next, in whatever process.
give_way = _yielding()


class GivingWay:
    """Called between two pieces of work; gives way when it is time to."""

    __slots__ = ("_is_needed", "_since_s")

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._since_s = perf_counter()

    def __call__(self) -> None:
        if self._is_needed and perf_counter() - self._since_s >= WORK_S:
            give_way()
            self._since_s = perf_counter()


class Company:
    """Whether others have been there of late: `count` is how often they had something done."""

    __slots__ = ("_count", "_counted", "_seen_s")

    def __init__(self, count: Callable[[], int]) -> None:
        self._counted = count
        self._count = -1
        self._seen_s = 0.0

    def is_present(self) -> bool:
        now_s, count = perf_counter(), self._counted()
        if count != self._count:
            self._count, self._seen_s = count, now_s
        return now_s - self._seen_s < PRESENT_S
