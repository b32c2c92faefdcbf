"""Many calls of a queue on their way at once: answers stay true however long the disk takes.

Nothing waits here for anything: claims, acknowledgements, releases and extensions are submitted on
top of each other, syncs come when they come, a full disk refuses whole groups, and the machine may
stop at any time. What was answered counts; what was not may have happened or not.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.crash.harness.log_harness import LOSE_ALL, ROOT, SETTINGS, deterministic
from topics.engine.commit.syncing import Syncer
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.offline import invariants
from topics.engine.state.queue_values import Claimant, lease_id
from topics.engine.state.write_request import request_of
from topics.errors import DiskFull
from topics.storage.wal import Shard
from topics.testing import FakeClock, FakeDisk
from topics.testing.modelcheck import require

NODES = ("a", "b", "c")


class Lazy(Syncer):
    """Leaves every sync for later."""

    def kick(self, shard: Shard) -> None:
        pass


@dataclass
class Held:
    node: str
    token: str
    # The last moment at which nobody else may have the job.
    until: int


class Pipeline:
    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.clock = FakeClock()
        self.disk = FakeDisk(seed)
        self.is_durable = self.drawn.random() < 0.7
        # What was answered: jobs that stand, who holds them, and which are done.
        self.open: set[int] = set()
        self.acked: set[int] = set()
        self.held: dict[int, Held] = {}
        self.asked: dict[Ticket, Callable[[], None]] = {}
        self.engine = self._open()
        self.engine.put_topic(
            "q",
            {"type": "queue", "durability": "fsync", "leases_durable": self.is_durable,
             "lease_ms": 400},
        )  # fmt: skip
        self.engine.core.log.syncer = Lazy()

    def _open(self) -> Engine:
        return Engine.open(ROOT, clock=self.clock, fs=self.disk, settings=SETTINGS)

    @property
    def now(self) -> int:
        return round(self.clock.monotonic_s() * 1000)

    def submit(
        self, ticket: Ticket, done: Callable[[Ticket], None], refused: Callable[[], None]
    ) -> None:
        """Notes what an answer will mean, and what no answer at all."""

        def ended(ticket: Ticket) -> None:
            self.asked.pop(ticket, None)
            if ticket.error is None:
                done(ticket)
            else:
                require(isinstance(ticket.error, DiskFull), f"ended in {ticket.error!r}")
                refused()

        if ticket.done:
            ended(ticket)
        else:
            self.asked[ticket] = refused
            ticket.callback = ended

    # -- calls -----------------------------------------------------------------------------------

    def append(self) -> None:
        size = self.drawn.choice((10, 10, 10, 4000))
        ticket = self.engine.submit_append("q", request_of([{"data": "x" * size}] * 2))

        def done(ticket: Ticket) -> None:
            self.open |= set(range(ticket.result.first_seq, ticket.result.last_seq + 1))

        self.submit(ticket, done, lambda: None)

    def claim(self) -> None:
        node, now = self.drawn.choice(NODES), self.now
        ticket = self.engine.submit_claims("q", [Claimant(node, self.drawn.randint(1, 4))])

        def done(ticket: Ticket) -> None:
            for job in ticket.result[0].jobs:
                require(job.seq not in self.acked, f"{job.seq} was acknowledged")
                before = self.held.get(job.seq)
                require(
                    before is None or before.until < now,
                    f"{job.seq} is handed to {node} and held by {before}",
                )
                self.held[job.seq] = Held(node, job.lease_id, now + 400)

        self.submit(ticket, done, lambda: None)

    def settle(self, kind: str) -> None:
        """The holder of some jobs acknowledges, gives back or keeps them."""
        node = self.drawn.choice(NODES)
        mine = [seq for seq, held in self.held.items() if held.node == node]
        some = self.drawn.sample(mine, min(len(mine), 3))
        if not some:
            return
        was = {seq: self.held.pop(seq) for seq in some}
        tokens = [was[seq].token for seq in some]
        now = self.now

        def refused() -> None:
            self.held.update(was)

        def acked(ticket: Ticket) -> None:
            gone = set(some) - set(ticket.result.skipped)
            self.acked |= gone
            self.open -= gone

        def kept(ticket: Ticket) -> None:
            for seq in ticket.result.deadlines:
                self.held[seq] = Held(node, was[seq].token, now + 700)

        if kind == "ack":
            self.submit(self.engine.submit_ack("q", node, some, tokens), acked, refused)
        elif kind == "nack":
            ticket = self.engine.submit_nack("q", node, some, 0, tokens)
            self.submit(ticket, lambda _: None, refused)
        else:
            ticket = self.engine.submit_extend("q", node, some, 700, tokens)
            self.submit(ticket, kept, refused)

    # -- the disk --------------------------------------------------------------------------------

    def sync(self) -> None:
        with self.syncing():
            self.engine.sync()
        require(not self.asked, "a call never ended")
        self.examine()

    def checkpoint(self) -> None:
        with self.syncing():
            self.engine.checkpoint()

    @contextlib.contextmanager
    def syncing(self) -> Iterator[None]:
        self.engine.core.log.syncer = Syncer()
        try:
            yield
        finally:
            self.engine.core.log.syncer = Lazy()

    def fill_up(self) -> None:
        """For one group the disk is full."""
        self.disk.capacity_bytes = self.disk.used_bytes()
        ticket = self.engine.submit_append("q", request_of([{"data": "x" * 15_000}]))
        self.submit(ticket, lambda ticket: self.open.add(ticket.result.first_seq), lambda: None)
        self.engine.flush()
        self.disk.capacity_bytes = None

    def examine(self) -> None:
        topic = self.engine.core.by_name["q"]
        wrong = list(invariants.examine(self.engine.core, topic))
        require(not wrong, f"{wrong}")

    def restart(self) -> None:
        how = self.drawn.choice(("kill", "crash"))
        if how == "kill":
            self.disk = self.disk.kill()
        else:
            self.disk = self.disk.crash(LOSE_ALL)
        # Nobody knows how those ended; whoever asked believes to hold what it held.
        for refused in list(self.asked.values()):
            refused()
        self.asked.clear()
        self.engine = self._open()
        self.engine.core.log.syncer = Lazy()
        live = {record.seq for record in self.engine.diff("q", limit=1000).records}
        require(not live & self.acked, f"acknowledged and back: {sorted(live & self.acked)}")
        lost = self.open - live
        require(lost <= self.held.keys(), f"lost: {sorted(lost)}")
        # An acknowledgement that was not answered has happened.
        for seq in lost:
            del self.held[seq]
        self.open = live
        queue = self.engine.core.by_name["q"].queue
        assert queue is not None
        if not self.is_durable:
            require(not queue.leases, "leases came back")
            self.held.clear()
        for seq, held in list(self.held.items()):
            lease = queue.leases.get(seq)
            if lease is None or lease_id(lease[1]) != held.token:
                # What was asked last and not answered may have let go of it.
                del self.held[seq]
        self.examine()

    def drain(self) -> None:
        self.sync()
        while True:
            self.clock.advance(10_000)
            self.held.clear()
            got = self.engine.claim("q", "last", 50)
            if not got.seqs:
                break
            require(not set(got.seqs) & self.acked, "acknowledged and delivered again")
            self.open -= set(got.seqs)
            self.engine.ack("q", "last", got.seqs)
        require(not self.open, f"never claimable: {sorted(self.open)}")
        self.engine.close()


def run(seed: int) -> None:
    with deterministic(seed):
        line = Pipeline(seed)
        calls: dict[str, Callable[[], object]] = {
            "append": line.append, "claim": line.claim, "ack": lambda: line.settle("ack"),
            "nack": lambda: line.settle("nack"), "extend": lambda: line.settle("extend"),
            "advance": lambda: line.clock.advance(line.drawn.choice((1, 100, 401))),
            "flush": lambda: line.engine.flush(), "sync": line.sync, "full": line.fill_up,
            "restart": line.restart, "checkpoint": line.checkpoint,
        }  # fmt: skip
        weights = (20, 25, 15, 10, 6, 10, 10, 8, 3, 2, 1)
        for _ in range(120):
            kind = line.drawn.choices(list(calls), weights)[0]
            with contextlib.suppress(DiskFull):
                calls[kind]()
        line.drain()


def test_calls_on_top_of_each_other_keep_every_promise() -> None:
    for seed in range(40):
        run(seed)


@pytest.mark.full
@pytest.mark.timeout(0)
def test_very_many_calls_on_top_of_each_other_keep_every_promise(deadline: float) -> None:
    seed, failed = 1000, []
    while (seed < 1300 or time.monotonic() < deadline) and len(failed) < 5:
        try:
            run(seed)
        except Exception as error:
            failed.append(f"seed {seed}: {type(error).__name__}: {error}"[:2000])
        seed += 1
    assert not failed, "\n".join(failed)
