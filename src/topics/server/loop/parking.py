"""Requests that wait for their turn in the elastic scheduler.

Under pressure, requests of topics take their turns beside delivery, by the same priorities, and
waiting raises theirs as it does a topic's. A connection with too many of them is not read any
further, so that whoever asks too much waits, and nobody else. Without pressure nothing is parked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from topics.engine.reading.scheduler import Served
from topics.server.api.call import Call
from topics.server.http.message import PENDING, Answer
from topics.server.loop.delivery import Delivery
from topics.server.loop.driver import Driver

# Longer than this nobody is kept waiting: a request that may be refused is.
PARKED_S_MAX = 5.0

Resume = Callable[[], Answer]
GoOn = Callable[[Call, Resume], None]


class Parking:
    """`go_on` resumes a call whose turn has come, and answers it if it can."""

    def __init__(self, driver: Driver, delivery: Delivery, go_on: GoOn) -> None:
        self.driver = driver
        self.delivery = delivery
        self.go_on = go_on
        self._lots: dict[str, Lot] = {}

    def __len__(self) -> int:
        return sum(len(lot.waiting) for lot in self._lots.values())

    def park(self, call: Call, name: str, what: str, resume: Resume, *, may_refuse: bool) -> Answer:
        """Calls `resume`, which answers as a handler does, when the topic's turn has come."""
        lot = self._lots.get(name)
        if lot is None:
            lot = self._lots[name] = Lot(self, name)
        lot.waiting.append((monotonic(), call, resume, what if may_refuse else ""))
        self.delivery.scheduler.mark(lot)
        return PENDING

    def leave(self, lot: Lot) -> None:
        del self._lots[lot.name]


class Lot:
    """What is parked for one topic, in the order it came."""

    def __init__(self, parking: Parking, name: str) -> None:
        self.name = name
        self.waiting: deque[tuple[float, Call, Resume, str]] = deque()
        self._parking = parking

    # -- a task of the scheduler -------------------------------------------------------------

    def priority(self, wall_ms: int, waited_ms: int) -> int:
        engine = self._parking.driver.engine
        return engine.priority_of(self.name, wall_ms, waited_ms=waited_ms)

    def serve(self, frames_max: int, bytes_max: int) -> Served:
        done = size = 0
        while self.waiting and done < frames_max and size < bytes_max:
            since_s, call, resume, what = self.waiting.popleft()
            done += 1
            if call.is_gone:
                continue
            size += len(call.body)
            waited_s = monotonic() - since_s
            call.parked_ms = waited_s * 1000
            if what and waited_s > PARKED_S_MAX:
                call.fail(self._parking.delivery.pressure.refusal(what))
                continue
            self._parking.go_on(call, resume)
        if not self.waiting:
            self._parking.leave(self)
        return Served(done, size, bool(self.waiting))

    def paced(self, retry_after_ms: int) -> None:
        """They wait; there is nobody to tell before their time is over."""
