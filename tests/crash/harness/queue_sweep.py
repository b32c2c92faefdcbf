"""Crash a queue before every mutating call, recover, and hold what is left against the model.

Whatever the call was, each job is afterwards as it was before the call or as the call left it: in
the queue with its lease, among the dead letters, or gone. It is never in two places, and in none
only when somebody acknowledged or deleted it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

from tests.crash.harness.lease_model import Job, LeaseModel
from tests.crash.harness.log_harness import LOSE_ALL, ROOT, deterministic
from tests.crash.harness.pace import Pace
from tests.crash.harness.queue_harness import QueueRun
from topics.engine.engine import Engine
from topics.engine.state.queue_values import lease_id
from topics.testing import CrashPlan, FakeDisk
from topics.testing.modelcheck import Ending, Violation, require

Step = Callable[[QueueRun], object]
# Where a job is: its lease in the queue, or "moved", or "gone".
Place = tuple[int, str | None, str, int] | str


def place_of(model: LeaseModel, seq: int, now: int) -> Place:
    if seq in model.moved:
        return "moved"
    job = model.jobs.get(seq)
    return "gone" if job is None else _told(job, now)


def _told(job: Job, now: int) -> Place:
    if job.node is not None:
        return job.deliveries, job.node, job.lease_id, max(job.until - now, -1)
    return job.deliveries, None, "", max(job.ready_at - now, 0)


def job_in(run: QueueRun, seq: int) -> Job:
    """A live job as the recovered queue has it."""
    queue = run.engine.core.by_name["q"].queue
    assert queue is not None
    queue.expire(run.now)
    lease = queue.leases.get(seq)
    deliveries = queue.deliveries(seq) if seq < queue.cursor else 0
    if lease is None:
        return Job(deliveries, ready_at=queue.delayed.get(seq, -1))
    # One that ran out is over since then; by how much is not kept.
    until = run.now - 1 if seq in queue.free else lease[2] - 1
    return Job(deliveries, lease[0], lease_id(lease[1]), until)


class QueueSweep:
    def __init__(
        self,
        plans: Sequence[CrashPlan],
        *,
        every: int = 1,
        random_plans: int = 0,
        until_s: float = math.inf,
    ) -> None:
        self.plans = plans
        self.pace = Pace(every, until_s)
        self.random_plans = random_plans
        self.points = 0
        self.checks = 0
        self.images: set[str] = set()
        self.failures: list[str] = []
        self._seen: set[tuple[str, int]] = set()

    def run(self, new: Callable[[], QueueRun], steps: Sequence[Step]) -> None:
        with deterministic(1):
            run = new()
            for number, step in enumerate(steps):
                self._step(run, number, step)
            run.verify()
        if self.failures:
            raise Violation("\n".join(self.failures))

    def run_in_passes(self, new: Callable[[], QueueRun], steps: Sequence[Step]) -> None:
        for _ in self.pace.passes():
            self.points = 0
            self.run(new, steps)

    def _step(self, run: QueueRun, number: int, step: Step) -> None:
        taken: list[tuple[str, Ending, FakeDisk]] = []

        def cut(_index: int, call: str, path: str) -> None:
            self.points += 1
            if self.pace.leaves_out(self.points):
                return
            extra = [CrashPlan.random(self.points * 31 + n) for n in range(self.random_plans)]
            for plan in (*self.plans, *extra):
                where = f"step {number}: {plan.name} before {call} of {path}"
                taken.append((where, "crash", run.disk.crashed(plan)))
            where = f"step {number}: kill before {call} of {path}"
            taken.append((where, "kill", run.disk.clone().kill()))

        before = run.model.copy()
        run.disk.on_mutation = cut
        step(run)
        run.disk.on_mutation = None
        cut(0, "the next step", "")
        for where, ending, image in taken:
            key = (image.image_hash(), number)
            if key in self._seen or len(self.failures) >= 3:
                continue
            self._seen.add(key)
            self.images.add(key[0])
            self.checks += 1
            try:
                check_image(run, image, ending, before)
            except Exception as error:
                self.failures.append(f"{where}: {type(error).__name__}: {error}")


def _recovered(run: QueueRun, image: FakeDisk) -> QueueRun:
    found = copy.copy(run)
    found.clock, found.disk, found.tokens = copy.copy(run.clock), image, []
    found.engine = Engine.open(ROOT, clock=found.clock, fs=image, settings=run.settings)
    return found


def check_image(run: QueueRun, image: FakeDisk, ending: Ending, before: LeaseModel) -> None:
    image.on_mutation = None
    found = _recovered(run, image)
    found.model = judged(run, found, ending, before)
    found.verify()
    # Ready means durable: a machine crash right after takes nothing.
    twin = _recovered(found, image.crashed(LOSE_ALL))
    twin.model = judged(found, twin, "kill", found.model)
    twin.verify()
    found.model.max_deliveries = 0
    found.configure()
    found.drain()


def judged(run: QueueRun, found: QueueRun, ending: Ending, before: LeaseModel) -> LeaseModel:
    """What a recovered queue holds, as a model, after every job was found where it may be."""
    if "q" not in found.engine.core.by_name:
        require(not before.jobs, "the queue is gone")
        return before.copy()
    after, now = run.model, run.now
    live = {record.seq for record in found.records("q")}
    letters = found.letters()
    require(len(letters) == len(set(letters)), f"twice among the dead letters: {letters}")
    require(not live & set(letters), f"in both places: {sorted(live & set(letters))}")
    config = found.engine.state("q").config
    model = LeaseModel(after.lease_ms, after.max_deliveries, config.leases_durable)
    model.moved, model.ids = set(letters), set(after.ids)
    known = before.jobs.keys() | after.jobs.keys() | before.moved | after.moved | before.acked
    require(live | set(letters) <= known, f"nobody wrote {sorted(live - known)}")
    loses = ending == "crash" and run.durability != "fsync"
    for seq in sorted(known):
        allowed = [place_of(one, seq, now) for one in _kept(before, after)]
        is_place: Place = "moved" if seq in letters else "gone"
        if seq in live:
            model.jobs[seq] = job_in(found, seq)
            is_place = _told(model.jobs[seq], now)
        if loses:
            _check_lost(found, seq, is_place, allowed)
        else:
            require(is_place in allowed, f"job {seq} is {is_place}, not one of {allowed}")
    model.acked = before.acked - live
    return model


def _kept(before: LeaseModel, after: LeaseModel) -> list[LeaseModel]:
    """The states that a call leads from and to, as a restart leaves them."""
    states = [before.copy(), after.copy()]
    if before.is_durable != after.is_durable:
        # The change of the config is on its way: both ways of keeping either state.
        for one in (before.copy(), after.copy()):
            one.is_durable = not one.is_durable
            states.append(one)
    for one in states:
        one.restarted()
    return states


def _check_lost(found: QueueRun, seq: int, place: Place, allowed: list[Place]) -> None:
    """A machine crash may take what a disk queue was told last, and says so."""
    if place == "gone" and "gone" not in allowed:
        state = found.engine.explain("q", seq, seq)[0].state
        require(state in ("crash", "unassigned"), f"job {seq} is {state}, not one of {allowed}")
    if place == "moved":
        require("moved" in allowed, f"job {seq} was moved, not one of {allowed}")
