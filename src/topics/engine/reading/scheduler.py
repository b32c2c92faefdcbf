"""Who is served next, and how much at once.

Whatever has work is marked, and waits in a band by its effective priority. A turn serves bands from
the highest down, each as often as its weight before any is served again, so a higher one always
comes first and a lower one always comes. Waiting raises a priority (`tick`), so it ends.

A turn is bounded in frames and bytes: the caller goes back to its sockets between turns.

Pressure is measured, never guessed: how late the loop is, how much waits for the log, how many
topics wait to be served, and how long one of them has, by a clock that never jumps. It costs
latency first (requests wait for their topic's turn), then low bands are served less often with more
in each frame, then requests are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from topics.clock import Clock
from topics.errors import Throttled
from topics.types import clamp

TICK_MS = 50
TURN_FRAMES_MAX = 128
TURN_BYTES_MAX = 1024 * 1024
# What one task may take before it is another's turn.
QUANTUM_FRAMES = 64
QUANTUM_BYTES = 256 * 1024

BANDS = 8
# The priorities that bands divide: manual ones, and those of the longest wait.
PRIORITY_LOW, PRIORITY_HIGH = -1000, 2000
# Entries of a band that one tick looks at again; the longest waiting are in front.
TICK_ENTRIES_MAX = 256

# Pressure of 1 is where each of these alone begins to refuse.
LAG_MS_MAX = 500
WAL_FRAMES_MAX = 100_000
READY_MAX = 100_000
# A wait above what pacing alone comes to: pressure must not feed itself.
WAITED_MS_MAX = 2000
# From here on requests are parked; then low bands are paced; then what has no priority is refused.
PARKED_FROM = 0.1
PACED_FROM = 0.5
REFUSED_FROM = 1.0
# Even what has priority is refused from here on.
ALL_REFUSED_FROM = 2.0
PACE_MS = 500
RETRY_MS_MIN, RETRY_MS_MAX = 250, 5000
# The weight of the newest measurement: one late turn is not pressure, a second of them is.
SMOOTHING = 0.1


class Served(NamedTuple):
    frames: int
    bytes: int
    has_more: bool


class Task(Protocol):
    """Something that can have work."""

    def priority(self, wall_ms: int, waited_ms: int) -> int:
        """Its effective priority now, when it has been waiting for so long."""
        ...

    def serve(self, frames_max: int, bytes_max: int) -> Served:
        """Works off a part of what there is; the last unit may pass the bounds."""
        ...

    def paced(self, retry_after_ms: int) -> None:
        """Under pressure it is served less often for now."""
        ...


class Entry:
    """A task that waits."""

    __slots__ = ("band", "is_paced", "since_ms", "task")

    def __init__(self, task: Task, band: int, since_ms: int) -> None:
        self.task = task
        self.band = band
        self.since_ms = since_ms
        self.is_paced = False


def band_of(priority: int) -> int:
    span = PRIORITY_HIGH - PRIORITY_LOW + 1
    return clamp((priority - PRIORITY_LOW) * BANDS // span, 0, BANDS - 1)


class Scheduler:
    """Serves marked tasks. After `wake` was called, `turn` is due until it returns False."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self.pressure = Pressure()
        self._clock = clock
        self._wake = wake
        self._is_awake = False
        self._entries: dict[Task, Entry] = {}
        self._bands: list[deque[Entry]] = [deque() for _ in range(BANDS)]
        self._credits = [0] * BANDS
        # When a paced task was last served.
        self._paced: dict[Task, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waited_ms(self) -> int:
        """For how long one of those in front has been waiting."""
        fronts = [entries[0].since_ms for entries in self._bands if entries]
        return self._now_ms() - min(fronts) if fronts else 0

    def mark(self, task: Task) -> None:
        """The task has work. Marking it again while it waits changes nothing."""
        if task in self._entries:
            return
        self._wait(task)
        self._rouse()

    def forget(self, task: Task) -> None:
        """The task has no work any more."""
        entry = self._entries.pop(task, None)
        if entry is not None:
            self._bands[entry.band].remove(entry)
        self._paced.pop(task, None)

    def turn(self) -> bool:
        """Serves up to a turn's budget; True when there is more to do at once."""
        frames, size = TURN_FRAMES_MAX, TURN_BYTES_MAX
        while frames > 0 and size > 0:
            entry = self._next()
            if entry is None:
                self._is_awake = False
                return False
            task = entry.task
            served = task.serve(min(frames, QUANTUM_FRAMES), min(size, QUANTUM_BYTES))
            frames -= max(served.frames, 1)
            size -= served.bytes
            if served.has_more and task not in self._entries:
                self._wait(task)
        self._is_awake = bool(self._entries)
        return self._is_awake

    def tick(self) -> None:
        """Every TICK_MS: waiting raises priorities, and what was held back may be due."""
        wall_ms, now_ms = self._clock.wall_ms(), self._now_ms()
        for entries in self._bands:
            for _ in range(min(len(entries), TICK_ENTRIES_MAX)):
                entry = entries.popleft()
                entry.band = band_of(entry.task.priority(wall_ms, now_ms - entry.since_ms))
                self._bands[entry.band].append(entry)
        if not self.pressure.is_pacing:
            self._paced.clear()
        if self._entries:
            self._rouse()

    # -- the queue ---------------------------------------------------------------------------

    def _rouse(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def _wait(self, task: Task) -> None:
        band = band_of(task.priority(self._clock.wall_ms(), 0))
        entry = Entry(task, band, self._now_ms())
        self._entries[task] = entry
        self._bands[entry.band].append(entry)

    def _next(self) -> Entry | None:
        if not self._entries:
            return None
        is_pacing = self.pressure.is_pacing
        top = True
        for _ in range(2):
            for band in range(BANDS - 1, -1, -1):
                entries = self._bands[band]
                if not entries:
                    continue
                if self._credits[band] > 0:
                    entry = self._take(entries, is_paced=is_pacing and not top)
                    if entry is not None:
                        self._credits[band] -= 1
                        del self._entries[entry.task]
                        return entry
                top = False
            self._credits = [1 << band for band in range(BANDS)]
            top = True
        return None

    def _take(self, entries: deque[Entry], *, is_paced: bool) -> Entry | None:
        """The next of a band; one that is paced and was served just now waits on."""
        if not is_paced:
            return entries.popleft()
        now_ms = self._now_ms()
        for _ in range(min(len(entries), TICK_ENTRIES_MAX)):
            entry = entries.popleft()
            served_ms = self._paced.get(entry.task)
            if served_ms is None or now_ms - served_ms >= PACE_MS:
                self._paced[entry.task] = now_ms
                return entry
            if not entry.is_paced:
                entry.is_paced = True
                entry.task.paced(PACE_MS)
            entries.append(entry)
        return None

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)


class Pressure:
    """How hard it is to keep up: 0 is idle, from 1 on requests are refused."""

    __slots__ = ("is_pacing", "is_parking", "is_refusing", "lag_ms", "level", "limits")

    def __init__(self) -> None:
        self.level = 0.0
        self.lag_ms = 0.0
        self.is_parking = False
        self.is_pacing = False
        self.is_refusing = False
        self.limits = (LAG_MS_MAX, WAL_FRAMES_MAX, READY_MAX, WAITED_MS_MAX)

    def measure(self, *, lag_ms: float, wal_frames: int, ready: int, waited_ms: int) -> None:
        """One measurement, every TICK_MS."""
        self.lag_ms += (min(lag_ms, 10 * self.limits[0]) - self.lag_ms) * SMOOTHING
        now = max(
            value / limit
            for value, limit in zip(
                (self.lag_ms, wal_frames, ready, waited_ms), self.limits, strict=True
            )
        )
        # Falls as slowly as the lag does, so that callers do not all come back at once.
        self.set_level(max(now, self.level * (1 - SMOOTHING) if self.level > now else now))

    def set_level(self, level: float) -> None:
        """Draws the consequences of a level."""
        self.level = level
        self.is_parking = level >= PARKED_FROM
        self.is_pacing = level >= PACED_FROM
        self.is_refusing = level >= REFUSED_FROM

    @property
    def retry_after_ms(self) -> int:
        return clamp(int(self.level * RETRY_MS_MIN), RETRY_MS_MIN, RETRY_MS_MAX)

    def refuse(self, what: str, priority: int) -> None:
        """Raises Throttled when a request for a topic of this priority has to come back later."""
        if not self.is_refusing:
            return
        if self.level < ALL_REFUSED_FROM and priority > 0:
            return
        raise self.refusal(what)

    def refusal(self, what: str) -> Throttled:
        return Throttled(
            f"the server is at its limit; this {what} was not done. Retry after "
            f"{self.retry_after_ms} ms.",
            retry_after_ms=self.retry_after_ms,
        )
