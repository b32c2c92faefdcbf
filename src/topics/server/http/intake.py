"""A connection's share of a turn of the loop: what it sent is taken in pieces.

Thousands of requests or frames may arrive in one read. They are taken for about SHARE_S; then the
other connections have their turn, and nothing more is read from this one until it has caught up.
Connections that mostly send frames without work in them have no share each, but one slice of a turn
together: however many they are, others wait for no more than that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

from topics.server.http.slices import Slices

SHARE_S = 0.001
# Frames that are taken in one go.
TOGETHER_MAX = 8
# Frames without work in them that a client may send beyond those that its work explains: how many,
# how many each frame with work in it makes up for, and how many a second does.
IDLE_MAX = 250
# From so many on there is no share for the connection: clients that mean well have fewer.
IDLE_SHARED_MIN = 16
IDLE_PER_WORK = 4
IDLE_PER_S = 100


def _never() -> bool:
    return False


class Intake:
    """Input that has arrived and was not taken yet: never more than one read and what was left.

    `end_of(data, at)` says where the piece ends that begins at `at`: at `at` itself when more has
    to arrive first. `take` takes a piece; it is not called while `is_held()`. `behind` is called
    with whether there is input left: reading has to stop, or may go on. While `is_idle()` the input
    is taken in the slices of all long work.
    """

    __slots__ = (
        "_at", "_behind", "_data", "_end_of", "_is_held", "_is_idle", "_is_scheduled", "_loop",
        "_slices", "_take", "is_behind",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        *,
        end_of: Callable[[bytes, int], int],
        take: Callable[[bytes], None],
        is_held: Callable[[], bool],
        behind: Callable[[bool], None],
        is_idle: Callable[[], bool] = _never,
    ) -> None:
        self._loop = loop
        self._slices = slices
        self._end_of = end_of
        self._take = take
        self._is_held = is_held
        self._behind = behind
        self._is_idle = is_idle
        self._data = b""
        self._at = 0
        self._is_scheduled = False
        # Something is left that has its turn still to come.
        self.is_behind = False

    def feed(self, data: bytes) -> None:
        """Takes what has arrived, or as much of it as this turn allows."""
        self._data = self._data[self._at :] + data if self._data else data
        self._at = 0
        if self.is_behind:
            return
        if self._is_idle():
            self._fall_behind()
        else:
            self._run()

    def rest(self) -> bytes:
        """What was not taken, for whoever takes the connection over; here it is forgotten."""
        rest, self._data, self._at = self._data[self._at :], b"", 0
        self.is_behind = False
        return rest

    def go_on(self) -> None:
        """Nothing holds the input back any more."""
        if not self.is_behind or self._is_scheduled:
            return
        self._is_scheduled = True
        if self._is_idle():
            self._slices.add_frames(self._run_again)
        else:
            self._loop.call_soon(self._run_again)

    def steer(self, transport: asyncio.ReadTransport, *, is_paused: bool) -> None:
        """Reads on only when everything was taken and the answers are; else takes what is left."""
        if is_paused or self.is_behind:
            transport.pause_reading()
            if not is_paused:
                self.go_on()
        else:
            transport.resume_reading()

    def _run_again(self) -> None:
        self._is_scheduled = False
        # Unless the connection has ended meanwhile.
        if self.is_behind:
            self._run()

    def _run(self) -> None:
        was_behind, data, stop_s = self.is_behind, self._data, monotonic() + SHARE_S
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
            if self._at < len(data) and (monotonic() >= stop_s or self._is_idle()):
                break
        if self._at < len(data):
            self._fall_behind()

    def _fall_behind(self) -> None:
        if not self.is_behind:
            self.is_behind = True
            self._behind(True)
        if not self._is_held():
            self.go_on()


class Frames(ABC):
    """Finds the ends of frames in the input, and counts those that have no work in them."""

    __slots__ = ("_excused", "_idle", "_left")

    def __init__(self, left_bytes: int = 0) -> None:
        # What has still to come of a frame that has begun.
        self._left = left_bytes
        # Those without work in them that nothing explains; and how many of them are no offence.
        self._idle = self._excused = 0

    @property
    def is_between(self) -> bool:
        """Whether what was found so far ends with a frame."""
        return not self._left

    def is_idle(self) -> bool:
        """Whether they are so many that the connection has no share of its own."""
        return self._idle >= IDLE_SHARED_MIN

    @property
    def is_flood(self) -> bool:
        """Whether there were too many frames without work in them."""
        return self._idle - self._excused > IDLE_MAX

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

    def count(self, *, is_work: bool, is_excused: bool = False) -> None:
        if is_work:
            self.credit(IDLE_PER_WORK)
        else:
            self._idle += 1
            self._excused += is_excused

    def credit(self, count: int) -> None:
        """So many frames without work are explained."""
        self._idle = max(0, self._idle - count)
        self._excused = min(self._excused, self._idle)

    @abstractmethod
    def _begin(self, data: bytes, at: int) -> int:
        """Looks at the head of a frame; the frame's size, or 0 while the head is not whole."""
