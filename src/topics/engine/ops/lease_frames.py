"""The lease events of a queue in the log, for queues whose leases are durable.

One LEASE frame is one call: the jobs that somebody holds from now on (claimed or extended) and the
jobs that nobody holds any more (released). That a lease ran out needs no event of its own: its
deadline says so, and the claim that hands the job on is its release. That a job was acknowledged
is said by the DELETE frame, which takes the lease along.

Frames of a queue are numbered; one whose number is not above the one that stands was applied
before. A frame names what is so afterwards, so what it says of jobs that are gone is passed over.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import deletes
from topics.engine.state.queue import Queue
from topics.engine.state.topic import Topic
from topics.storage import frames
from topics.types import TopicConfig


class Granted(msgspec.Struct, array_like=True):
    """Jobs that a node holds. With `tries` empty each was delivered once."""

    node: str
    # Wall time, and how long that was from when it was written: no clock makes it longer.
    deadline: int
    lease_ms: int
    seqs: bytes
    numbers: bytes
    tries: bytes


class Returned(msgspec.Struct, array_like=True):
    """Jobs that nobody holds, to be claimed from `ready_at` on."""

    ready_at: int
    delay_ms: int
    seqs: bytes
    tries: bytes


class LeaseFrame(msgspec.Struct, array_like=True):
    version: int
    cursor: int
    granted: list[Granted]
    returned: list[Returned]
    # Whether it says all there is, so that nothing from before counts.
    is_whole: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LeaseFrame).decode


def are_kept(config: TopicConfig) -> bool:
    """Whether leases under this config survive the process."""
    return config.leases_durable and config.durability != "ephemeral"


def are_logged(topic: Topic) -> bool:
    queue = topic.queue
    assert queue is not None
    # From the moment on at which that is asked for, up to the moment at which it is no longer so.
    is_kept = topic.config.leases_durable or queue.is_logged
    return is_kept and topic.durability != "ephemeral"


# -- writing -------------------------------------------------------------------------------------


def granted(
    queue: Queue, node: str, deadline: int, lease_ms: int, held: Iterable[tuple[int, int]]
) -> Granted:
    """Says that a node holds these (seq, number) up to `deadline`, which is `lease_ms` from now."""
    pairs = list(held)
    seqs = [seq for seq, _ in pairs]
    return Granted(
        node, deadline, lease_ms, _pack(seqs),
        _pack(number for _, number in pairs), _tries(queue, seqs),
    )  # fmt: skip


def returned(core: Core, queue: Queue, delay_ms: int, seqs: Iterable[int]) -> Returned:
    seqs = list(seqs)
    return Returned(core.clock.wall_ms() + delay_ms, delay_ms, _pack(seqs), _tries(queue, seqs))


def stage(
    core: Core,
    topic: Topic,
    held: list[Granted],
    free: list[Returned],
    ticket: Ticket[Any],
    answer: Callable[[], Any],
    undo: Callable[[], None],
) -> None:
    """Stages an event; the ticket ends in what `answer` says once it is durable."""
    queue = topic.queue
    assert queue is not None
    # Never used again, also when the disk turns out to be full: a snapshot may have it already.
    queue.version += 1
    payload = _encode(LeaseFrame(queue.version, queue.cursor, held, free))
    _stage(core, Op(topic, frames.LEASE, answer, gated=True, ticket=ticket, undo=undo), payload)


def stage_whole(core: Core, topic: Topic) -> None:
    """Writes down the leases as they stand: from now on they are kept."""
    queue = topic.queue
    assert queue is not None
    queue.version += 1
    queue.is_logged = True

    def undo() -> None:
        queue.is_logged = False

    op = Op(topic, frames.LEASE, lambda: None, gated=True, undo=undo)
    _stage(core, op, _whole(core, queue))


def _stage(core: Core, op: Op, payload: bytes) -> None:
    op.payload = payload
    # Aside: what else is written to the topic need not wait for its leases.
    core.committer.stage_aside(op)


def kept(core: Core, topic: Topic) -> bytes:
    """What a snapshot has of a topic's leases."""
    queue = topic.queue
    return b"" if queue is None or not are_kept(topic.config) else _whole(core, queue)


def _whole(core: Core, queue: Queue) -> bytes:
    """All of a queue's leases as one frame."""
    now_ms = core.monotonic_ms()
    held: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for place in (queue.leases, queue.leaving):
        for seq, (node, number, until) in place.items():
            held[node, until].append((seq, number))
    free: dict[int, list[int]] = defaultdict(list)
    for seq, until in queue.delayed.items():
        free[until].append(seq)
    free[now_ms].extend(seq for seq in queue.free if seq not in queue.leases)
    free[now_ms].extend(queue.moving)
    return _encode(
        LeaseFrame(
            queue.version, queue.cursor,
            [
                granted(queue, node, core.wall_at(until - 1), until - 1 - now_ms, pairs)
                for (node, until), pairs in held.items()
            ],
            [returned(core, queue, until - now_ms, seqs) for until, seqs in free.items()],
            is_whole=True,
        )
    )  # fmt: skip


def _pack(numbers: Iterable[int]) -> bytes:
    return array("Q", numbers).tobytes()


def _tries(queue: Queue, seqs: list[int]) -> bytes:
    if queue.tries.keys().isdisjoint(seqs):
        return b""
    return _pack(map(queue.deliveries, seqs))


# -- reading -------------------------------------------------------------------------------------


def replay(core: Core, topic: Topic, payload: bytes | memoryview) -> None:
    """Applies a LEASE frame of the log. Idempotent."""
    frame, queue = _decode(payload), topic.queue
    # It may have been written while a config that wants no leases was on its way, in front of it.
    if queue is None or frame.version <= queue.version or not are_kept(topic.config):
        return
    if frame.is_whole:
        queue.clear()
    queue.version = frame.version
    queue.cursor = min(max(queue.cursor, frame.cursor), topic.head + 1)
    now_ms = core.monotonic_ms()
    wall_ms = core.wall_at(now_ms)
    for held in frame.granted:
        until = now_ms + min(max(held.deadline + 1 - wall_ms, 0), max(held.lease_ms + 1, 0))
        numbers = array("Q", held.numbers)
        for index, seq in _live(topic, queue, held.seqs, held.tries):
            queue.put(seq, (held.node, numbers[index], until))
    for free in frame.returned:
        until = now_ms + min(max(free.ready_at - wall_ms, 0), free.delay_ms)
        for _, seq in _live(topic, queue, free.seqs, free.tries):
            queue.delay([seq], until)


def _live(topic: Topic, queue: Queue, packed: bytes, tries: bytes) -> Iterable[tuple[int, int]]:
    """Those of the jobs that are still there, out of where they were."""
    counts = array("Q", tries)
    for index, seq in enumerate(array("Q", packed)):
        if deletes.is_live(topic, seq):
            queue.forget(seq)
            if counts and counts[index] != 1:
                queue.tries[seq] = counts[index]
            yield index, seq


def forget(topic: Topic) -> None:
    """From here on the log has no leases of this topic."""
    if topic.queue is not None:
        topic.queue.clear()
