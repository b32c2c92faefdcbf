"""Long work of the loop is done a slice at a time: one in each turn, whoever has asked for it.

Behind what others have asked for in that turn, and short while there are any. Those who wait for a
slice are served in a row, so that nobody's long work keeps another's from its end, and many of them
cost everybody else no more than one does.
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
    """Called on the loop, once `attach` has told whose turns count."""

    __slots__ = ("_company", "_due", "_is_scheduled", "_loop", "_turn_end")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._turn_end: TurnEnd
        self._company: Company

    def attach(self, turn_end: TurnEnd, company: Company) -> None:
        self._turn_end = turn_end
        self._company = company

    def stop_s(self) -> float:
        """When a slice that begins now has to end."""
        # The loop's own time stands still within a turn.
        return monotonic() + (SHARED_SLICE_S if self._company.is_present() else SLICE_S)

    def add(self, work: Callable[[], None]) -> None:
        """Calls `work` when it has its turn: for one slice, and it adds itself for the next."""
        self._due.append(work)
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
        work = self._due.popleft()
        if self._due:
            self._schedule()
        work()
