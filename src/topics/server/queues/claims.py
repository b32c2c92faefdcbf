"""A claim whose answer comes later: it waits for jobs, for a window, for the disk or a store."""

from __future__ import annotations

import asyncio
from time import perf_counter

from topics.engine.queues.claims import check_node
from topics.engine.queues.handle import QueueHandle
from topics.engine.state.queue_values import Claimant, Claimed, lease_id
from topics.errors import TopicNotFound
from topics.server.api.call import Call
from topics.server.http.errors import response_to
from topics.server.http.message import Response
from topics.server.loop.services import Services
from topics.server.queues.desk import Desk
from topics.server.queues.desks import Desks

WAIT_MS_MAX = 60_000

_HEAD = b'{"topic":"%b","claimed":['
_TAIL = b'],"count":%d,"ready":%d,"performance":{"server_total_ms":%.3f,"throttle_wait_ms":%.3f}}'


def render(call: Call, name: str, claimed: Claimed) -> bytes:
    """The answer of a claim."""
    tail = _TAIL % (
        len(claimed.seqs), claimed.ready, (perf_counter() - call.began_s) * 1000, call.parked_ms,
    )  # fmt: skip
    head = _HEAD % name.encode()
    if not claimed.seqs:
        return head + tail
    pieces = claimed.pieces.copy()
    # A comma is behind each of them.
    pieces[0] = head + pieces[0]
    pieces[-1] = pieces[-1][:-1] + tail
    return b"".join(pieces)


def queue_of(services: Services, name: str, node: str) -> QueueHandle:
    """The queue of this name, for a worker that may wait at its desk.

    Raises what a claim would: InvalidRequest, TopicNotFound or NotAQueue.
    """
    check_node(node, services.settings)
    return services.engine.queue_handle(name)


def leases_of(claimed: Claimed) -> list[tuple[int, str]]:
    """What was leased: (seq, lease id)."""
    return [(seq, lease_id(number)) for number, seq in enumerate(claimed.seqs, claimed.first_lease)]


class Claim:
    """Ends once: answered, failed, or given up with its client.

    Jobs that were leased to a client that has gone meanwhile are given back.
    """

    __slots__ = (
        "_call",
        "_claimant",
        "_desk",
        "_desks",
        "_is_done",
        "_is_over",
        "_queue",
        "_services",
        "_timer",
    )  # fmt: skip

    def __init__(
        self, desks: Desks, call: Call, queue: QueueHandle, claimant: Claimant, wait_ms: int
    ) -> None:
        services = desks.services
        self._desks = desks
        self._services = services
        self._call = call
        self._queue = queue
        self._claimant = claimant
        self._desk: Desk | None = None
        self._is_done = False
        # No more waiting: the next pass has the answer, jobs or not.
        self._is_over = not wait_ms or services.is_draining
        self._timer: asyncio.TimerHandle | None = None
        if not self._is_over:
            self._timer = services.loop.call_later(min(wait_ms, WAIT_MS_MAX) / 1000, self._end)
        call.when_abandoned(self._abandon)

    def wait(self) -> Desk:
        """Joins the line of its queue."""
        self._desk = desk = self._desks.of(self._queue)
        desk.enter(self)
        return desk

    def claimed(self, claimed: Claimed) -> None:
        """The end of a pass that the desk knows nothing of."""
        desk = self._desks.by_name.get(self._queue.name)
        if desk is not None:
            desk.note_claimed(claimed.seqs)
        self.take(claimed)
        if self._desk is not None:
            # Jobs may have come while the pass was on its way to the disk.
            self._desk.kick()

    # -- topics.server.queues.desk.Member --------------------------------------------------------

    @property
    def must_be_answered(self) -> bool:
        return self._is_over or self._services.is_draining

    def claimant(self) -> Claimant | None:
        return None if self._is_done else self._claimant

    def take(self, claimed: Claimed) -> None:
        if self._is_done:
            self._desks.release(self._queue.name, leases_of(claimed))
        elif claimed.seqs or self.must_be_answered:
            self._finish(Response(render(self._call, self._queue.name, claimed)))
        elif self._queue.is_dropped:
            name = self._queue.name
            self.fail(TopicNotFound(f'topic "{name}" was deleted meanwhile', topic=name))
        else:
            self.wait()

    def fail(self, error: BaseException) -> None:
        if not self._is_done:
            self._finish(response_to(error))

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
        state = self._services.engine.queue_state(self._queue.name)
        desk.leave(self)
        nothing = Claimed([], [], 0, 0, state.ready, state.in_flight)
        self._finish(Response(render(self._call, self._queue.name, nothing)))

    def _finish(self, response: Response) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._call.settle()
        self._call.respond(response)

    def _abandon(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._desk is not None:
            self._desk.leave(self)
