"""One claim: answered with the jobs that are ready, or when it has waited long enough for some."""

from __future__ import annotations

import asyncio
from time import perf_counter

from topics.engine.queues.handle import QueueHandle
from topics.engine.state.queue_values import Claimant, Claimed, lease_id
from topics.errors import TopicNotFound, Unauthorized
from topics.server.api.auth import Key
from topics.server.api.call import Call
from topics.server.loop.visitors import Kind, Sight
from topics.server.queues.desk import Desk
from topics.server.queues.desks import Desks

WAIT_MS_MAX = 60_000

_HEAD = b'{"topic":"%b","claimed":['
_TAIL = b'],"count":%d,"ready":%d,"performance":{"server_total_ms":%.3f,"throttle_wait_ms":%.3f}}'


def render(name: str, claimed: Claimed, took_ms: float, parked_ms: float) -> bytes:
    """The answer of a claim."""
    tail = _TAIL % (len(claimed.seqs), claimed.ready, took_ms, parked_ms)
    head = _HEAD % name.encode()
    if not claimed.seqs:
        return head + tail
    pieces = claimed.pieces.copy()
    # A comma is after each of them.
    pieces[0] = head + pieces[0]
    pieces[-1] = pieces[-1][:-1] + tail
    return b"".join(pieces)


def leases_of(claimed: Claimed) -> list[tuple[int, str]]:
    """What was leased: (seq, lease id)."""
    return [(seq, lease_id(number)) for number, seq in enumerate(claimed.seqs, claimed.first_lease)]


class Claim:
    """Ends once: answered, failed, or given up with its client.

    Most are answered within their turn of the loop. One that is not is held: its client may go
    meanwhile, and jobs that were leased to it by then are given back.
    """

    __slots__ = (
        "_call", "_desk", "_desks", "_is_done", "_is_over", "_queue", "_timer", "_visit",
        "_wait_ms", "asked", "name",
    )  # fmt: skip

    kind: Kind = "long_poll"

    def __init__(self, desks: Desks, call: Call, name: str, asked: Claimant, wait_ms: int) -> None:
        self.name = name
        self.asked = asked
        self._desks = desks
        self._call = call
        self._wait_ms = wait_ms
        # No more waiting: the next pass has the answer, jobs or not.
        self._is_over = not wait_ms
        self._is_done = False
        # Which instance of the topic it is for, once it is held.
        self._queue: QueueHandle | None = None
        self._desk: Desk | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._visit = 0

    def hold(self) -> QueueHandle:
        """The answer comes later: from here on its client may go, and its time may end."""
        queue = self._queue
        if queue is None:
            services = self._desks.services
            queue = self._queue = services.engine.queue_handle(self.name)
            if not self.must_be_answered:
                wait_s = min(self._wait_ms, WAIT_MS_MAX) / 1000
                self._timer = services.loop.call_later(wait_s, self._end)
            self._call.when_abandoned(self._abandon)
        return queue

    def wait(self) -> Desk:
        """Joins the line of its queue. Raises what a claim does where there is no such queue."""
        self._desk = desk = self._desks.of(self.hold())
        desk.enter(self)
        if not self._visit:
            self._visit = self._desks.services.visitors.enter(self)
        return desk

    # -- topics.server.loop.visitors.Visitor -----------------------------------------------------

    @property
    def key(self) -> Key | None:
        return self._call.key

    def revoke(self) -> None:
        if self._desk is not None:
            self._desk.leave(self)
        self.fail(Unauthorized("this API key is not known any more"))

    def sight(self) -> Sight:
        call, services = self._call, self._desks.services
        since_ts = services.clock.wall_ms() - int(call.elapsed_ms())
        ready = 0 if self._queue is None else self._queue.ready
        return Sight([self.name], call.key, call.connection.peer, since_ts, ready, 0)

    # -- topics.server.queues.passes.Member ------------------------------------------------------

    @property
    def must_be_answered(self) -> bool:
        return self._is_over or self._desks.services.is_draining

    def claimant(self) -> Claimant | None:
        return None if self._is_done else self.asked

    def take(self, claimed: Claimed) -> None:
        if self._is_done:
            self._desks.release(self.name, leases_of(claimed))
        elif claimed.seqs or self.must_be_answered:
            self._finish(claimed)
        elif self._queue is not None and self._queue.is_dropped:
            name = self.name
            self.fail(TopicNotFound(f'topic "{name}" was deleted meanwhile', topic=name))
        else:
            self.wait()

    def fail(self, error: BaseException) -> None:
        if not self._is_done:
            self._forget()
            self._call.fail(error)

    def is_held_back(self, _retry_after_ms: int) -> bool:
        return False

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """The time is up."""
        self._is_over = True
        desk = self._desk
        if desk is None or self not in desk.line or desk.is_gathering:
            # It is part of a pass, or soon will be.
            return
        state = self._desks.services.engine.queue_state(self.name)
        desk.leave(self)
        self._finish(Claimed([], [], 0, 0, state.ready, state.in_flight))

    def _finish(self, claimed: Claimed) -> None:
        self._forget()
        call = self._call
        took_ms = (perf_counter() - call.began_s) * 1000
        if call.meter is not None:
            call.meter.note(200, took_ms)
        call.respond_json(render(self.name, claimed, took_ms, call.parked_ms))

    def _forget(self) -> None:
        """Nothing more is waited for."""
        self._is_done = True
        if self._visit:
            self._desks.services.visitors.leave(self._visit)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abandon(self) -> None:
        self._forget()
        if self._desk is not None:
            self._desk.leave(self)
