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
    __slots__ = ("held_bytes", "moved_bytes", "pace", "since")

    def __init__(self, now: float) -> None:
        self.held_bytes = 0
        self.moved_bytes = 0
        self.since = now
        self.pace = math.inf


class Ledger(Generic[H]):
    """Who holds how much. `cut` ends a holder, which leaves within that call or soon after."""

    __slots__ = (
        "_bytes_max",
        "_cut",
        "_entries",
        "_now",
        "_told_at",
        "_what",
        "cuts",
        "held_bytes",
    )

    def __init__(
        self, what: str, bytes_max: int, *, now: Callable[[], float], cut: Callable[[H], None]
    ) -> None:
        self._what = what
        # Without a bound it is still known how much there is.
        self._bytes_max = bytes_max or math.inf
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

    def enter(self, holder: H, held_bytes: int, moved_bytes: int = 0) -> None:
        """The holder has so much now, and has moved so much since the last time.

        What has become less has moved, too. The holder itself may be cut.
        """
        now = self._now()
        entry = self._entries.get(holder)
        if entry is None:
            entry = self._entries[holder] = _Entry(now)
        change = held_bytes - entry.held_bytes
        entry.moved_bytes += moved_bytes + max(0, -change)
        entry.held_bytes = held_bytes
        self.held_bytes += change
        if now - entry.since >= PACE_S:
            entry.pace = entry.moved_bytes / (now - entry.since)
            entry.moved_bytes, entry.since = 0, now
        while self.held_bytes > self._bytes_max:
            self._cut_slowest(now)

    def leave(self, holder: H) -> None:
        """The holder has nothing any more."""
        entry = self._entries.pop(holder, None)
        if entry is not None:
            self.held_bytes -= entry.held_bytes

    def _cut_slowest(self, now: float) -> None:
        def pace(item: tuple[H, _Entry]) -> tuple[float, float]:
            entry, for_s = item[1], now - item[1].since
            return (entry.moved_bytes / for_s if for_s >= PACE_S else entry.pace), entry.since

        slowest, entry = min(self._entries.items(), key=pace)
        self.leave(slowest)
        self.cuts += 1
        if now - self._told_at >= TOLD_S:
            self._told_at = now
            LOG.warning(
                "%s passed %d bytes: the slowest, with %d bytes, was cut; %d so far",
                self._what, self._bytes_max, entry.held_bytes, self.cuts,
            )  # fmt: skip
        self._cut(slowest)
