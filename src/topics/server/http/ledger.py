"""Bytes that clients make the process hold, within one bound for all of them.

There is one ledger for bodies that are on their way in and one for answers that are on their way
out. Nobody waits for room, so nobody can keep others waiting: past the bound the slowest are cut.
What passes without having to be held is not entered, and costs nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Generic, TypeVar

LOG = logging.getLogger("topics.server")
# How fast somebody is, is looked at over this long.
PACE_S = 1.0
# For how long an answer has to stand still: they are looked at once in about PACE_S.
ANSWER_STILL_S = 2 * PACE_S
# What whoever has begun since then counts as, at least. Its first bytes say nothing of what comes
# next: were it taken for faster, those that come and bring nothing would push out all that move;
# were it taken for still, those that move a byte now and then would keep everybody else out.
FRESH_BYTES_PER_S = 128 * 1024
# The log tells of cuts at most this often.
TOLD_S = 1.0

H = TypeVar("H")


class _Entry:
    __slots__ = ("held_bytes", "moved_at", "moved_bytes", "pace", "sent_bytes", "since")

    def __init__(self, now: float) -> None:
        self.held_bytes = self.sent_bytes = 0
        # What has moved since when, and how fast it did before that.
        self.moved_bytes = 0
        self.since = now
        # None until it was looked at for long enough.
        self.pace: float | None = None
        self.moved_at = now

    def move(self, moved_bytes: int, now: float) -> None:
        if moved_bytes > 0:
            self.moved_bytes += moved_bytes
            self.moved_at = now
        if now - self.since >= PACE_S:
            self.pace = self.moved_bytes / (now - self.since)
            self.moved_bytes, self.since = 0, now

    def rank(self, now: float, *, is_inward: bool) -> tuple[float, float]:
        """Lower is slower: those that stand still come first, the longest of them in front.

        Of those that have just begun it is whoever holds the most: one that came with much goes,
        and not many that have hardly said anything.
        """
        if now - self.moved_at >= (PACE_S if is_inward else ANSWER_STILL_S):
            return 0.0, self.moved_at
        if self.pace is not None:
            return self.pace, self.moved_at
        # What was taken of an answer is gone from here. What a body brought is held, and was
        # perhaps all that it brings.
        taken = 0.0 if is_inward else self.moved_bytes / PACE_S
        return max(FRESH_BYTES_PER_S, taken), -self.held_bytes


class Ledger(Generic[H]):
    """Who holds how much. `cut` ends a holder; here it has left by then.

    Whoever `is_inward` moves by holding more, as a body that arrives; else by holding less, as an
    answer that is taken.
    """

    __slots__ = (
        "_bytes_max", "_cut", "_entries", "_is_inward", "_now", "_told_at", "_what", "cuts",
        "held_bytes",
    )  # fmt: skip

    def __init__(
        self, what: str, bytes_max: int, *, is_inward: bool,
        now: Callable[[], float], cut: Callable[[H], None],
    ) -> None:  # fmt: skip
        self._what = what
        # Without a bound it is still known how much there is.
        self._bytes_max = bytes_max or math.inf
        self._is_inward = is_inward
        self._now = now
        self._cut = cut
        self._entries: dict[H, _Entry] = {}
        self._told_at = -TOLD_S
        self.held_bytes = 0
        self.cuts = 0

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the bound is taken."""
        return self.held_bytes * 2 > self._bytes_max

    def enter(self, holder: H, held_bytes: int, sent_bytes: int = 0) -> None:
        """The holder has so much now. It may be cut itself.

        `sent_bytes` are those that left and have not arrived: not held, and not taken either.
        """
        now = self._now()
        entry = self._entries.get(holder)
        if entry is None:
            entry = self._entries[holder] = _Entry(now)
            entry.sent_bytes = sent_bytes
        change = held_bytes - entry.held_bytes
        self.held_bytes += change
        taken = entry.sent_bytes - sent_bytes - change
        entry.held_bytes, entry.sent_bytes = held_bytes, sent_bytes
        entry.move(change if self._is_inward else taken, now)
        while self.held_bytes > self._bytes_max:
            self._cut_slowest(now)

    def leave(self, holder: H) -> None:
        """The holder has nothing any more."""
        entry = self._entries.pop(holder, None)
        if entry is not None:
            self.held_bytes -= entry.held_bytes

    def _cut_slowest(self, now: float) -> None:
        slowest, entry = min(
            self._entries.items(), key=lambda item: item[1].rank(now, is_inward=self._is_inward)
        )
        self.leave(slowest)
        self.cuts += 1
        if now - self._told_at >= TOLD_S:
            self._told_at = now
            LOG.warning(
                "%s passed %d bytes: the slowest, with %d bytes, was cut; %d so far",
                self._what, self._bytes_max, entry.held_bytes, self.cuts,
            )  # fmt: skip
        self._cut(slowest)
