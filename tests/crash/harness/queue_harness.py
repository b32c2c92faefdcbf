"""An engine with a queue and its dead-letter topic beside the model of leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.crash.harness.lease_model import LeaseModel
from tests.crash.harness.log_harness import LOSE_ALL, ROOT, SETTINGS
from tests.crash.harness.router_harness import records_of
from topics.engine.engine import Engine
from topics.engine.offline import invariants
from topics.engine.offline.check import check
from topics.engine.state.queue_values import Claimant
from topics.settings import Settings
from topics.testing import CrashPlan, FakeClock, FakeDisk
from topics.testing.modelcheck import Ending, require
from topics.types import Record

NODES = ("a", "b", "c")
Leases = list[tuple[str, int, str]]


class QueueRun:
    """Does things to a queue and holds every answer against the model."""

    def __init__(
        self,
        *,
        seed: int = 0,
        settings: Settings = SETTINGS,
        durability: str = "fsync",
        is_durable: bool = True,
        max_deliveries: int = 3,
        lease_ms: int = 500,
        dest: str | None = "fsync",
        cap_records: int = 0,
    ) -> None:
        self.clock = FakeClock()
        self.disk = FakeDisk(seed)
        self.settings = settings
        self.durability = durability
        self.cap_records = cap_records
        # Then a job that would be moved may have to wait.
        self.disk_fails = False
        self.model = LeaseModel(lease_ms, max_deliveries, is_durable)
        # What workers believe to hold, also when it is long over: (node, seq, lease id).
        self.tokens: Leases = []
        self.engine = self._open()
        # Other topics in between put the two into different shards, or not.
        for number in range(seed % 3):
            self.engine.put_topic(f"other-{number}")
        self.configure()
        if dest is not None:
            self.engine.put_topic("dlq", {"durability": dest})

    def _open(self) -> Engine:
        return Engine.open(ROOT, clock=self.clock, fs=self.disk, settings=self.settings)

    @property
    def now(self) -> int:
        return round(self.clock.monotonic_s() * 1000)

    # -- doing -----------------------------------------------------------------------------------

    def configure(self) -> None:
        model = self.model
        config = {
            "type": "queue", "durability": self.durability, "lease_ms": model.lease_ms,
            "max_deliveries": model.max_deliveries, "dead_letter": "dlq",
            "leases_durable": model.is_durable, "cap_records": self.cap_records,
        }  # fmt: skip
        self.engine.put_topic("q", config)

    def produce(self, count: int) -> None:
        records = [{"data": {"n": n}, "tag": f"t{n % 3}"} for n in range(count)]
        done = self.engine.append("q", records)
        self.model.produced(done.first_seq, count)
        if self.cap_records:
            self._note_gone()

    def claim(self, cohort: Sequence[Claimant]) -> None:
        before, now = self.model.copy(), self.now
        ticket = self.engine.submit_claims("q", cohort)
        self.engine.flush()
        # What was moved stays so, also when the claim itself was refused.
        self._note_moved()
        if self.disk_fails:
            self._note_put_back(now)
        if ticket.error is not None:
            raise ticket.error
        given: list[int] = []
        for claimant, got in zip(cohort, ticket.result, strict=True):
            told = msgspec.json.decode(got.json)
            jobs = [(job["$seq"], job["lease_id"], job["deliveries"]) for job in told]
            require([seq for seq, _, _ in jobs] == got.seqs, "two answers")
            require(len(jobs) <= claimant.max, f"{len(jobs)} jobs for {claimant.max}")
            self.model.claimed(claimant.node, claimant.lease_ms, jobs, now)
            self.tokens += [(claimant.node, seq, lease_id) for seq, lease_id, _ in jobs]
            given += got.seqs
        self.model.passed(given, sum(claimant.max for claimant in cohort), now, before)
        require(
            all((got.ready, got.in_flight) == self._counts() for got in ticket.result),
            "counters of a claim",
        )

    def ack(self, named: Leases, *, fenced: bool) -> None:
        for node, group in _by_node(named).items():
            seqs, ids = [seq for seq, _ in group], [token for _, token in group]
            holds = self._held(node, group, fenced=fenced)
            done = self.engine.ack("q", node, seqs, ids if fenced else None)
            self._compare("ack", done.acked, done.skipped, holds, seqs)
            self.model.acknowledged(holds)
            require((done.ready, done.in_flight) == self._counts(), "counters of an ack")

    def nack(self, named: Leases, delay_ms: int, *, fenced: bool) -> None:
        for node, group in _by_node(named).items():
            seqs, ids = [seq for seq, _ in group], [token for _, token in group]
            holds = self._held(node, group, fenced=fenced)
            done = self.engine.nack("q", node, seqs, delay_ms, ids if fenced else None)
            self._compare("nack", done.nacked, done.skipped, holds, seqs)
            self.model.released(holds, self.now + delay_ms)
            require((done.ready, done.in_flight) == self._counts(), "counters of a nack")

    def extend(self, named: Leases, lease_ms: int, *, fenced: bool) -> None:
        for node, group in _by_node(named).items():
            seqs, ids = [seq for seq, _ in group], [token for _, token in group]
            holds = self._held(node, group, fenced=fenced)
            done = self.engine.extend("q", node, seqs, lease_ms, ids if fenced else None)
            self._compare("extend", done.extended, done.skipped, holds, seqs)
            self.model.extended(holds, self.now + lease_ms)
            deadline = self.clock.wall_ms() + lease_ms
            require(done.deadlines == dict.fromkeys(holds, deadline), "deadlines of an extend")

    def release(self, named: Leases) -> None:
        holds = [s for node, s, token in named if self.model.held_by(node, s, token)]
        ticket = self.engine.submit_release("q", [(seq, token) for _, seq, token in named])
        self.engine.flush()
        require(ticket.result == len(set(holds)), f"released {ticket.result} of {holds}")
        self.model.released(holds, self.now)

    def delete(self, **what: Any) -> None:
        self.engine.delete("q", **what)
        self._note_gone()

    def restart(self, ending: Ending, plan: CrashPlan = LOSE_ALL) -> None:
        if ending == "clean":
            self.engine.close()
        else:
            self.disk = self.disk.crash(plan) if ending == "crash" else self.disk.kill()
        self.engine = self._open()
        self.model.restarted()
        self.verify()

    # -- looking ---------------------------------------------------------------------------------

    def verify(self) -> None:
        """Everything that can be seen is as the model has it."""
        live = {record.seq for record in self.records("q")}
        require(live == set(self.model.jobs), f"jobs {sorted(live ^ set(self.model.jobs))} differ")
        sources = self.letters()
        require(sorted(sources) == sorted(self.model.moved), f"dead letters: {sources}")
        state = self.engine.queue_state("q")
        require((state.ready, state.in_flight) == self._counts(), f"{state}: {self._counts()}")
        require(state.dead_lettered == len(self.model.moved), f"{state.dead_lettered} moved")
        topic = self.engine.core.by_name["q"]
        wrong = list(invariants.examine(self.engine.core, topic))
        require(not wrong, f"{wrong}")

    def drain(self) -> None:
        """Every job that is left can be had, each by one worker, and then none is left."""
        for _ in range(100):
            self.clock.advance(100_000)
            before = len(self.model.jobs)
            self.claim([Claimant("last", 7)])
            held = [token for token in self.tokens if token[0] == "last"]
            self.ack(held, fenced=False)
            self.tokens.clear()
            if not before:
                break
        require(not self.model.jobs, f"never claimable: {sorted(self.model.jobs)}")
        self.verify()
        self.engine.close()
        report = check(self.disk, ROOT, clock=self.clock)
        require(report.ok, f"check: {report.problems}")

    def _counts(self) -> tuple[int, int]:
        return len(self.model.ready(self.now)), self.model.in_flight(self.now)

    def records(self, topic: str) -> list[Record]:
        return records_of(self.engine, topic)

    def letters(self) -> list[int]:
        """The seqs in the queue that the dead letters had."""
        if "dlq" not in self.engine.core.by_name:
            return []
        metas = [record.meta or {} for record in self.records("dlq")]
        return [int(meta["$dead_letter_src_seq"]) for meta in metas]

    def _note_moved(self) -> None:
        self.model.dead(sorted(set(self.letters()) - self.model.moved), self.now)

    def _note_put_back(self, now: int) -> None:
        queue = self.engine.core.by_name["q"].queue
        assert queue is not None
        for seq in self.model.doomed(now):
            if seq in queue.delayed:
                self.model.released([seq], queue.delayed[seq])

    def _note_gone(self) -> None:
        left = {record.seq for record in self.records("q")}
        self.model.gone([seq for seq in self.model.jobs if seq not in left])

    def _held(self, node: str, group: list[tuple[int, str]], *, fenced: bool) -> list[int]:
        return [
            seq for seq, token in group if self.model.held_by(node, seq, token if fenced else None)
        ]

    def _compare(
        self, what: str, count: int, skipped: list[int], holds: list[int], seqs: list[int]
    ) -> None:
        require(count == len(holds), f"{what} of {seqs}: {count}, held are {holds}")
        require(skipped == [s for s in seqs if s not in holds], f"{what}: skipped {skipped}")


def _by_node(named: Leases) -> dict[str, list[tuple[int, str]]]:
    """Each job once for a node, by the token it was last given."""
    found: dict[str, dict[int, str]] = {}
    for node, seq, token in named:
        found.setdefault(node, {})[seq] = token
    return {node: list(group.items()) for node, group in found.items()}
