"""Threads beside the loop for what would keep everybody waiting, woken when nobody waits.

A thread that is woken wants the interpreter's lock at once, and often the core of whoever woke it.
In the middle of a turn that cost a third of a millisecond, most of it a wait for the lock, in front
of everybody's answers. So work is handed over when the answers of the turn are on their way, and
its end is told by one call on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from topics.server.http.turns import TurnEnd

T = TypeVar("T")


class Beside:
    """A few threads. Called on the loop, once `attach` has told whose turns count."""

    __slots__ = ("_is_closed", "_loop", "_threads", "_turn_end")

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int, name: str) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(threads_max, name)
        self._is_closed = False
        self._turn_end: TurnEnd

    def attach(self, turn_end: TurnEnd) -> None:
        self._turn_end = turn_end

    def do(self, work: Callable[[], T], ended: Callable[[Future[T]], None]) -> None:
        """Runs `work` in a thread; `ended` is called on the loop with what became of it.

        That is cancelled where it was not begun before `close`, and failed where the system has no
        thread for it: then it may still be run, if there is one for something else.
        """
        self._turn_end.defer_last(partial(self._hand_over, work, ended))

    def close(self) -> None:
        """Begins nothing any more, and waits for nothing."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _hand_over(self, work: Callable[[], T], ended: Callable[[Future[T]], None]) -> None:
        try:
            future = self._threads.submit(work)
        except RuntimeError as error:
            future = Future()
            if self._is_closed:
                future.cancel()
            else:
                future.set_exception(error)
        future.add_done_callback(partial(self._tell, ended))

    def _tell(self, ended: Callable[[Future[T]], None], future: Future[T]) -> None:
        try:
            self._loop.call_soon_threadsafe(ended, future)
        except RuntimeError:
            # The loop has ended, and with it whoever waited.
            return
