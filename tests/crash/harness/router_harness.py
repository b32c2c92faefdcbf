"""An engine with routers on a fake disk, and what must be true of any crash image of it.

Every router here is exactly_once, so that each copy names the source seq it was made from. Then,
whatever happened: up to a router's cursor every source record that was not deleted has one copy,
in source order; a copy that was seen is never another one later; and it is gone only where its
destination's class allows it, and then as a crash hole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import msgspec

from tests.crash.harness.log_harness import LOSE_ALL, ROOT, SETTINGS, deterministic
from tests.crash.harness.pace import Pace
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.settings import Settings
from topics.testing import CrashPlan, FakeClock, FakeDisk
from topics.testing.modelcheck import Ending, Violation, require
from topics.types import Record

Seq = tuple[str, int]


@dataclasses.dataclass
class Facts:
    """What somebody outside knows."""

    seen: dict[Seq, bytes] = dataclasses.field(default_factory=dict)
    heads: dict[str, int] = dataclasses.field(default_factory=dict)
    # Acknowledged in class fsync.
    kept: set[Seq] = dataclasses.field(default_factory=set)
    deleted: set[Seq] = dataclasses.field(default_factory=set)
    # Asked to be deleted, or lost with their source: they need not have been forwarded.
    excused: set[Seq] = dataclasses.field(default_factory=set)
    # What copies that were deleted had been made from.
    uncopied: set[Seq] = dataclasses.field(default_factory=set)
    starts: dict[str, int] = dataclasses.field(default_factory=dict)
    routers: set[str] = dataclasses.field(default_factory=set)

    def copy(self) -> Facts:
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return Facts(*(type(value)(value) for value in values))


class RouterRun:
    def __init__(
        self, disk: FakeDisk, wall_ms: int | None, facts: Facts, settings: Settings
    ) -> None:
        self.clock = FakeClock() if wall_ms is None else FakeClock(wall_ms)
        self.disk = disk
        self.settings = settings
        self.facts = facts
        self.serial = 0
        self.engine = self._open()

    def _open(self) -> Engine:
        return Engine.open(ROOT, clock=self.clock, fs=self.disk, settings=self.settings)

    # -- what workflows do -----------------------------------------------------------------------

    def put(self, topic: str, **config: object) -> None:
        self.engine.put_topic(topic, config)

    def route(self, source: str, dest: str, **options: object) -> None:
        name = f"{source}->{dest}"
        start = self.engine.state(source).head_seq if source in self.engine.core.by_name else 0
        self.facts.starts.setdefault(name, start)
        given = {"source": source, "dest": dest, "guarantee": "exactly_once", **options}
        self.engine.put_router(name, given)
        self.facts.routers.add(name)
        self.note()

    def unroute(self, source: str, dest: str) -> None:
        name = f"{source}->{dest}"
        self.facts.routers.discard(name)
        self.engine.delete_router(name)
        self.facts.starts.pop(name, None)

    def write(self, topic: str, count: int = 1, *, size: int = 0) -> None:
        records = []
        for _ in range(count):
            self.serial += 1
            tag = {"tag": "x"} if self.serial % 3 == 0 else {}
            records.append({"data": {"n": self.serial, "pad": "p" * size}, **tag})
        done = self.engine.append(topic, records)
        if self.engine.core.by_name[topic].config.durability == "fsync":
            self.facts.kept.update((topic, s) for s in range(done.first_seq, done.last_seq + 1))
        self.note()

    def delete(self, topic: str, *, match: str | None = None, before: int | None = None) -> None:
        live = records_of(self.engine, topic)
        going = [r for r in live if (match and r.tag == match) or (before and r.seq < before)]
        gone = [record.seq for record in going]
        marks = [record.meta["_topics_router"] for record in going if record.meta is not None]
        self.facts.uncopied.update((mark["source_topic"], mark["source_seq"]) for mark in marks)
        self.facts.excused.update((topic, seq) for seq in gone)
        self.facts.kept.difference_update((topic, seq) for seq in gone)
        self.engine.delete(topic, match=match, before_seq=before)
        self.facts.deleted.update((topic, seq) for seq in gone)
        self.note()

    def drop(self, topic: str) -> None:
        for name in list(self.facts.routers):
            if topic in name.split("->"):
                self.facts.routers.discard(name)
                self.facts.starts.pop(name, None)
        for known in [key for key in self.facts.seen if key[0] == topic]:
            del self.facts.seen[known]
        self.facts.kept = {key for key in self.facts.kept if key[0] != topic}
        self.facts.heads.pop(topic, None)
        self.engine.delete_topic(topic)
        self.note()

    def forward(self) -> None:
        """One turn for each router."""
        self.engine.forward()
        self.note()

    def settle(self) -> None:
        while self.engine.forward():
            self.note()
        self.note()

    def checkpoint(self) -> None:
        self.engine.checkpoint()
        self.note()

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.maintain(0)
        self.note()

    def note(self) -> None:
        """Remembers what a reader can see now."""
        facts = self.facts
        for name in self.engine.list_topics():
            for record in records_of(self.engine, name):
                facts.seen[name, record.seq] = msgspec.json.encode(record)
            facts.heads[name] = self.engine.state(name).head_seq

    # -- what is checked -------------------------------------------------------------------------

    def judge(self, ending: Ending) -> None:
        """Holds a recovered engine against what was known before."""
        facts, engine = self.facts, self.engine
        there = set(engine.list_topics())
        for (name, seq), raw in list(facts.seen.items()):
            if name not in there or (name, seq) in facts.excused:
                continue
            if not self._is_same(name, seq, raw, ending):
                del facts.seen[name, seq]
        for name, head in facts.heads.items():
            if name in there:
                require(engine.state(name).head_seq >= head, f"{name}: the head went back")
        for name, seq in facts.deleted:
            if name in there:
                state = engine.explain(name, seq, seq)[0].state
                require(state != "live", f"{name} {seq}: deleted and live again")
        for name in facts.routers:
            require(name in engine.core.routers.by_name, f"{name}: the router is gone")
        self.relations()

    def _is_same(self, name: str, seq: int, raw: bytes, ending: Ending) -> bool:
        """False for what may be gone."""
        topic = self.engine.core.by_name[name]
        state = self.engine.explain(name, seq, seq)[0].state
        if state == "live":
            found = next(r for r in records_of(self.engine, name) if r.seq == seq)
            require(msgspec.json.encode(found) == raw, f"{name} {seq}: another record than before")
            return True
        may_go = state == "crash" and ending == "crash" and topic.config.durability == "disk"
        evicted = state == "evicted" and bool(topic.config.cap_records)
        require(may_go or evicted, f"{name} {seq}: {state} after {ending}")
        return False

    def relations(self) -> None:
        """Each router's output is the fold of its source up to its cursor."""
        for name, router in self.engine.core.routers.by_name.items():
            made = [
                record.meta["_topics_router"]["source_seq"]
                for record in records_of(self.engine, router.dest.name)
                if record.meta is not None and record.meta["_topics_router"]["router"] == name
            ]
            require(made == sorted(set(made)), f"{name}: twice or out of order: {made}")
            source, dest = router.source, router.dest
            require(all(seq <= router.place.cursor for seq in made), f"{name}: ahead of its cursor")
            # What a crash took from the source it takes from a destination that had it already.
            trimmed = sum(
                r.last - r.first + 1
                for r in self.engine.explain(dest.name)
                if r.state in ("source_trim", "crash")
            )
            gone = [
                seq
                for part in self.engine.explain(source.name, 1, router.place.cursor)
                if part.state != "live"
                for seq in range(part.first, part.last + 1)
            ]
            start = self.facts.starts.get(name, 0)
            missing = set(range(start + 1, router.place.cursor + 1)) - set(made)
            excused = self.facts.excused | self.facts.uncopied
            missing -= {s for t, s in excused if t == source.name}
            unexplained = missing - set(gone)
            require(not unexplained, f"{name}: skipped {sorted(unexplained)[:5]}")
            if not source.config.cap_records:
                lost = len(missing & set(gone))
                require(lost <= trimmed, f"{name}: {lost} lost, {trimmed} told")

    def live_on(self) -> None:
        """Later writes arrive as if nothing had happened."""
        self.serial += 1000
        for router in list(self.engine.core.routers.by_name.values()):
            self.write(router.source.name, 2)
        for _ in range(4):
            self.clock.advance(2000)
            self.settle()
        self.relations()
        for name, router in self.engine.core.routers.by_name.items():
            head = router.source.head
            require(router.place.cursor == head, f"{name}: at {router.place.cursor}, not {head}")


def records_of(engine: Engine, topic: str) -> list[Record]:
    found: list[Record] = []
    cursor = 0
    while True:
        page = engine.diff(topic, from_seq=cursor, limit=1000, include_tags=True)
        found += page.records
        cursor = page.next_from_seq
        if page.caught_up:
            return found


class RouterSweep:
    """Crashes a workflow before each mutating call, in several ways, and checks what is left."""

    def __init__(
        self, plans: Sequence[CrashPlan], *, every: int = 1, until_s: float = math.inf
    ) -> None:
        self.plans = plans
        self.pace = Pace(every, until_s)
        self.points = 0
        self.checks = 0
        self.failures: list[str] = []
        self._seen: set[tuple[str, str, int]] = set()

    def run(self, workflow: Callable[[RouterRun], None], settings: Settings = SETTINGS) -> None:
        with deterministic(1):
            disk = FakeDisk(1)
            facts = Facts()
            run = RouterRun(disk, None, facts, settings)
            disk.on_mutation = lambda _i, operation, path: self._observe(run, operation, path)
            workflow(run)
            run.relations()
        if self.failures:
            raise Violation("\n".join(self.failures))

    def run_in_passes(self, workflow: Callable[[RouterRun], None], settings: Settings) -> None:
        for _ in self.pace.passes():
            self.points = 0
            self.run(workflow, settings)

    def _observe(self, run: RouterRun, operation: str, path: str) -> None:
        self.points += 1
        if self.pace.leaves_out(self.points):
            return
        where = f"before {operation} of {path}, point {self.points}"
        for plan in self.plans:
            self._check(run, run.disk.crashed(plan), "crash", f"{plan.name} {where}")
        self._check(run, run.disk.clone().kill(), "kill", f"kill {where}")

    def _check(self, run: RouterRun, image: FakeDisk, ending: Ending, where: str) -> None:
        key = (image.image_hash(), ending, len(run.facts.seen))
        if key in self._seen or len(self.failures) >= 3:
            return
        self._seen.add(key)
        self.checks += 1
        image.on_mutation = None
        try:
            check_image(image, run.facts.copy(), ending, run.clock.wall_ms(), run.settings)
        except Exception as error:
            self.failures.append(f"{where}: {type(error).__name__}: {error}")


def check_image(
    image: FakeDisk, facts: Facts, ending: Ending, wall_ms: int, settings: Settings
) -> None:
    run = RouterRun(image, wall_ms, facts, settings)
    run.judge(ending)
    run.note()
    # Ready means durable: a machine crash right after takes nothing.
    twin = RouterRun(image.crashed(LOSE_ALL), wall_ms, facts.copy(), settings)
    twin.judge("kill")
    twin.live_on()
    run.live_on()
    run.engine.close()
    report = check(image, ROOT, clock=run.clock)
    require(report.ok, f"check: {report.problems}")
    again = RouterRun(image, run.clock.wall_ms(), run.facts, settings)
    again.judge("clean")
