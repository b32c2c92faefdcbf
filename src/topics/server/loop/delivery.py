"""Delivery: turns of the scheduler between the turns of the loop, and everything that ticks.

One timer for all streams: it measures pressure, lets waiting topics age, sends heartbeats to those
that had nothing else, and ends those that take nothing. A stream that is idle costs no timer.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from topics.clock import Clock
from topics.engine.engine import Engine
from topics.engine.reading.feeds import Feeds
from topics.engine.reading.scheduler import TICK_MS, Scheduler
from topics.errors import Poisoned, Throttled
from topics.server.api.auth import Key
from topics.server.config import ServerOptions
from topics.server.http.errors import LOG
from topics.server.http.turns import TurnEnd
from topics.server.loop.access_log import AccessLog
from topics.server.loop.driver import Driver
from topics.server.loop.visitors import Visitor

TICK_S = TICK_MS / 1000
# Turns of the scheduler that follow each other may keep the sockets waiting for so long.
TURN_S_MAX = 0.05
# Heartbeats are this exact.
BUCKET_S = 0.25
# Slow readers, and reads that failed, are looked at once in so many ticks.
LOOKED_AFTER = 10


class Outlet(Visitor, Protocol):
    """A long-lived connection that frames go out on."""

    # When something last went out, on the coarse clock of Delivery.
    sent_s: float

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def is_writable(self) -> bool: ...

    @property
    def is_open(self) -> bool: ...

    def beat(self, wall_ms: int) -> None:
        """Nothing went out for `heartbeat_s`."""
        ...

    def resume(self, *, is_degraded: bool) -> None:
        """It takes frames again; degraded when it did not for longer than the grace."""
        ...

    def cut_off(self) -> None:
        """It has taken nothing for too long."""
        ...


class Delivery:
    """What streams and sockets share. `feeds` is there once the engine is."""

    def __init__(
        self, driver: Driver, clock: Clock, options: ServerOptions, access_log: AccessLog
    ) -> None:
        self.scheduler = Scheduler(clock, self._wake)
        self.pressure = self.scheduler.pressure
        self.feeds: Feeds
        self.connections = 0
        # The loop's time, a tick old at most.
        self.now_s = driver.loop.time()
        self._driver = driver
        self._loop = driver.loop
        self._clock = clock
        self._options = options
        self._access_log = access_log
        self._turn_end: TurnEnd
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._due_s = 0.0
        self._is_turning = False
        # When the last turn ended.
        self._turned_s = 0.0
        # Streams by when their next heartbeat may be due; most were sent something by then.
        self._beats: dict[int, list[Outlet]] = {}
        self._bucket = int(self.now_s / BUCKET_S)
        # Outlets that have something to send and take nothing, since when; and how many were cut.
        self.slow: dict[Outlet, float] = {}
        self.cuts = 0

    # -- life --------------------------------------------------------------------------------

    def attach(self, turn_end: TurnEnd) -> None:
        self._turn_end = turn_end

    def opened(self, engine: Engine) -> None:
        """The engine can be used."""
        self.feeds = engine.open_feeds(self.scheduler, self._driver.fetch)
        self.now_s = self._loop.time()
        self._due_s = self.now_s + TICK_S
        self._timer = self._loop.call_at(self._due_s, self._run)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- connections -------------------------------------------------------------------------

    def enter(self, key: Key | None) -> None:
        """Counts a connection in. Raises Throttled when there are as many as there may be."""
        maximum = self._options.max_sse_connections
        if maximum and self.connections >= maximum:
            raise Throttled(
                f"{maximum} streams are open, the most this server allows; retry when one ends",
                limit="max_sse_connections", max=maximum,
            )  # fmt: skip
        maximum = self._options.max_sse_connections_per_key
        if key is not None:
            if maximum and key.streams >= maximum:
                raise Throttled(
                    f"this API key has {maximum} streams open, the most it may have; close one",
                    limit="max_sse_connections_per_key", max=maximum,
                )  # fmt: skip
            key.streams += 1
        self.connections += 1

    def leave(self, key: Key | None) -> None:
        self.connections -= 1
        if key is not None:
            key.streams -= 1

    # -- pressure ----------------------------------------------------------------------------

    def refuse(self, what: str, name: str = "") -> None:
        """Raises Throttled when a request, for this topic if it is for one, has to come later."""
        value = self._driver.engine.priority_of(name, self._clock.wall_ms())
        self.pressure.refuse(what, value)

    # -- turns -------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            self._turn_end.defer(self._turn)

    def _turn(self) -> None:
        self._is_turning = False
        if not self._driver.is_ready:
            return
        # As long as the sockets took since the last turn: neither starves the other. The loop's own
        # time stands still within a turn.
        now_s = monotonic()
        stop_s = now_s + min(now_s - self._turned_s, TURN_S_MAX)
        try:
            has_more = self.scheduler.turn()
            while has_more and monotonic() < stop_s:
                has_more = self.scheduler.turn()
        except Poisoned as error:
            self._driver.fail(error)
            return
        except Exception as error:
            LOG.error("a turn of the scheduler failed; the next one goes on", exc_info=error)
            has_more = True
        self._turned_s = monotonic()
        if has_more and not self._is_turning:
            # The sockets come first, then the next turn.
            self._is_turning = True
            self._loop.call_soon(self._turn)

    # -- time --------------------------------------------------------------------------------

    def _run(self) -> None:
        loop, driver = self._loop, self._driver
        self.now_s = now_s = loop.time()
        if not driver.is_ready:
            return
        lag_s = now_s - self._due_s
        self._due_s = max(self._due_s + TICK_S, now_s + TICK_S / 2)
        self._timer = loop.call_at(self._due_s, self._run)
        self.pressure.measure(
            lag_ms=lag_s * 1000,
            wal_frames=driver.engine.frames_on_their_way,
            ready=len(self.scheduler),
            waited_ms=self.scheduler.waited_ms,
        )
        self.scheduler.tick()
        self._ticks += 1
        if self._ticks % LOOKED_AFTER == 0:
            self.feeds.tick()
            self._look_after_slow()
        self._beat()

    def keep_alive(self, outlet: Outlet) -> None:
        """Heartbeats from now on, for as long as the outlet is open."""
        bucket = int((outlet.sent_s + outlet.heartbeat_s) / BUCKET_S) + 1
        self._beats.setdefault(max(bucket, self._bucket + 1), []).append(outlet)

    def _beat(self) -> None:
        last = int(self.now_s / BUCKET_S)
        wall_ms = self._clock.wall_ms()
        while self._bucket < last:
            self._bucket += 1
            for outlet in self._beats.pop(self._bucket, ()):
                if not outlet.is_open:
                    continue
                if self.now_s - outlet.sent_s >= outlet.heartbeat_s:
                    if outlet.is_writable:
                        outlet.beat(wall_ms)
                    # What it was not sent now, it is not owed either.
                    outlet.sent_s = self.now_s
                self.keep_alive(outlet)

    # -- slow readers ------------------------------------------------------------------------

    def note_slow(self, outlet: Outlet) -> None:
        """Something is to be sent and the outlet takes nothing."""
        self.slow.setdefault(outlet, self.now_s)

    def resumed(self, outlet: Outlet) -> None:
        """The outlet's buffer has drained."""
        since_s = self.slow.pop(outlet, self.now_s)
        grace_s = self._options.buffer_grace_ms / 1000
        outlet.resume(is_degraded=self.now_s - since_s > grace_s)

    def forget(self, outlet: Outlet) -> None:
        self.slow.pop(outlet, None)

    def _look_after_slow(self) -> None:
        timeout_s = self._options.slow_consumer_timeout_ms / 1000
        for outlet, since_s in list(self.slow.items()):
            if outlet.is_writable:
                self.resumed(outlet)
            elif self.now_s - since_s > timeout_s:
                self.slow.pop(outlet, None)
                self.cuts += 1
                self._access_log.cut(outlet)
                outlet.cut_off()
