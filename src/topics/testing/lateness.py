"""Syncs and background jobs that end when a test says so: late, out of order, some of them failed.

In production each shard has a thread that syncs it and each blocking call of maintenance has one of
its own; without threads both end where they are asked for, and an order that needs them to end late
is never seen. Here every one is a step that a test takes, drawn from its seed, so that a rare
meeting can be replayed:

    late = Lateness(faults)          # a FaultFs below the engine, for steps that fail; or none
    late.attach(engine)              # after every open: recovery itself runs without threads
    engine.submit_append(...); engine.flush(); ...
    late.step(rng, fails=0.02)       # ends or begins one of `late.pending`
    engine.poll(); engine.maintain()
    late.drain()                     # ends all of them, none failing

A sync has two steps. It *begins*: what is written so far is what it will vouch for. It *ends*: that
is durable, and what was written in between may be, but nobody is told. Then the file behind the
present one may be *prepared*, in one step: who goes on in another file meanwhile waits for it, so
that it comes before that or after it. A job has one step; that it has ended is noticed when the
engine next looks. Whatever waits for one of them in a blocking call (`wait`, `pause`) ends that one
first, without failing it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from topics.engine.commit.background import Job, Jobs
from topics.engine.commit.syncing import Syncer
from topics.engine.lifecycle import Lifecycle
from topics.storage.frames import Mark
from topics.storage.wal import Shard
from topics.testing.fakenodes import SyncEffect
from topics.testing.faultfs import Fault, FaultFs

SYNC_EFFECTS: tuple[SyncEffect, ...] = ("dropped", "persisted", "cached", "ignored")
# What a failing job meets: at most this many calls of one kind go well before.
JOB_FAULTS = ("pwrite", "sync", "sync_dir", "create", "rename", "pread")
JOB_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EMFILE)
# The same for a log file that is made ahead: its own calls, and those of MARKS.
PREPARE_FAULTS = ("create", "allocate", "pwrite", "sync", "sync_dir")
GOOD_CALLS_MAX = 3


class Lateness(Syncer, Jobs):
    # Few, so that what was durable before a call is often not applied after it.
    applied_max = 3

    def __init__(self, faults: FaultFs | None = None) -> None:
        self._faults = faults
        self._notify: Callable[[], None] = _unheard
        # Shards somebody wants synced, in the order of asking, and syncs that have begun.
        self._asked: dict[int, Shard] = {}
        self._begun: dict[int, tuple[Shard, Mark]] = {}
        # Shards of which a sync has ended since their thread last looked for room.
        self._ended: dict[int, Shard] = {}
        self._jobs: list[tuple[Job, Callable[[], None]]] = []
        # What was done, in order: equal for equal seeds.
        self.trace: list[str] = []

    def attach(self, engine: Lifecycle) -> None:
        """Takes the place of the engine's syncer and of its background threads."""
        core = engine.core
        core.log.syncer = core.background.jobs = self
        self._notify = lambda: core.notify()

    @property
    def pending(self) -> list[str]:
        """The steps that can be taken now."""
        return [
            *(f"end sync {index}" for index in self._begun),
            *(f"begin sync {index}" for index in self._asked if index not in self._begun),
            *(f"prepare {index}" for index, shard in self._ended.items() if shard.is_filling),
            *(f"job {number}" for number in range(len(self._jobs))),
        ]

    def step(self, rng: random.Random, fails: float = 0.0) -> str | None:
        """Takes one of the pending steps, failing it with probability `fails`; None without any."""
        pending = self.pending
        if not pending:
            return None
        chosen = rng.choice(pending)
        what, _, number = chosen.rpartition(" ")
        is_failing = self._faults is not None and what != "begin sync" and rng.random() < fails
        fault = None
        if is_failing and what == "end sync":
            fault = Fault(
                "sync", path_contains=".wal", forever=True, sync_effect=rng.choice(SYNC_EFFECTS)
            )
        elif is_failing:
            kinds = PREPARE_FAULTS if what == "prepare" else JOB_FAULTS
            fault = Fault(
                rng.choice(kinds),  # type: ignore[arg-type]
                rng.randint(1, GOOD_CALLS_MAX + 1),
                rng.choice(JOB_ERRNOS),
            )
        self.take(what, int(number), fault)
        return chosen

    def drain(self) -> None:
        """Takes every step until none is left; none of them fails."""
        while pending := self.pending:
            what, _, number = pending[0].rpartition(" ")
            self.take(what, int(number), None)

    def take(self, what: str, number: int, fault: Fault | None) -> None:
        self.trace.append(f"{what} {number}" + (f" with {fault}" if fault is not None else ""))
        if self._faults is None or fault is None:
            self._do(what, number)
            return
        planned, self._faults.fault = self._faults.fault, fault
        try:
            self._do(what, number)
        finally:
            self._faults.fault = planned

    def _do(self, what: str, number: int) -> None:
        if what == "job":
            job, call = self._jobs.pop(number)
            job.run(call)
        elif what == "prepare":
            self._ended.pop(number).prepare()
            self._notify()
        elif what == "begin sync":
            shard = self._asked.pop(number)
            self._begun[number] = (shard, shard.position)
        else:
            self._end_sync(*self._begun.pop(number))

    def _end_sync(self, shard: Shard, upto: Mark) -> None:
        shard.sync()
        if shard.poison is None:
            # A sync vouches for no more than was there when it began.
            shard.synced = min(shard.synced, upto)
            self._ended[shard.index] = shard
        self._notify()

    # -- what the engine asks for ------------------------------------------------------------

    def kick(self, shard: Shard) -> None:
        for each in shard.footings.below(shard):
            self._asked[each.index] = each

    def touch(self, shard: Shard) -> None:
        self._asked[shard.index] = shard

    def interval(self, shard: Shard) -> None:
        self._asked[shard.index] = shard

    def poll_again(self) -> None:
        self._notify()

    def wait(self, shard: Shard, upto: Mark) -> None:
        while shard.synced < upto and not shard.footings.is_given_up(shard):
            for each in shard.footings.below(shard):
                if each.index not in self._begun:
                    self._asked[each.index] = each
                    self.take("begin sync", each.index, None)
                self.take("end sync", each.index, None)

    def close(self) -> None:
        """Threads are joined: what has begun ends, what was only asked for does not begin."""
        self._asked.clear()
        self._ended.clear()
        for index in list(self._begun):
            self.take("end sync", index, None)

    def start(self, call: Callable[[], None], ended: Callable[[], None] | None = None) -> Job:
        job = Job(ended)
        self._jobs.append((job, call))
        return job

    def pause(self) -> None:
        """Somebody waits, for a job or for a sync: one step of each is taken."""
        if self._jobs:
            self.take("job", 0, None)
        if self._begun or self._asked:
            what, _, number = self.pending[0].rpartition(" ")
            self.take(what, int(number), None)


def _unheard() -> None:
    pass
