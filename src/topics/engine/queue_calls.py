"""The calls of a queue: claim, acknowledge, give back, keep longer, count."""

from __future__ import annotations

from collections.abc import Sequence

from topics.engine.commit.ticket import Owner, Ticket
from topics.engine.lifecycle import Lifecycle
from topics.engine.ops import catalog
from topics.engine.queues import claims, leases
from topics.engine.queues.handle import QueueHandle
from topics.engine.state.queue_values import Acked, Claimant, Claimed, Extended, Held, Nacked
from topics.engine.state.topic import Topic
from topics.errors import NotAQueue
from topics.types import QueueState


class QueueCalls(Lifecycle):
    """A mixin of Engine."""

    def claim(self, name: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> Claimed:
        """Leases up to `max` jobs to a worker; waits for cold reads."""
        claimant = claims.claimant_of(node, max, lease_ms, self.core.settings)
        ticket = self._fetching(lambda: self.submit_claims(name, [claimant]))
        return self._wait(ticket)[0]

    def submit_claims(self, name: str, claimants: Sequence[Claimant]) -> Ticket[list[Claimed]]:
        """Leases jobs to several workers in one pass; the ticket ends in a Claimed for each.

        Claimants are as `claimant_of` makes them.
        Raises ColdMiss, with nothing leased, when the next job is out of reach.
        """
        ticket: Ticket[list[Claimed]] = Ticket()
        topic = self._queue(name)
        dest = self.core.by_name.get(topic.config.dead_letter or "")
        if dest is not None:
            self._topic(dest.name)
        self._guard(lambda: claims.claim(self.core, topic, claimants, ticket))
        return ticket

    def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None
    ) -> Acked:
        """Deletes jobs that are done; as durable on return as the topic's class promises."""
        ticket = self.submit_ack(name, node, seqs, lease_ids)
        return self._wait(ticket)

    def submit_ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None
    ) -> Ticket[Acked]:
        """`ack`, begun."""
        ticket: Ticket[Acked] = Ticket()
        self._check_named(node, seqs, lease_ids)
        self.stage_ack(name, node, seqs, lease_ids, ticket)
        return ticket

    def stage_ack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[str] | None,
        owner: Owner,
        together: leases.Together | None = None,
    ) -> None:
        """Like `submit_ack` for arguments that were checked.

        `together` is told once for all that share a frame; what fails is told to its owner.
        """
        self._check_writable()
        leases.ack(self.core, self._queue(name), node, seqs, lease_ids, owner, together)

    def nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        delay_ms: int = 0,
        lease_ids: Sequence[str] | None = None,
    ) -> Nacked:
        """Gives jobs back, to be claimed again after `delay_ms`."""
        ticket = self.submit_nack(name, node, seqs, delay_ms, lease_ids)
        return self._wait(ticket)

    def submit_nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        delay_ms: int = 0,
        lease_ids: Sequence[str] | None = None,
    ) -> Ticket[Nacked]:
        """`nack`, begun."""
        self._check_writable()
        ticket: Ticket[Nacked] = Ticket()
        self._check_named(node, seqs, lease_ids)
        leases.nack(self.core, self._queue(name), node, seqs, delay_ms, lease_ids, ticket)
        return ticket

    def extend(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ms: int,
        lease_ids: Sequence[str] | None = None,
    ) -> Extended:
        """Holds jobs for `lease_ms` from now on."""
        ticket = self.submit_extend(name, node, seqs, lease_ms, lease_ids)
        return self._wait(ticket)

    def submit_extend(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ms: int,
        lease_ids: Sequence[str] | None = None,
    ) -> Ticket[Extended]:
        """`extend`, begun."""
        self._check_writable()
        ticket: Ticket[Extended] = Ticket()
        self._check_named(node, seqs, lease_ids)
        leases.extend(self.core, self._queue(name), node, seqs, lease_ms, lease_ids, ticket)
        return ticket

    def submit_release(self, name: str, held: Sequence[tuple[int, str]]) -> Ticket[int]:
        """Gives jobs back by (seq, lease id); says nothing of leases that are no longer so."""
        self._check_writable()
        ticket: Ticket[int] = Ticket()
        leases.release(self.core, self._queue(name), held, ticket)
        return ticket

    def queue_state(self, name: str) -> QueueState:
        """The counters of a queue as of now."""
        topic = self._queue(name)
        self.core.expire(topic)
        self.core.committer.flush()
        state = catalog.queue_state(self.core, topic)
        assert state is not None
        return state

    def ready_jobs(self, name: str) -> int | None:
        """How many jobs a queue has that can be claimed now; None where there is no such queue."""
        self._check_thread()
        topic = self.core.by_name.get(name)
        state = None if topic is None else catalog.queue_state(self.core, topic)
        return None if state is None else state.ready

    def queue_handle(self, name: str) -> QueueHandle:
        """The queue of this name, for whoever hands out its jobs. Raises as a claim would."""
        return QueueHandle(self.core, self._queue(name))

    def held_jobs(self, name: str, *, after: int = 0, limit: int = 100) -> list[Held]:
        """The jobs of a queue that are under lease now, after a seq and in their order."""
        topic, core = self._queue(name), self.core
        queue = topic.queue
        assert queue is not None
        queue.expire(core.monotonic_ms())
        return [
            # It holds up to its deadline and has run out after it.
            Held(seq, node, core.wall_at(until - 1), queue.deliveries(seq))
            for seq in queue.held_after(after, limit)
            for node, _, until in (queue.leases[seq],)
        ]

    def check_queue(self, name: str) -> None:
        """Raises as a claim would where there is no queue of this name."""
        self._queue(name)

    def _check_named(self, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None) -> None:
        leases.check_types(seqs, lease_ids)
        leases.check_named(node, seqs, lease_ids, self.core.settings)

    def _queue(self, name: str) -> Topic:
        topic = self._topic(name)
        if topic.queue is None:
            raise NotAQueue(
                f'topic "{name}" is a log; only a topic created with type "queue" has jobs to '
                "claim",
                topic=name,
            )
        return topic
