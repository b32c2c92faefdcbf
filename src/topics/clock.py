"""Time, injected. The wall clock may jump; the monotonic clock never goes back."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


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
