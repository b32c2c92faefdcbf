"""A connection's share of a turn of the loop: what it sent is taken in pieces.

Thousands of requests or frames may arrive in one read. They are taken for about SHARE_S; then the
other connections have their turn, and nothing more is read from this one until it has caught up.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter

SHARE_S = 0.001
# Frames that are taken in one go.
TOGETHER_MAX = 8
# Frames without work in them that a client may send beyond those that its work explains: how many,
# how many each frame with work in it makes up for, and how many a second does.
IDLE_MAX = 1000
IDLE_PER_WORK = 4
IDLE_PER_S = 100


class Intake:
    """Input that has arrived and was not taken yet: never more than one read and what was left.

    `end_of(data, at)` says where the piece ends that begins at `at`: at `at` itself when more has
    to arrive first. `take` takes a piece; it is not called while `is_held()`. `behind` is called
    with whether there is input left: reading has to stop, or may go on.
    """

    __slots__ = (
        "_at", "_behind", "_data", "_end_of", "_handle", "_is_held", "_loop", "_take", "is_behind",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        end_of: Callable[[bytes, int], int],
        take: Callable[[bytes], None],
        is_held: Callable[[], bool],
        behind: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._end_of = end_of
        self._take = take
        self._is_held = is_held
        self._behind = behind
        self._data = b""
        self._at = 0
        self._handle: asyncio.Handle | None = None
        # Something is left that has its turn still to come.
        self.is_behind = False

    def feed(self, data: bytes) -> None:
        """Takes what has arrived, or as much of it as this turn allows."""
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0
        if not self.is_behind:
            self._run()

    def rest(self) -> bytes:
        """What was not taken, for whoever takes the connection over; here it is forgotten."""
        rest, self._data, self._at = self._data[self._at :], b"", 0
        self.is_behind = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        return rest

    def go_on(self) -> None:
        """Nothing holds the input back any more."""
        if self.is_behind and self._handle is None:
            self._handle = self._loop.call_soon(self._run)

    def steer(self, transport: asyncio.ReadTransport, *, is_paused: bool) -> None:
        """Reads on only when everything was taken and the answers are; else takes what is left."""
        if is_paused or self.is_behind:
            transport.pause_reading()
            if not is_paused:
                self.go_on()
        else:
            transport.resume_reading()

    def _run(self) -> None:
        self._handle = None
        was_behind, data, stop_s = self.is_behind, self._data, perf_counter() + SHARE_S
        while not self._is_held():
            at = self._at
            end = self._end_of(data, at)
            if end == at:
                # What is left is the beginning of something, or nothing: no read is kept for it.
                self._data, self._at, self.is_behind = data[at:], 0, False
                if was_behind:
                    self._behind(False)
                return
            self._at = end
            self._take(data if end - at == len(data) else data[at:end])
            if data is not self._data:
                # The connection has ended, or somebody else has it now.
                return
            if perf_counter() >= stop_s and self._at < len(data):
                self._handle = self._loop.call_soon(self._run)
                break
        if not was_behind and self._at < len(data):
            self.is_behind = True
            self._behind(True)


class Frames(ABC):
    """Finds the ends of frames in the input, and counts those that have no work in them."""

    __slots__ = ("_idle", "_left")

    def __init__(self, left_bytes: int = 0) -> None:
        # What has still to come of a frame that has begun.
        self._left = left_bytes
        self._idle = 0

    @property
    def is_between(self) -> bool:
        """Whether what was found so far ends with a frame."""
        return not self._left

    @property
    def is_flood(self) -> bool:
        """Whether there were too many frames without work in them."""
        return self._idle > IDLE_MAX

    def end_of(self, data: bytes, at: int) -> int:
        """Where a few frames end that begin at `at`, or the input within the last of them."""
        left = self._left
        for _ in range(TOGETHER_MAX):
            if not left:
                left = self._begin(data, at)
                if not left:
                    break
            step = min(left, len(data) - at)
            at += step
            left -= step
        self._left = left
        return at

    def count(self, *, is_work: bool) -> None:
        if is_work:
            self.credit(IDLE_PER_WORK)
        else:
            self._idle += 1

    def credit(self, count: int) -> None:
        """So many frames without work are explained."""
        self._idle = max(0, self._idle - count)

    @abstractmethod
    def _begin(self, data: bytes, at: int) -> int:
        """Looks at the head of a frame; the frame's size, or 0 while the head is not whole."""
