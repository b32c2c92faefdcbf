"""What the holder of a lease can do with it: acknowledge, give back, keep longer.

A call names jobs by seq and counts for those that its node holds; with lease ids only for those
whose lease it is still the same. The others are skipped, so that every call can be repeated.

An acknowledgement is the permanent delete of the job, as durable as the topic's class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topics.configs import LEASE_MS_MAX
from topics.engine.commit.core import Core
from topics.engine.commit.frame import Frame
from topics.engine.commit.ticket import Owner, T, Ticket
from topics.engine.ops import deletes, lease_frames
from topics.engine.ops.deletes import DeleteFrame
from topics.engine.queues.claims import check_lease_ms, check_node
from topics.engine.state.queue import Lease, Queue
from topics.engine.state.queue_values import Acked, Extended, Nacked, lease_id
from topics.engine.state.topic import Topic
from topics.errors import BatchTooLarge, InvalidRequest, TopicsError
from topics.settings import Settings
from topics.storage import frames
from topics.types import U64_MAX, clamp

# Calls that one frame of acknowledgements is shared by.
SHARED_MAX = 1000


class NamedJobs:
    """The jobs that a call names, sorted into those its node holds and the others."""

    __slots__ = ("held", "node", "queue", "skipped")

    def __init__(
        self,
        core: Core,
        topic: Topic,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[str] | None,
    ) -> None:
        queue = topic.queue
        assert queue is not None
        if topic.config.ttl_ms or topic.holds:
            core.expire(topic)
        self.node = node
        self.queue: Queue = queue
        leases = queue.leases
        # What was taken of the queue: nobody holds it now.
        self.held: dict[int, Lease] = {
            seq: lease
            for seq in seqs
            if (lease := leases.get(seq)) is not None and lease[0] == node
        }
        if lease_ids is not None:
            for seq, token in zip(seqs, lease_ids, strict=True):
                if seq in self.held and token != lease_id(self.held[seq][1]):
                    del self.held[seq]
        self.skipped: list[int] = []
        if len(self.held) < len(seqs):
            self.skipped = [seq for seq in seqs if seq not in self.held]
        queue.take(self.held)


def check_named(
    node: object, seqs: Sequence[int], lease_ids: Sequence[str] | None, settings: Settings
) -> None:
    """Raises InvalidRequest for jobs, or a holder of theirs, that could never be.

    Types are the caller's: a decoder has checked them, or `check_types` does.
    """
    check_node(node, settings)
    most = settings.max_claim
    if not seqs:
        raise InvalidRequest(f"seqs must name 1 to {most} jobs, not none")
    if len(seqs) > most:
        raise BatchTooLarge(
            f"{len(seqs)} seqs; at most {most} in one call", limit="max_claim", max=most
        )
    if max(seqs) > U64_MAX:
        raise InvalidRequest("numbers must be from 0 to 2^64 - 1")
    if lease_ids is not None and len(lease_ids) != len(seqs):
        raise InvalidRequest(f"lease_ids has {len(lease_ids)} entries and seqs has {len(seqs)}")


def check_types(seqs: Sequence[object], lease_ids: Sequence[object] | None) -> None:
    """For what no decoder has seen. Raises InvalidRequest."""
    if not set(map(type, seqs)) <= {int}:
        raise InvalidRequest("seqs must be whole numbers")
    if not set(map(type, lease_ids or ())) <= {str}:
        raise InvalidRequest("lease_ids must be texts")


# -- acknowledging -------------------------------------------------------------------------------

# Told of the calls of one frame when their jobs are gone, with how many are ready and held now,
# and whether the log was waited for.
Together = Callable[[Topic, list[tuple[NamedJobs, Any]], tuple[int, int], bool], None]


def ack(
    core: Core,
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    lease_ids: Sequence[str] | None,
    owner: Owner,
    together: Together | None = None,
) -> None:
    """Stages the delete of jobs that are done.

    Without `together` the owner is a ticket, which ends in an Acked.
    """
    named = NamedJobs(core, topic, node, seqs, lease_ids)
    if not named.held:
        _tell(core, topic, [(named, owner)], together, waited=False)
        return
    named.queue.leaving.update(named.held)
    if topic.durability == "ephemeral":
        frame = AckFrame(core, topic, together)
        frame.calls.append((named, owner))
        core.committer.apply_resident(frame)
        return
    last = core.committer.open_frame(topic)
    if type(last) is AckFrame and last.together is together and len(last.calls) < SHARED_MAX:
        last.calls.append((named, owner))
        return
    frame = AckFrame(core, topic, together)
    frame.calls.append((named, owner))
    core.committer.stage(frame)


class AckFrame(Frame):
    """Acknowledged jobs on their way to be deleted: those of all calls that came one after the
    other, open for more until its entry is made.

    Only calls with nothing of any other kind staged between them share one, or the log would have
    another order than the calls.
    """

    __slots__ = ("_core", "_delete", "calls", "together")

    def __init__(self, core: Core, topic: Topic, together: Together | None) -> None:
        super().__init__(topic, frames.DELETE, topic.durability == "fsync", None)
        self._core = core
        self._delete: DeleteFrame | None = None
        self.first = topic.head
        self.together = together
        self.calls: list[tuple[NamedJobs, Any]] = []

    def _close(self) -> DeleteFrame:
        if self._delete is None:
            seqs = [seq for named, _ in self.calls for seq in named.held]
            seqs.sort()
            self._delete = DeleteFrame(0, deletes.runs_of(seqs))
        return self._delete

    def entry(self) -> bytes:
        self.payload = deletes.encode(self._close())
        return super().entry()

    def apply(self) -> None:
        deletes.apply_delete(self._core, self.topic, self._close())

    def tell(self, _result: None) -> None:
        _tell(self._core, self.topic, self.calls, self.together, waited=True)

    def undo(self) -> None:
        for named, _ in self.calls:
            queue = named.queue
            for seq, lease in named.held.items():
                # It may have been deleted, evicted or expired meanwhile.
                if queue.leaving.pop(seq, None) is not None:
                    queue.put(seq, lease)

    def fail(self, error: TopicsError) -> None:
        for _, owner in self.calls:
            owner.fail(error)


def _tell(
    core: Core,
    topic: Topic,
    calls: list[tuple[NamedJobs, Any]],
    together: Together | None,
    *,
    waited: bool,
) -> None:
    queue = calls[0][0].queue
    # Not before, for each of them: who holds a lease that has run out may still acknowledge it.
    queue.expire(core.monotonic_ms())
    counts = queue.counts(topic.live_count)
    if together is not None:
        together(topic, calls, counts, waited)
        return
    for named, ticket in calls:
        ticket.resolve(Acked(len(named.held), named.skipped, *counts))


# -- giving back ---------------------------------------------------------------------------------


def nack(
    core: Core,
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    delay_ms: object,
    lease_ids: Sequence[str] | None,
    ticket: Ticket[Nacked],
) -> None:
    """Lets jobs be claimed again, at once or later; the ticket ends in a Nacked."""
    if type(delay_ms) is not int or delay_ms < 0:
        raise InvalidRequest("delay_ms must be a number of milliseconds")
    named = _now(core, topic, node, seqs, lease_ids)
    queue = named.queue

    def answer() -> Nacked:
        return Nacked(len(named.held), named.skipped, *queue.counts(topic.live_count))

    _give_back(core, topic, named.held, clamp(delay_ms, 0, LEASE_MS_MAX), ticket, answer)


def _now(
    core: Core, topic: Topic, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None
) -> NamedJobs:
    """The jobs that a call names, once what has run out by now has."""
    assert topic.queue is not None
    topic.queue.expire(core.monotonic_ms())
    return NamedJobs(core, topic, node, seqs, lease_ids)


def release(
    core: Core, topic: Topic, leases: Sequence[tuple[int, str]], ticket: Ticket[int]
) -> None:
    """Lets jobs be claimed again whose leases are still these; the ticket ends in how many."""
    queue = topic.queue
    assert queue is not None
    queue.expire(core.monotonic_ms())
    held = {}
    for seq, token in leases:
        lease = queue.leases.get(seq)
        if lease is not None and token == lease_id(lease[1]):
            held[seq] = lease
    queue.take(held)
    _give_back(core, topic, held, 0, ticket, lambda: len(held))


def _give_back(
    core: Core,
    topic: Topic,
    held: dict[int, Lease],
    delay_ms: int,
    ticket: Ticket[T],
    answer: Callable[[], T],
) -> None:
    queue = topic.queue
    assert queue is not None
    if delay_ms:
        queue.delay(list(held), core.monotonic_ms() + delay_ms)
    else:
        queue.free.update(dict.fromkeys(held))
    if held and lease_frames.are_logged(topic):
        free = [lease_frames.returned(core, queue, delay_ms, held)]
        lease_frames.stage(
            core, topic, [], free, ticket, answer, lambda: _restore(topic, queue, held)
        )
    else:
        ticket.resolve(answer())


def _restore(topic: Topic, queue: Queue, held: dict[int, Lease]) -> None:
    """Leases as they were. What was done with the jobs later has been undone."""
    for seq, lease in held.items():
        if deletes.is_live(topic, seq):
            queue.forget(seq)
            queue.put(seq, lease)


# -- keeping -------------------------------------------------------------------------------------


def extend(
    core: Core,
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    lease_ms: object,
    lease_ids: Sequence[str] | None,
    ticket: Ticket[Extended],
) -> None:
    """Sets how long jobs are held from now on; the ticket ends in an Extended."""
    longer_ms = check_lease_ms(lease_ms)
    named = _now(core, topic, node, seqs, lease_ids)
    queue, held = named.queue, named.held
    until = core.monotonic_ms() + longer_ms + 1
    deadline = core.wall_at(until - 1)
    deadlines = dict.fromkeys(held, deadline)
    for seq, (holder, number, _) in held.items():
        queue.put(seq, (holder, number, until))
    answer = Extended(len(held), named.skipped, deadlines)
    if not held or not lease_frames.are_logged(topic):
        ticket.resolve(answer)
        return
    pairs = [(seq, number) for seq, (_, number, _) in held.items()]
    granted = lease_frames.granted(queue, named.node, deadline, longer_ms, pairs)
    lease_frames.stage(
        core, topic, [granted], [], ticket, lambda: answer, lambda: _restore(topic, queue, held)
    )
