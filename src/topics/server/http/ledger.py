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
# How fast somebody is, is looked at over this long; until then nobody is slow.
PACE_S = 1.0
# The log tells of cuts at most this often.
TOLD_S = 1.0

H = TypeVar("H")


class _Entry:
    __slots__ = ("held_bytes", "moved_at", "moved_bytes", "pace", "since")

    def __init__(self, now: float) -> None:
        self.held_bytes = 0
        # What has moved since when, and how fast it did before that.
        self.moved_bytes = 0
        self.since = now
        self.pace = math.inf
        self.moved_at = now

    def move(self, moved_bytes: int, now: float) -> None:
        if moved_bytes > 0:
            self.moved_bytes += moved_bytes
            self.moved_at = now
        if now - self.since >= PACE_S:
            self.pace = self.moved_bytes / (now - self.since)
            self.moved_bytes, self.since = 0, now

    def rank(self, now: float) -> tuple[float, float]:
        """Lower is slower: those that stand still come first, the longest of them in front."""
        return (0.0 if now - self.moved_at >= PACE_S else self.pace), self.moved_at


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

    def enter(self, holder: H, held_bytes: int) -> None:
        """The holder has so much now. It may be cut itself."""
        now = self._now()
        entry = self._entries.get(holder)
        if entry is None:
            entry = self._entries[holder] = _Entry(now)
        change = held_bytes - entry.held_bytes
        entry.held_bytes = held_bytes
        self.held_bytes += change
        entry.move(change if self._is_inward else -change, now)
        while self.held_bytes > self._bytes_max:
            self._cut_slowest(now)

    def leave(self, holder: H) -> None:
        """The holder has nothing any more."""
        entry = self._entries.pop(holder, None)
        if entry is not None:
            self.held_bytes -= entry.held_bytes

    def _cut_slowest(self, now: float) -> None:
        slowest, entry = min(self._entries.items(), key=lambda item: item[1].rank(now))
        self.leave(slowest)
        self.cuts += 1
        if now - self._told_at >= TOLD_S:
            self._told_at = now
            LOG.warning(
                "%s passed %d bytes: the slowest, with %d bytes, was cut; %d so far",
                self._what, self._bytes_max, entry.held_bytes, self.cuts,
            )  # fmt: skip
        self._cut(slowest)
