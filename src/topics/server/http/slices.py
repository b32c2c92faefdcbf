"""Long work of the loop is done a slice at a time: one in each turn, whoever has asked for it.

Behind what others have asked for in that turn, and short while there are any. So many of them cost
everybody else no more than one does. Reads that are under way have their slices by turns: nobody's
long work keeps another's from its end. What makes large answers has them one after the other, so
that there is one answer in the making at a time, however many were asked for. And frames that are
too many have theirs by turns. These three kinds alternate: connections need no key to send frames,
and however many they are, a read that is under way has every third slice at least.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic
from typing import TypeVar

from topics.server.http.giving_way import Company
from topics.server.http.turns import TurnEnd

T = TypeVar("T")
# Long work: between two of its steps others may have their turn.
Steps = Generator[None, None, T]

# What a slice may take of the loop, and while others have something done; it may be longer by the
# step that it is in. Beside others it is a single step, mostly: they wait for no more than that.
SLICE_S = 0.0005
SHARED_SLICE_S = 0.00003


class Slices:
    """Called on the loop whose turns `turn_end` ends; `company` tells whether others are there."""

    __slots__ = (
        "_company", "_frames", "_is_scheduled", "_kinds", "_last", "_line", "_loop", "_reads",
        "_turn_end",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn_end: TurnEnd, company: Company
    ) -> None:
        self._loop = loop
        self._turn_end = turn_end
        self._company = company
        # Those who have their slices one after the other, and those who have them by turns.
        self._line: deque[Callable[[], None]] = deque()
        self._reads: deque[Callable[[], None]] = deque()
        self._frames: deque[Callable[[], None]] = deque()
        self._kinds = (self._line, self._reads, self._frames)
        # Which of these the last slice was of.
        self._last = len(self._kinds) - 1
        self._is_scheduled = False

    def stop_s(self) -> float:
        """When a slice that begins now has to end."""
        # The loop's own time stands still within a turn.
        return monotonic() + (SHARED_SLICE_S if self._company.is_present() else SLICE_S)

    def add(self, work: Callable[[], None]) -> None:
        """Calls `work` when it has its turn: for one slice, and it adds itself for the next."""
        self._reads.append(work)
        self._schedule()

    def add_frames(self, work: Callable[[], None]) -> None:
        """As `add`, for frames that are too many."""
        self._frames.append(work)
        self._schedule()

    def line_up(self, work: Callable[[], None]) -> None:
        """The same when all who were in line have come to their end; `stay` is for the next one."""
        self._line.append(work)
        self._schedule()

    def stay(self, work: Callable[[], None]) -> None:
        """For who is at the head of the line: the next slice of it."""
        self._line.appendleft(work)
        self._schedule()

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        if self._company.is_present():
            self._turn_end.defer_behind(self._run)
        else:
            # Sockets are looked at in between.
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        work = self._next().popleft()
        if any(self._kinds):
            self._schedule()
        work()

    def _next(self) -> deque[Callable[[], None]]:
        """The next of the kinds that have something to do; it is called while there is one."""
        count = len(self._kinds)
        self._last = next(
            at % count
            for at in range(self._last + 1, self._last + 1 + count)
            if self._kinds[at % count]
        )
        return self._kinds[self._last]
