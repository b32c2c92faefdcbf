"""One open /work stream: a worker that jobs are pushed to, never more than `max` at a time.

Room is made by whatever ends a lease: an ack, a nack, its expiry, the deletion of the job. When the
connection ends, what was delivered on it and is still held goes back to the queue at once.
"""

from __future__ import annotations

from itertools import count

from topics.engine.queues.handle import QueueHandle
from topics.engine.state.queue_values import Claimant, Claimed, lease_id
from topics.errors import TopicsError
from topics.server.api.auth import Key
from topics.server.api.sse_frames import SLOW_CODE
from topics.server.http.event_stream import EventStream
from topics.server.loop.event_outlet import EventOutlet
from topics.server.loop.visitors import Kind
from topics.server.queues.claims import leases_of
from topics.server.queues.desks import Desks
from topics.types import TopicConfig

HEARTBEAT_S = 15.0

_JOB = b'id: %d\nevent: job\ndata: {"topic":"%b",%b\n\n'


class WorkStream(EventOutlet):
    __slots__ = ("_desk", "_desks", "_held", "_lease_ms", "_max", "_name", "_node")

    kind: Kind = "work"

    def __init__(
        self,
        desks: Desks,
        queue: QueueHandle,
        stream: EventStream,
        key: Key | None,
        wanted: Claimant,
    ) -> None:
        super().__init__(desks.services, stream, key, HEARTBEAT_S)
        self._desks = desks
        self._desk = desks.of(queue)
        self._name = queue.name.encode()
        self._node = wanted.node
        self._max = wanted.max
        self._lease_ms = wanted.lease_ms
        # Jobs delivered here, with the number of their lease.
        self._held: dict[int, int] = {}

    def begin(self) -> None:
        super().begin()
        self._desk.streams.add(self)
        self._desk.enter(self)
        self._desk.kick()

    # -- what became of its leases -------------------------------------------------------------

    def let_go(self, seq: int) -> None:
        """A job is no longer held here: there is room for another."""
        del self._held[seq]
        self._desk.enter(self)

    def lease_of(self, seq: int) -> int:
        """The number of the lease that a job was delivered under."""
        return self._held[seq]

    def lose_leases(self) -> None:
        """The topic is gone, and every lease with it."""
        self._held.clear()

    def end_dropped(self, config: TopicConfig | None) -> None:
        """The topic was deleted; `config` is that of what has its name now."""
        name = self._desk.queue.name
        if config is not None and config.type != "queue":
            self._end(409, f'not_a_queue: "{name}" was deleted and created anew as a log')
        else:
            self._end(404, f'topic_not_found: "{name}" was deleted')

    # -- topics.server.queues.desk.Member --------------------------------------------------------

    @property
    def must_be_answered(self) -> bool:
        return False

    def claimant(self) -> Claimant | None:
        room = self._max - len(self._held)
        if room <= 0 or self._services.is_draining or not self.is_writable:
            return None
        return Claimant(self._node, room, self._lease_ms)

    def take(self, claimed: Claimed) -> None:
        desk = self._desk
        if self._stream.is_closed:
            self._desks.release(desk.queue.name, leases_of(claimed))
            return
        if claimed.seqs and not desk.queue.is_dropped:
            self._held.update(zip(claimed.seqs, count(claimed.first_lease), strict=False))
            desk.held.update(dict.fromkeys(claimed.seqs, self))
            self._stream.send(
                b"".join(
                    [
                        _JOB % (seq, self._name, piece[1:-1])
                        for seq, piece in zip(claimed.seqs, claimed.pieces, strict=True)
                    ]
                )
            )
            self.sent_s = self._delivery.now_s
        if len(self._held) < self._max:
            desk.enter(self)
            if claimed.seqs and claimed.ready:
                # What one pass gives has a budget of bytes.
                desk.kick()

    def fail(self, error: BaseException) -> None:
        if self._stream.is_closed:
            return
        status, code = 503, "internal"
        if isinstance(error, TopicsError):
            status, code = error.status, error.code
        text = f"{code}: no jobs can be leased now; it is tried again"
        self._advise(status, text, topics=self._names())
        self._desk.enter(self)

    def is_held_back(self, retry_after_ms: int) -> bool:
        text = "work throttled under CPU pressure"
        self._advise(429, text, topics=self._names(), retry_after_ms=retry_after_ms)
        return True

    # -- topics.server.loop.event_outlet.EventOutlet ---------------------------------------------

    def _names(self) -> list[str]:
        return [self._desk.queue.name]

    def _lag(self) -> int:
        return self._desk.queue.ready

    def resume(self, *, is_degraded: bool) -> None:  # noqa: ARG002
        self._desk.enter(self)
        self._desk.kick()

    def cut_off(self) -> None:
        self._end(SLOW_CODE, "this stream was not read for too long; its jobs were given back")

    def _closed(self) -> None:
        super()._closed()
        desk = self._desk
        leases = [(seq, lease_id(number)) for seq, number in self._held.items()]
        for seq in self._held:
            desk.held.pop(seq, None)
        self._held.clear()
        desk.streams.discard(self)
        self._desks.release(desk.queue.name, leases)
        desk.leave(self)
