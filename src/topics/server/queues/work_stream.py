"""One open /work stream: a worker that jobs are pushed to, never more than `max` at a time.

Room is made by whatever ends a lease: an ack, a nack, its expiry, the deletion of the job. When the
connection ends, what was delivered on it and is still held goes back to the queue at once.
"""

from __future__ import annotations

from itertools import count

from topics.engine.queues.handle import QueueHandle
from topics.engine.state.queue_values import Claimant, Claimed, lease_id
from topics.errors import TopicsError
from topics.server.api import sse_frames
from topics.server.api.auth import Key
from topics.server.api.sse_frames import ADVICE_S, DRAIN_CODE, SLOW_CODE
from topics.server.http.event_stream import EventStream
from topics.server.loop.visitors import Kind, Sight
from topics.server.queues.claims import leases_of
from topics.server.queues.desks import Desks
from topics.types import TopicConfig

HEARTBEAT_S = 15.0

_JOB = b'id: %d\nevent: job\ndata: {"topic":"%b",%b\n\n'


class WorkStream:
    __slots__ = (
        "_advised_s", "_delivery", "_desk", "_desks", "_held", "_key", "_lease_ms",
        "_max", "_name", "_node", "_services", "_since_ts", "_stream", "_visit", "heartbeat_s",
        "sent_s",
    )  # fmt: skip

    kind: Kind = "work"

    def __init__(
        self,
        desks: Desks,
        queue: QueueHandle,
        stream: EventStream,
        key: Key | None,
        wanted: Claimant,
    ) -> None:
        self._services = desks.services
        self._delivery = desks.services.delivery
        self._desks = desks
        self._desk = desks.of(queue)
        self._stream = stream
        self._key = key
        self._name = queue.name.encode()
        self._node = wanted.node
        self._max = wanted.max
        self._lease_ms = wanted.lease_ms
        # Jobs delivered here, with the number of their lease.
        self._held: dict[int, int] = {}
        self._advised_s = 0.0
        self._since_ts = self._services.clock.wall_ms()
        self._visit = 0
        self.heartbeat_s = HEARTBEAT_S
        self.sent_s = self._delivery.now_s

    def begin(self) -> None:
        stream, delivery = self._stream, self._delivery
        stream.on_close = self._closed
        stream.on_writable = self._writable
        stream.on_drain = self._drain
        stream.send(sse_frames.RETRY + sse_frames.heartbeat(self._since_ts))
        self._visit = self._services.visitors.enter(self)
        delivery.keep_alive(self)
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

    def fail(self, error: BaseException) -> None:
        if self._stream.is_closed:
            return
        status, code = 503, "internal"
        if isinstance(error, TopicsError):
            status, code = error.status, error.code
        self._advise(status, f"{code}: no jobs can be leased now; it is tried again")
        self._desk.enter(self)

    def is_held_back(self, retry_after_ms: int) -> bool:
        self._advise(429, "work throttled under CPU pressure", retry_after_ms=retry_after_ms)
        return True

    def _advise(self, code: int, text: str, **more: object) -> None:
        now_s = self._delivery.now_s
        if now_s - self._advised_s >= ADVICE_S and self._stream.is_writable:
            self._advised_s = now_s
            topics = [self._desk.queue.name]
            self._stream.send(sse_frames.error_event(code, text, topics=topics, **more))

    # -- topics.server.loop.visitors.Visitor -----------------------------------------------------

    def sight(self) -> Sight:
        queue, stream = self._desk.queue, self._stream
        return Sight(
            [queue.name], self._key, stream.peer, self._since_ts, queue.ready,
            stream.buffered_bytes,
        )  # fmt: skip

    # -- topics.server.loop.delivery.Outlet ------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        if self._stream.is_writable:
            return True
        self._delivery.note_slow(self)
        return False

    @property
    def is_open(self) -> bool:
        return not self._stream.is_closed

    def beat(self, wall_ms: int) -> None:
        self._stream.send(sse_frames.heartbeat(wall_ms))

    def resume(self, *, is_degraded: bool) -> None:  # noqa: ARG002
        self._desk.enter(self)
        self._desk.kick()

    def cut_off(self) -> None:
        self._end(SLOW_CODE, "this stream was not read for too long; its jobs were given back")

    # -- the stream ------------------------------------------------------------------------------

    def _writable(self) -> None:
        self._delivery.resumed(self)

    def _drain(self) -> None:
        self._end(DRAIN_CODE, "shutting_down: the server is going away; reconnect",
                  retry_after_ms=2000)  # fmt: skip

    def _end(self, code: int, text: str, **more: object) -> None:
        topics = [self._desk.queue.name]
        self._stream.send(sse_frames.error_event(code, text, topics=topics, **more))
        self._stream.close()

    def _closed(self) -> None:
        desk = self._desk
        self._services.visitors.leave(self._visit)
        self._delivery.forget(self)
        self._delivery.leave(self._key)
        leases = [(seq, lease_id(number)) for seq, number in self._held.items()]
        for seq in self._held:
            desk.held.pop(seq, None)
        self._held.clear()
        desk.streams.discard(self)
        self._desks.release(desk.queue.name, leases)
        desk.leave(self)
