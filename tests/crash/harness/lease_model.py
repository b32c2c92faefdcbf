"""The lease life cycle in plain dictionaries, looked through from end to end at every question.

It knows what was answered and the time, nothing of heaps, cursors or frames. `claimed` and the
others hold an answer of the engine against it and raise Violation for what can not be.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from topics.testing.modelcheck import require


@dataclass
class Job:
    deliveries: int = 0
    node: str | None = None
    lease_id: str = ""
    # Milliseconds of the monotonic clock: the last of the lease, the first after a delay.
    until: int = -1
    ready_at: int = -1

    def is_held(self, now: int) -> bool:
        return self.node is not None and now <= self.until

    def is_ready(self, now: int) -> bool:
        return not self.is_held(now) and now >= self.ready_at


@dataclass
class LeaseModel:
    lease_ms: int
    max_deliveries: int
    is_durable: bool
    jobs: dict[int, Job] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)

    def copy(self) -> LeaseModel:
        return copy.deepcopy(self)

    # -- what can be asked at any time -----------------------------------------------------------

    def ready(self, now: int) -> list[int]:
        return [seq for seq, job in self.jobs.items() if job.is_ready(now)]

    def in_flight(self, now: int) -> int:
        return sum(job.is_held(now) for job in self.jobs.values())

    def doomed(self, now: int) -> list[int]:
        """Jobs that would be delivered once too often."""
        limit = self.max_deliveries
        return [s for s in self.ready(now) if limit and self.jobs[s].deliveries >= limit]

    def held_by(self, node: str, seq: int, lease_id: str | None = None) -> bool:
        job = self.jobs.get(seq)
        if job is None or job.node != node:
            return False
        return lease_id is None or job.lease_id == lease_id

    # -- what happened ---------------------------------------------------------------------------

    def produced(self, first: int, count: int) -> None:
        self.jobs.update((seq, Job()) for seq in range(first, first + count))

    def gone(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.jobs.pop(seq, None)

    def dead(self, seqs: Sequence[int], now: int) -> None:
        """Jobs that now stand in the dead-letter topic."""
        for seq in seqs:
            require(seq in self.doomed(now), f"{seq} was moved, but not doomed")
            require(seq not in self.moved, f"{seq} was moved twice")
        self.moved.update(seqs)
        self.gone(seqs)

    def claimed(
        self,
        node: str,
        lease_ms: int | None,
        given: Sequence[tuple[int, str, int]],
        now: int,
    ) -> None:
        """(seq, lease id, deliveries) that one claimant was handed."""
        seqs = [seq for seq, _, _ in given]
        require(seqs == sorted(set(seqs)), f"claimed out of order: {seqs}")
        for seq, lease_id, deliveries in given:
            require(seq not in self.acked, f"{seq} was acknowledged and is delivered again")
            require(seq not in self.moved, f"{seq} is a dead letter and is delivered again")
            job = self.jobs.get(seq)
            require(job is not None, f"{seq} is no job")
            assert job is not None
            require(not job.is_held(now), f"{seq} is held by {job.node} and handed to {node}")
            require(job.is_ready(now), f"{seq} is handed out before its delay is over")
            require(seq not in self.doomed(now), f"{seq} is delivered once too often")
            require(lease_id not in self.ids, f"{lease_id} is given twice")
            require(
                deliveries == job.deliveries + 1,
                f"{seq}: delivery {deliveries} behind {job.deliveries}",
            )
            self.ids.add(lease_id)
            until = now + (self.lease_ms if lease_ms is None else lease_ms)
            self.jobs[seq] = Job(deliveries, node, lease_id, until)

    def passed(self, given: Sequence[int], wanted: int, now: int, before: LeaseModel) -> None:
        """A whole claim pass: as many as there are, those that came back first, then in order."""
        open_before = set(before.ready(now)) - set(before.doomed(now))
        require(
            len(given) == min(wanted, len(open_before)),
            f"{len(given)} jobs for {wanted} wanted and {len(open_before)} ready",
        )
        again = {seq for seq in open_before if before.jobs[seq].deliveries}
        fresh = sorted(open_before - again)
        handed = sorted(set(given) - again)
        require(handed == fresh[: len(handed)], f"fresh jobs out of order: {handed} of {fresh}")
        if handed:
            require(again <= set(given), "fresh jobs in front of those that came back")
        if len(given) < wanted:
            require(not self.doomed(now), f"left where they are: {self.doomed(now)}")

    def acknowledged(self, seqs: Sequence[int]) -> None:
        self.acked.update(seqs)
        self.gone(seqs)

    def released(self, seqs: Sequence[int], ready_at: int) -> None:
        for seq in seqs:
            self.jobs[seq] = Job(self.jobs[seq].deliveries, ready_at=ready_at)

    def extended(self, seqs: Sequence[int], until: int) -> None:
        for seq in seqs:
            self.jobs[seq].until = until

    def restarted(self) -> None:
        """Leases that are not durable are forgotten, and with them how often was delivered."""
        if not self.is_durable:
            self.jobs = {seq: Job() for seq in self.jobs}
