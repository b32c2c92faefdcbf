"""Time, injected. The wall clock may jump; the monotonic clock never goes back."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

# By how much the wall has to move before it counts as moved.
WALL_MOVED_MS = 10
# How often that is looked at again before it is believed.
MEASURED_AGAIN = 2


def iso_time(ts_ms: int) -> str:
    """A time in UTC as people write it: 2026-11-16T15:04:05.000Z."""
    try:
        moment = datetime.fromtimestamp(ts_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ts_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, as the machine believes now. May go backwards."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes backwards; its zero means nothing."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class WallAt:
    """What the wall shows at a time of the monotonic clock: one number, whenever it is asked.

    The two clocks are read one after the other and in whole milliseconds, so that their distance
    comes out differently each time. The one that was measured first holds until the wall moved.
    Whoever is interrupted between the two readings finds them nearer than they are, never farther.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms: int | None = None

    def __call__(self, monotonic_ms: int) -> int:
        ahead_ms = self._measured_ms()
        if self._ahead_ms is None or abs(ahead_ms - self._ahead_ms) > WALL_MOVED_MS:
            ahead_ms = max(ahead_ms, *(self._measured_ms() for _ in range(MEASURED_AGAIN)))
            if self._ahead_ms is None or abs(ahead_ms - self._ahead_ms) > WALL_MOVED_MS:
                self._ahead_ms = ahead_ms
        return monotonic_ms + self._ahead_ms

    def _measured_ms(self) -> int:
        return self._clock.wall_ms() - round(self._clock.monotonic_s() * 1000)
