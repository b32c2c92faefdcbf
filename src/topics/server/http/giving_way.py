"""Whether others are there, and leaving them their turn on this thread's core.

A system lets a thread that has much to do go on until its timer ticks, up to 4 ms on some, while
the loop or a client on the same machine waits for just this core. So between two portions of a
large answer whoever waits is next. Where nobody waits this is a system call and no more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import cast

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
