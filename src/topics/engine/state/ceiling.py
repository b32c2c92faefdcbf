"""A topic's ceiling: the durable bound on the seqs that a `disk` topic may have acknowledged.

`seq` is what the log is known to say, durably: no seq above it was acknowledged. It only goes up,
but for when all that is written is durable, and it is taken back to the head.
"""

from __future__ import annotations

ALLOWANCE_MIN, ALLOWANCE_MAX = 64, 1 << 20
BUSY_S = 1.0


class Ceiling:
    """Where it is, where it is going, and when the next one is due."""

    __slots__ = (
        "_allowance",
        "_asked_s",
        "_idle_head",
        "_idle_since_s",
        "ask_seq",
        "free_seq",
        "is_watched",
        "moving",
        "seq",
    )

    def __init__(self) -> None:
        self.seq = 0
        # Beyond this the next ceiling is asked for.
        self.ask_seq = 0
        # Up to here a write neither asks nor waits: the lower one of both.
        self.free_seq = 0
        # Ceilings that are on their way to the disk.
        self.moving = 0
        # Whether it stands among those that are looked at, to be closed when they fall idle.
        self.is_watched = False
        # How far the next one goes ahead, and when the last one was asked for.
        self._allowance = 0
        self._asked_s = 0.0
        # The head when it last moved, as seen by the idle check, and since when.
        self._idle_head = -1
        self._idle_since_s = 0.0

    def ask(self, last_seq: int, now_s: float) -> int:
        """The bound to be promised next, for a write up to `last_seq` and those after it."""
        busy = now_s - self._asked_s < BUSY_S
        grown = self._allowance * 4 if busy else ALLOWANCE_MIN
        self._allowance = allowance = min(max(grown, ALLOWANCE_MIN), ALLOWANCE_MAX)
        self._asked_s = now_s
        # Ask again when half of what is asked for now is used up, well before anything has to wait.
        self.ask_seq = last_seq + allowance // 2
        self.free_seq = min(self.seq, self.ask_seq)
        self.moving += 1
        return last_seq + allowance

    def rise(self, seq: int) -> None:
        """What was asked for is durable."""
        self.moving -= 1
        self.seq = max(self.seq, seq)
        self.free_seq = min(self.seq, self.ask_seq)

    def refuse(self) -> None:
        """The disk is full: the next write asks again."""
        self.moving -= 1
        self.ask_seq = self.free_seq = 0

    def replay(self, seq: int) -> None:
        """The log says so."""
        self.seq = seq
        self.free_seq = min(seq, self.ask_seq)

    def end(self, head: int) -> None:
        """All up to the head is durable; the next write of class disk promises anew."""
        self.seq = head
        self.ask_seq = self.free_seq = 0

    def close(self, head: int) -> None:
        """The topic fell idle."""
        assert not self.moving
        self.end(head)
        self._allowance = 0

    def is_idle(self, head: int, now_s: float, idle_s: float) -> bool:
        """Whether the head has not moved for so long."""
        if head != self._idle_head:
            self._idle_head, self._idle_since_s = head, now_s
        return now_s - self._idle_since_s >= idle_s
