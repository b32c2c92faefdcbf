"""Time, injected. The wall clock may jump; the monotonic clock never goes back."""

from __future__ import annotations

import time
from typing import Protocol


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
