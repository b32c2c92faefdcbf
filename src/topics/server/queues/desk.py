"""The desk of a queue: who waits for its jobs, and when they are handed out.

Claims that may wait, claims gathered by a coalescing window and open /work streams stand in one
line. A pass divides what is ready among them in one engine call. Without a window (claim_jitter_ms
of 0) a pass follows whatever may have made jobs ready, at the end of that turn of the loop; with
one, the first of them opens the window and the pass ends it.

A desk exists while somebody waits or streams. A claim that is served at once never meets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from topics.engine.queues.handle import QueueHandle
from topics.engine.state.segments import ColdMiss
from topics.errors import Throttled, TopicNotFound
from topics.server.loop.services import Services
from topics.server.queues.passes import Cohort, Member, Pass
from topics.types import TopicConfig

# How soon a pass is tried again that failed or that pressure held back.
RETRY_S = 0.5
# A topic that is deleted to be created anew is gone for a moment; its streams are told after it.
DELETED_GRACE_S = 1.0
# An expired lease is looked for this much after its time.
LATE_S = 0.001


class Stream(Member, Protocol):
    """A member that stays, and holds jobs."""

    def let_go(self, seq: int) -> None:
        """A job is no longer held here: there is room for another."""
        ...

    def lease_of(self, seq: int) -> int:
        """The number of the lease that a job was delivered under."""
        ...

    def lose_leases(self) -> None:
        """The topic is gone, and every lease with it."""
        ...

    def end_dropped(self, config: TopicConfig | None) -> None:
        """The topic was deleted; `config` is that of what has its name now."""
        ...


class Desk:
    """The one place where workers of a queue wait, and what decides when a pass is made for them.

    It owns the line, which jobs are held on which stream, and the timers: of the window, of a
    retry, and of the next lease that ends. Jobs themselves are the engine's (`queue`). `desks` are
    those of all queues by name; one that nobody waits at takes itself out of them.
    """

    def __init__(self, services: Services, desks: dict[str, Desk], queue: QueueHandle) -> None:
        self.queue = queue
        self.line: dict[Member, None] = {}
        self.streams: set[Stream] = set()
        # Which stream a job was delivered on, while it is held there.
        self.held: dict[int, Stream] = {}
        self._desks = desks
        self._services = services
        # Those whose pass is still on its way to the disk.
        self._served: set[Member] = set()
        self._is_due = False
        self._is_fetching = False
        # Whether the next pass is for the whole line, however few jobs there are.
        self._is_for_all = False
        self._evict_floor = queue.evict_floor
        self._window: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        # When the timer for the next lease to end is due, on the monotonic clock.
        self.timer_s = 0.0
        self._services.waiters.add(queue.name, self)

    # -- the line ----------------------------------------------------------------------------

    def enter(self, member: Member) -> None:
        if member in self._served:
            # It comes back by itself when that pass has ended.
            return
        self.line[member] = None
        if member.must_be_answered:
            self._is_for_all = True
        if self._timer is None:
            self._arm()

    def leave(self, member: Member) -> None:
        self.line.pop(member, None)
        self._close_if_idle()

    @property
    def is_gathering(self) -> bool:
        """Whether a pass is on its way that will reach everybody in the line."""
        return self._window is not None or self._is_fetching

    def kick(self) -> None:
        """There may be jobs for the line: they are handed out soon."""
        if not self.line or self.queue.is_dropped or self._is_fetching:
            self._arm()
            return
        window_ms = self.queue.window_ms
        if window_ms and not self._services.is_draining:
            if self._window is None:
                self._window = self._services.loop.call_later(window_ms / 1000, self._pass)
        elif not self._is_due:
            self._is_due = True
            self._services.turn_end.defer(self._pass)

    # -- topics.server.loop.longpoll.Waiter ------------------------------------------------------

    @property
    def calls(self) -> int:
        return len(self.line.keys() - self.streams)

    def wake(self) -> None:
        """The topic's head moved, or the topic is gone."""
        if self.queue.is_dropped:
            self._end_dropped()
            return
        self._services.waiters.add(self.queue.name, self)
        if self.queue.evict_floor != self._evict_floor:
            self._evict_floor = self.queue.evict_floor
            self.drop_gone_jobs()
        self.kick()

    def end(self) -> None:
        """The server is going away: nobody waits any longer."""
        self._is_for_all = True
        self._pass()

    # -- passes ------------------------------------------------------------------------------

    def _pass(self) -> None:
        self._is_due = False
        if self._window is not None:
            self._window.cancel()
            self._window = None
        if self._is_fetching or self.queue.is_dropped:
            return
        cohort = self._cohort()
        if cohort:
            self._serve(cohort)
        self._arm()
        self._close_if_idle()

    def _cohort(self) -> Cohort:
        """Whom the next pass is for: everybody whom a window gathered, else as many as there are
        jobs, those who have waited longest first."""
        paced_ms = self._paced_ms()
        count = len(self.line)
        if not self._is_for_all and not self.queue.window_ms:
            count = min(count, self._ready())
        self._is_for_all = False
        cohort: Cohort = []
        for member in list(self.line) if count else ():
            if paced_ms and member.is_held_back(paced_ms):
                self._retry_later()
                continue
            claimant = member.claimant()
            if claimant is None:
                del self.line[member]
                continue
            cohort.append((member, claimant))
            if len(cohort) == count:
                break
        return cohort

    def _ready(self) -> int:
        return self.queue.ready

    def _paced_ms(self) -> int:
        """When to come back under pressure; 0 without."""
        delivery = self._services.delivery
        if delivery.pressure.is_refusing:
            try:
                delivery.refuse("claim", self.queue.name)
            except Throttled:
                return delivery.pressure.retry_after_ms
        return 0

    def _serve(self, cohort: Cohort) -> None:
        try:
            leasing = Pass(self._services, self.queue.name, cohort)
        except ColdMiss as miss:
            self.fetch(miss)
            return
        for member in leasing.members:
            del self.line[member]
        if leasing.is_done:
            self._tell(leasing)
            return
        self._served.update(leasing.members)
        leasing.when_done(partial(self._logged, leasing))

    def _logged(self, leasing: Pass) -> None:
        self._served.difference_update(leasing.members)
        self._tell(leasing)
        # Meanwhile jobs may have come, and room for them.
        self.kick()
        self._close_if_idle()

    def _tell(self, leasing: Pass) -> None:
        if not leasing.tell(self.note_claimed):
            self._retry_later()

    def fetch(self, miss: ColdMiss) -> None:
        """Goes on with the whole line when the cold store has answered."""
        if not self._is_fetching:
            self._is_fetching = self._is_for_all = True
            self._services.driver.fetch(miss, self._fetched)

    def _fetched(self, error: BaseException | None) -> None:
        self._is_fetching = False
        if error is None:
            self._pass()
            return
        for member in list(self.line):
            if member.claimant() is not None:
                del self.line[member]
                member.fail(error)
        self._retry_later()
        self._close_if_idle()

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = self._services.loop.call_later(RETRY_S, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self.kick()
        self._close_if_idle()

    # -- what became of leases -----------------------------------------------------------------

    def note_claimed(self, seqs: Iterable[int]) -> None:
        """Jobs were handed out: none of them is held by an earlier stream any more."""
        if self.held:
            for seq in seqs:
                self._let_go(seq)
        self._arm()

    def note_settled(self, seqs: Iterable[int]) -> None:
        """Jobs were acknowledged or given back: their streams have room again."""
        if self.held:
            for seq in seqs:
                self._let_go(seq)
        self.kick()

    def note_extended(self) -> None:
        """Leases end at another time, which may be sooner."""
        self._arm()

    def drop_gone_jobs(self) -> None:
        """Jobs that were deleted, evicted or expired, or whose lease is over, hold no room."""
        queue = self.queue
        queue.lapse()
        for seq, stream in list(self.held.items()):
            if not queue.is_held(seq, stream.lease_of(seq)):
                self._let_go(seq)

    def _let_go(self, seq: int) -> None:
        stream = self.held.pop(seq, None)
        if stream is not None:
            stream.let_go(seq)

    # -- time --------------------------------------------------------------------------------

    def _arm(self) -> None:
        """A timer for when the next lease ends, while that matters to anybody here."""
        is_asked = bool(self.line or self.streams) and not self.queue.is_dropped
        if not is_asked or not self._services.driver.is_ready:
            return
        due_s = self.queue.due_s
        if due_s is None or (self._timer is not None and self.timer_s <= due_s):
            # One that comes too early looks again.
            return
        if self._timer is not None:
            self._timer.cancel()
        self.timer_s = due_s
        wait_s = max(due_s - self._services.clock.monotonic_s(), 0.0) + LATE_S
        self._timer = self._services.loop.call_later(wait_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if self.queue.is_dropped or not self._services.driver.is_ready:
            return
        # It is this that lets what is due be claimed, where no pass follows.
        self.drop_gone_jobs()
        self.kick()
        self._arm()

    # -- the end -----------------------------------------------------------------------------

    def _close_if_idle(self) -> None:
        if self.line or self.streams or self._served or self._is_fetching:
            return
        self._forget()

    def _forget(self) -> None:
        if self._desks.get(self.queue.name) is self:
            del self._desks[self.queue.name]
        self._services.waiters.discard(self.queue.name, self)
        for timer in (self._window, self._retry, self._timer):
            if timer is not None:
                timer.cancel()
        self._window = self._retry = self._timer = None

    def _end_dropped(self) -> None:
        name = self.queue.name
        self._forget()
        gone = TopicNotFound(f'topic "{name}" was deleted while this claim waited', topic=name)
        for member in self.line.keys() - self.streams:
            del self.line[member]
            member.fail(gone)
        self.line.clear()
        self.held.clear()
        for stream in self.streams:
            stream.lose_leases()
        if self.streams:
            self._services.loop.call_later(DELETED_GRACE_S, self._tell_dropped)

    def _tell_dropped(self) -> None:
        if not self._services.driver.is_ready:
            return
        config = self._services.engine.config_of(self.queue.name)
        for stream in list(self.streams):
            stream.end_dropped(config)
