"""Work that is done once for everything that arrived in the same turn of the event loop.

Handlers submit to the engine and defer its flush; the flush runs after the last socket of this
turn was read, and writes what all of them submitted as one group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Turns that may go in front of what comes last: loops that are always busy must get to it.
PASSED_MAX = 3


class TurnEnd:
    """Runs deferred callbacks once, in the order they were first deferred, at the turn's end."""

    __slots__ = ("_behind", "_due", "_is_scheduled", "_last", "_loop", "_passed", "count")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[Callable[[], None], None] = {}
        self._behind: dict[Callable[[], None], None] = {}
        self._is_scheduled = False
        self._last: list[Callable[[], None]] = []
        # How many turns have gone in front of what comes last.
        self._passed = 0
        # How often there was something to do, but for what comes behind.
        self.count = 0

    def defer(self, callback: Callable[[], None]) -> None:
        """Runs `callback` at the end of this turn; deferring it again before then changes nothing.

        A callback deferred while the callbacks run, runs after them, in the same turn.
        """
        self._due[callback] = None
        self._schedule()

    def defer_behind(self, callback: Callable[[], None]) -> None:
        """Runs `callback` behind what is deferred in this turn, and in front of the next one."""
        self._behind[callback] = None
        self._schedule()

    def defer_last(self, callback: Callable[[], None]) -> None:
        """Runs `callback` when the answers of this turn are on their way.

        They are sent between two turns. What others have asked for by then goes first, a few times.
        """
        self._last.append(callback)
        if len(self._last) == 1:
            self._passed = 0
            self._loop.call_soon(self._run_last)

    def _run_last(self) -> None:
        if self._is_scheduled and self._passed < PASSED_MAX:
            self._passed += 1
            self._loop.call_soon(self._run_last)
            return
        last, self._last = self._last, []
        for callback in last:
            self._call(callback)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self.count += bool(self._due)
        # Two rounds reach what the callbacks defer in their turn (flush, then the answers);
        # a callback that always defers itself must not keep the loop from its sockets.
        self._round()
        self._round()
        behind, self._behind = self._behind, {}
        if behind:
            for callback in behind:
                self._call(callback)
            # What they have woken need not wait for the sockets.
            self._round()
        self._is_scheduled = bool(self._due or self._behind)
        if self._is_scheduled:
            self._loop.call_soon(self._run)

    def _round(self) -> None:
        due, self._due = self._due, {}
        for callback in due:
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "a deferred callback failed", "exception": error}
            )
