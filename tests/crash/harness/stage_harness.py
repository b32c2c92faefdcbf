"""Producers that stage and commit on a fake disk, what they were told, and any crash image of it.

Nothing is predicted but what was promised. Every record has a value of its own, so that a batch
that is there twice, half, or not at all shows in what is read.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.crash.harness.log_harness import ROOT, SETTINGS, deterministic
from topics.engine.engine import Engine
from topics.engine.offline.check import check as check_directory
from topics.errors import Conflicting, StageExpired, TopicsError
from topics.settings import Settings
from topics.storage import stage_file
from topics.testing import CrashPlan, FakeClock, FakeDisk, MonitorFs, OrderViolation
from topics.testing.modelcheck import Ending, Violation, require
from topics.types import Committed

LOSE_ALL = CrashPlan.standard()[0]
QUERY = "q"
# By topic, in order.
Values = dict[str, list[int]]


@dataclass
class Batch:
    """A batch as its producer knows it."""

    producer: str
    number: int
    stages: list[str]
    values: Values
    answer: Committed | None = None


@dataclass
class Facts:
    """What everybody was told."""

    classes: dict[str, str] = field(default_factory=dict)
    written: Values = field(default_factory=dict)
    # Asked for and not answered.
    writing: Values = field(default_factory=dict)
    committing: list[Batch] = field(default_factory=list)
    dropping: list[str] = field(default_factory=list)
    # Stages that are there: producer, batch, topic, values.
    live: dict[str, tuple[str, int, str, list[int]]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    done: list[Batch] = field(default_factory=list)
    last: dict[str, Batch] = field(default_factory=dict)
    # Values that a class may have lost since.
    doubtful: set[int] = field(default_factory=set)


Observer = Callable[["StageRun", str, str], None]


class StageRun:
    # Whether files are removed when it is asked for. Later, a crash may bring back those that a
    # commit left behind: they can not be committed any more, and expire.
    is_prompt = True

    def __init__(
        self, *, seed: int = 0, settings: Settings = SETTINGS, observer: Observer | None = None
    ) -> None:
        self.clock = FakeClock()
        self.disk = FakeDisk(seed)
        self.settings = settings
        self.facts = Facts()
        self.step = 0
        self.serial = 0
        self.observer = observer
        self.ending: Ending = "clean"
        self.engine: Engine
        self.open()

    @classmethod
    def on(cls, run: StageRun, image: FakeDisk, ending: Ending) -> StageRun:
        """Goes on with an image of another run's disk."""
        twin = cls.__new__(cls)
        twin.clock, twin.disk = FakeClock(run.clock.wall_ms()), image
        twin.settings, twin.facts = run.settings, copy.deepcopy(run.facts)
        twin.step, twin.ending = 0, ending
        twin.serial = 1_000_000 + run.serial
        twin.observer = None
        twin.open()
        return twin

    def open(self) -> None:
        self.disk.on_mutation = None if self.observer is None else self._mutating
        fs = MonitorFs(self.disk, assume_durable=self.ending != "kill")
        self.engine = Engine.open(ROOT, clock=self.clock, fs=fs, settings=self.settings)
        self.monitor = fs

    def _mutating(self, _index: int, operation: str, path: str) -> None:
        assert self.observer is not None
        self.observer(self, operation, path)

    def values(self, count: int) -> list[int]:
        self.serial += count
        return list(range(self.serial - count + 1, self.serial + 1))

    # -- what producers do -------------------------------------------------------------------

    def put(self, topic: str, durability: str, **config: object) -> None:
        self.step += 1
        self.engine.put_topic(topic, {"durability": durability, **config})
        self.facts.classes[topic] = durability

    def append(self, topic: str, count: int = 1) -> None:
        self.step += 1
        values = self.values(count)
        self.facts.writing = {topic: values}
        self.engine.append(topic, records(values))
        self.facts.writing = {}
        self.facts.written.setdefault(topic, []).extend(values)

    def stage(self, producer: str, number: int, topic: str, count: int = 2) -> str:
        self.step += 1
        values = self.values(count)
        made = self.engine.stage(topic, records(values), producer=producer, batch=number)
        self.facts.live[made.stage] = (producer, number, topic, values)
        return made.stage

    def commit(self, producer: str, number: int, *stages: str) -> Committed:
        self.step += 1
        batch = self.batch(producer, number, stages)
        self.facts.committing.append(batch)
        batch.answer = self.engine.commit(producer, number, query=QUERY, stages=stages)
        self.facts.committing.remove(batch)
        self.committed(batch)
        return batch.answer

    def batch(self, producer: str, number: int, stages: Sequence[str]) -> Batch:
        values: Values = {}
        for name in dict.fromkeys(stages):
            if name in self.facts.live:
                _, _, topic, held = self.facts.live[name]
                values.setdefault(topic, []).extend(held)
        return Batch(producer, number, list(stages), values)

    def committed(self, batch: Batch) -> None:
        facts, answer = self.facts, batch.answer
        assert answer is not None
        require(set(answer.topics) == set(batch.values), f"{batch}: other topics")
        for topic, part in answer.topics.items():
            require(part.count == len(batch.values[topic]), f"{batch}: {topic} has another count")
            require(part.last_seq - part.first_seq + 1 == part.count, f"{batch}: has gaps")
        if batch.values:
            facts.done.append(batch)
            facts.last[batch.producer] = batch
        for name, (producer, number, _, _) in list(facts.live.items()):
            if producer == batch.producer and number <= batch.number:
                del facts.live[name]
                if self.is_prompt:
                    facts.gone.append(name)

    def drop(self, producer: str, number: int) -> None:
        self.step += 1
        facts = self.facts
        facts.dropping = [n for n, held in facts.live.items() if held[:2] == (producer, number)]
        self.engine.drop_stages(producer, number)
        for name in facts.dropping:
            del facts.live[name]
            facts.gone.append(name)
        facts.dropping = []

    def expire(self) -> None:
        """All stages that there are, by time."""
        self.step += 1
        facts = self.facts
        self.clock.advance(self.settings.stage_ttl_ms + 1000)
        facts.gone.extend(facts.live)
        facts.live.clear()
        self.engine.maintain(0)

    def checkpoint(self) -> None:
        self.step += 1
        self.engine.checkpoint()

    def drop_topic(self, topic: str) -> None:
        """Its records go, and whoever wrote them is forgotten."""
        self.step += 1
        facts = self.facts
        held = [v for b in facts.done for v in b.values.get(topic, [])]
        facts.doubtful.update(held, facts.written.pop(topic, []))
        for batch in facts.done:
            batch.values.pop(topic, None)
        for producer, batch in list(facts.last.items()):
            if batch.answer is not None and topic in batch.answer.topics:
                del facts.last[producer]
        self.engine.delete_topic(topic)

    def reopen(self, ending: Ending = "clean", plan: CrashPlan = LOSE_ALL) -> None:
        self.step += 1
        if ending == "clean":
            self.engine.close()
            self.monitor.assert_no_leaks(ROOT)
        else:
            self.disk = self.disk.crash(plan) if ending == "crash" else self.disk.kill()
        self.ending = ending
        self.open()
        self.judge()

    # -- what must be so ---------------------------------------------------------------------

    def judge(self) -> None:
        """Holds what is there against what was promised, after an end of the process."""
        if self.ending == "crash":
            self._doubt({"disk", "memory"}, self.facts.written)
        self._doubt({"ephemeral"}, self.facts.written)
        # What was not answered is there or not.
        self.facts.doubtful.update(v for held in self.facts.writing.values() for v in held)
        self.facts.writing = {}
        for batch in self.facts.done:
            self._doubt({"ephemeral"}, batch.values)
        for batch in list(self.facts.last.values()):
            if any(self.facts.classes.get(name) == "ephemeral" for name in batch.values):
                del self.facts.last[batch.producer]
        self.ending = "clean"
        self.verify()

    def _doubt(self, classes: set[str], held: Values) -> None:
        for topic, values in held.items():
            if self.facts.classes.get(topic, "disk") in classes:
                self.facts.doubtful.update(values)

    def read(self, topic: str) -> list[tuple[int, int]]:
        """(seq, value) of every record."""
        if topic not in self.engine.list_topics():
            return []
        found, cursor = [], 0
        while True:
            page = self.engine.diff(topic, from_seq=cursor, limit=1000)
            found.extend((record.seq, record.value) for record in page.records)
            if page.caught_up:
                return found
            cursor = page.next_from_seq

    def verify(self) -> None:
        facts = self.facts
        names = {*facts.classes, *facts.written, *self.engine.list_topics()}
        expected: dict[str, set[int]] = {name: set() for name in names}
        for name in names:
            rows = self.read(name)
            counts = Counter(value for _, value in rows)
            twice = [value for value, count in counts.items() if count > 1]
            require(not twice, f"{name}: {twice} are there twice")
            expected[name].update(facts.written.get(name, []), facts.writing.get(name, []))
            for value in facts.written.get(name, []):
                is_safe = value not in facts.doubtful
                require(not is_safe or value in counts, f"{name}: {value} was written and is gone")
            for batch in facts.done:
                self._there(name, rows, batch, is_answered=True)
                expected[name].update(batch.values.get(name, []))
            for batch in facts.committing:
                self._there(name, rows, batch, is_answered=False)
                expected[name].update(batch.values.get(name, []))
            strange = counts.keys() - expected[name] - facts.doubtful
            require(not strange, f"{name}: {sorted(strange)} were never written or committed")

    def _there(
        self, name: str, rows: list[tuple[int, int]], batch: Batch, *, is_answered: bool
    ) -> None:
        wanted = batch.values.get(name, [])
        if not wanted or wanted[0] in self.facts.doubtful:
            return
        held = set(wanted)
        found = [(seq, value) for seq, value in rows if value in held]
        what = f"{name}: batch {batch.number} of {batch.producer}"
        require(is_answered or len(found) in (0, len(wanted)), f"{what} is half there: {found}")
        if not found and not is_answered:
            return
        first = found[0][0] if found else 0
        if batch.answer is not None:
            first = batch.answer.topics[name].first_seq
        require(found == list(enumerate(wanted, first)), f"{what} is not as it was told: {found}")

    def require_promises(self) -> None:
        """Producers ask again, and go on."""
        facts, engine = self.facts, self.engine
        for batch in facts.committing:
            self._ask_again(batch)
        facts.committing = []
        for name in facts.gone:
            require(not self.has(name), f"stage {name} is there again")
        for name in list(facts.live):
            if name not in facts.dropping:
                require(self.has(name), f"stage {name} is gone")
        for producer, batch in facts.last.items():
            again = engine.commit(producer, batch.number, query=QUERY, stages=[])
            assert batch.answer is not None
            require(again == Committed(True, batch.answer.topics), f"{batch}: {again}")
            refused(lambda b=batch: engine.commit(b.producer, b.number, query="x", stages=[]))
            if batch.number:
                refused(
                    lambda b=batch: engine.commit(b.producer, b.number - 1, query=QUERY, stages=[])
                )
        self.verify()

    def has(self, name: str) -> bool:
        """Whether a stage can be committed."""
        found = self.engine.core.stages.find(name)
        return found is not None and found.deadline_s > self.clock.monotonic_s()

    def _ask_again(self, batch: Batch) -> None:
        """A commit that was not answered: repeated, it is there once."""
        facts = self.facts
        try:
            batch.answer = self.engine.commit(
                batch.producer, batch.number, query=QUERY, stages=batch.stages
            )
        except StageExpired:
            # Where all topics are ephemeral nobody remembers it.
            gone = all(facts.classes.get(name) == "ephemeral" for name in batch.values)
            require(gone, f"{batch} can not be repeated")
            for name in batch.stages:
                facts.live.pop(name, None)
            return
        self.committed(batch)

    def live_on(self) -> None:
        """What was staged can be committed, new batches come, checkpoints and crashes too."""
        facts = self.facts
        facts.dropping = []
        for name in [n for n in facts.live if not self.has(n)]:
            del facts.live[name]
        for producer in sorted({held[0] for held in facts.live.values()} | facts.last.keys()):
            numbers = {held[1] for held in facts.live.values() if held[0] == producer}
            for number in sorted(numbers):
                names = [n for n, held in facts.live.items() if held[:2] == (producer, number)]
                self.commit(producer, number, *names)
            newest = facts.last[producer].number if producer in facts.last else 0
            self.commit(producer, newest + 1, self.stage(producer, newest + 1, "after"))
        self.append("after")
        self.checkpoint()
        self.reopen("crash")
        self.require_promises()
        # Also those that nobody was told of.
        self.expire()
        self.checkpoint()
        self.checkpoint()
        left = [n for n in self.disk.listdir(f"{ROOT}/stage") if n.endswith(stage_file.SUFFIX)]
        require(not left, f"files of stages are left: {left}")
        self.reopen("clean")
        self.require_promises()


def records(values: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "data": value,
            **({"tag": f"t{value % 3}", "node": "n", "meta": {"k": "v"}} if value % 4 == 0 else {}),
        }
        for value in values
    ]


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except Conflicting:
        return
    raise Violation("a conflict was not told")


class StageSweep:
    """Crashes a run before each mutating call, in several ways, and checks what is left."""

    def __init__(self, plans: Sequence[CrashPlan], *, every: int = 1, deep_every: int = 5) -> None:
        self.plans = plans
        self.every = every
        self.deep_every = deep_every
        self.points = self.checks = 0
        self.images: set[str] = set()
        self.failure: Violation | None = None
        self._seen: set[tuple[str, int, str]] = set()

    def observe(self, run: StageRun, operation: str, path: str) -> None:
        self.points += 1
        if self.points % self.every:
            return
        where = f"before {operation} of {path}, step {run.step}, point {self.points}"
        for plan in self.plans:
            self._check(run, run.disk.crashed(plan), "crash", f"{plan.name} {where}")
        self._check(run, run.disk.clone().kill(), "kill", f"kill {where}")

    def _check(self, run: StageRun, image: FakeDisk, ending: Ending, where: str) -> None:
        seen = (image.image_hash(), run.step, ending)
        if seen in self._seen or self.failure is not None:
            return
        self._seen.add(seen)
        self.images.add(seen[0])
        self.checks += 1
        try:
            twin = StageRun.on(run, image, ending)
            twin.judge()
            twin.require_promises()
            if self.checks % self.deep_every == 0:
                # Also what only the older snapshot needs.
                report = check_directory(twin.disk.clone(), ROOT)
                require(report.ok, f"the check finds {report.problems}")
                twin.live_on()
                twin.engine.close()
                report = check_directory(image if twin.disk is image else twin.disk, ROOT)
                require(report.ok, f"the check finds {report.problems}")
        except (TopicsError, Violation, AssertionError, OrderViolation) as error:
            # Not raised here: the engine that is crashed would take it for an error of its disk.
            self.failure = Violation(f"{where}: {type(error).__name__}: {error}")
            self.failure.__cause__ = error

    def run(self, workflow: Callable[[StageRun], None], settings: Settings, seed: int = 1) -> None:
        with deterministic(seed):
            run = StageRun(seed=seed, settings=settings, observer=self.observe)
            workflow(run)
            run.verify()
            run.step += 1
            self.observe(run, "end", "")
        if self.failure is not None:
            raise self.failure


SLICED = msgspec.structs.replace(SETTINGS, seal_records=12)
