"""One engine on one fake disk beside one model, and the check of any crash image of that disk."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.crash.harness.pace import Pace
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.errors import DiskFull, OutcomeUnknown, Poisoned, TopicsError
from topics.settings import Settings
from topics.storage import wal_files
from topics.testing import CrashPlan, FakeClock, FakeDisk, MonitorFs
from topics.testing.model import Model, Operation
from topics.testing.modelcheck import Ending, Judge, Violation, require, verify

ROOT = "/data"
COLD = "/cold"
LOSE_ALL = CrashPlan.standard()[0]
SETTINGS = Settings(
    threads=False, wal_shards=2, wal_file_bytes=16384, wal_reserve_bytes=4096, block_bytes=512,
    segment_bytes=2048, own_segment_bytes=1024, block_cache_bytes=32768, resident_bytes=2048,
    gc_freeze=False,
)  # fmt: skip
TAGS = ("x", "y:1", "y:2", None)
NODES = (None, "n1", None, "n2")


@contextlib.contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """File ids from the seed."""
    before = wal_files.secrets
    drawn = random.Random(seed).getrandbits
    wal_files.secrets = SimpleNamespace(randbits=drawn)  # type: ignore[assignment]
    try:
        yield
    finally:
        wal_files.secrets = before


Observer = Callable[["Run", str, str], None]


class Run:
    """Does things to an engine and tells the model how each ended."""

    def __init__(
        self,
        *,
        seed: int = 0,
        settings: Settings = SETTINGS,
        observer: Observer | None = None,
        wrap: Callable[[FakeDisk], Any] | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.disk = FakeDisk(seed, capacity_bytes=capacity_bytes)
        self.settings = settings
        self.model = Model()
        self.random = random.Random(seed)
        self.step = 0
        # The worst that happened since an engine was last ready on this disk.
        self.ending: Ending = "clean"
        self._observer = observer
        self._wrap = wrap
        self._serial = 0
        self.engine: Engine
        self.open()

    # -- life --------------------------------------------------------------------------------

    def adopt(
        self,
        disk: FakeDisk,
        model: Model,
        ending: Ending,
        wall_ms: int,
        settings: Settings,
        observer: Observer | None = None,
    ) -> None:
        """Goes on with a disk that another run left behind; `judge` comes next."""
        self.clock, self.disk, self.settings, self.model = FakeClock(wall_ms), disk, settings, model
        self.step, self.ending, self.random, self._serial = 0, ending, random.Random(0), 1_000_000
        self._observer, self._wrap = observer, None
        self.open()

    def open(self) -> None:
        self.disk.on_mutation = self._mutating if self._observer is not None else None
        inner = self.disk if self._wrap is None else self._wrap(self.disk)
        fs = MonitorFs(inner, assume_durable=self.ending != "kill")
        self.engine = Engine.open(ROOT, clock=self.clock, fs=fs, settings=self.settings)
        self.monitor = fs

    def _mutating(self, index: int, operation: str, path: str) -> None:
        assert self._observer is not None
        self._observer(self, operation, path)

    def reopen(self, ending: Ending = "clean", plan: CrashPlan = LOSE_ALL) -> None:
        """Ends the process in one of three ways, starts another and checks what it recovered."""
        self.step += 1
        if ending == "clean":
            self.engine.close()
            self.monitor.assert_no_leaks(ROOT)
            self.model.made_durable()
        else:
            self.disk = self.disk.crash(plan) if ending == "crash" else self.disk.kill()
        self.ending = ending
        self.open()
        self.judge()

    def judge(self) -> None:
        Judge(self.model, self.engine, self.ending, self.clock.wall_ms()).check()
        self.model.made_durable()
        self.ending = "clean"
        self.verify()

    def verify(self, cursors: Sequence[int] = (1, 3, 6)) -> None:
        verify(self.model, self.engine, self.clock.wall_ms(), cursors)

    def advance(self, ms: int) -> None:
        """Lets time pass, and the engine do what is due."""
        self.clock.advance(ms)
        self.step += 1
        self.engine.maintain(0)

    # -- operations --------------------------------------------------------------------------

    def records(self, count: int, *, size: int = 0) -> tuple[Mapping[str, Any], ...]:
        out = []
        for _ in range(count):
            self._serial += 1
            n = self._serial
            record: dict[str, Any] = {"data": {"n": n, "é": "x" * size}}
            if TAGS[n % 4] is not None:
                record["tag"] = TAGS[n % 4]
            if NODES[n % 4] is not None:
                record["node"] = NODES[n % 4]
            if n % 5 == 0:
                record["meta"] = {"k": f"v{n}"}
            out.append(record)
        return tuple(out)

    def put(self, topic: str, **config: object) -> None:
        self.do(Operation("put", topic, config=config))

    def append(self, topic: str, count: int = 1, *, key: str | None = None, size: int = 0) -> None:
        self.do(Operation("append", topic, self.records(count, size=size), key))

    def delete(self, topic: str, *, before: int | None = None, match: str | None = None) -> None:
        self.do(Operation("delete", topic, before=before, match=match))

    def drop(self, topic: str) -> None:
        self.do(Operation("drop", topic))

    def checkpoint(self) -> None:
        self.step += 1
        self.engine.checkpoint()
        self.model.made_durable()

    def rewrite(self, topic: str) -> None:
        """Takes what the topic has lost off the disk, and looks for it there."""
        self.step += 1
        known = self.model.topics.get(topic)
        if known is None:
            return
        known.expire(self.clock.wall_ms())
        self.engine.rewrite(topic)
        self.model.made_durable()
        gone = [entry.data for entry in known.entries if entry.state != "live" and entry.data]
        for path, raw in self.disk.files().items():
            # A backup keeps its own.
            for data in gone if path.startswith((ROOT, COLD)) else ():
                require(data.encode() not in raw, f"{path} holds {data!r} of {topic}")

    def tidy(self, times: int = 8) -> None:
        """Lets time pass until nothing is left to do: checkpoints, rewriting, trimming."""
        for _ in range(times):
            self.clock.advance(self.settings.seal_age_ms)
            self.step += 1
            while self.engine.maintain(0):
                pass
        self.model.made_durable()

    def sync(self) -> None:
        self.step += 1
        self.engine.sync()
        self.model.made_durable()

    def do(self, operation: Operation) -> TopicsError | None:
        """Asks the engine, and compares its answer with the model's. Returns a rejection."""
        self.step += 1
        operation = self._without_doubt(operation)
        self.model.in_flight.append(operation)
        try:
            answer = self._ask(operation)
        except (OutcomeUnknown, Poisoned):
            raise
        except TopicsError as error:
            self.model.in_flight.remove(operation)
            self._check_rejection(operation, error)
            return error
        self.model.in_flight.remove(operation)
        self._acked(operation, answer)
        return None

    def _without_doubt(self, operation: Operation) -> Operation:
        """Nobody knows whether such a key is remembered, so it is not used again."""
        topic = self.model.topics.get(operation.topic)
        if topic is None or operation.key not in topic.doubtful:
            return operation
        return dataclasses.replace(operation, key=None)

    def _ask(self, o: Operation) -> Any:
        engine = self.engine
        if o.kind == "append":
            return engine.append(o.topic, o.records, idempotency_key=o.key, config=o.config)
        if o.kind == "put":
            return engine.put_topic(o.topic, o.config)[1]
        if o.kind == "drop":
            return engine.delete_topic(o.topic, if_empty=o.if_empty)
        return engine.delete(o.topic, before_seq=o.before, match=_predicate(o.match))

    def _acked(self, o: Operation, answer: Any) -> None:
        model, now = self.model, self.clock.wall_ms()
        if o.kind == "drop":
            require(answer == model.drop(o.topic), f"{o}: answered {answer}")
            return
        topic = self.engine.core.by_name.get(o.topic)
        require(topic is not None, f"{o.topic} is not there after {o.kind}")
        assert topic is not None
        if o.kind == "put":
            expected: Any = model.put(o, now, epoch=topic.epoch)
        elif o.kind == "append":
            require(model.rejects(o, now) is None, f"{o} should have been rejected")
            expected = model.append(o, now, epoch=topic.epoch)
        else:
            expected = model.delete(o, now)
        if isinstance(answer, msgspec.Struct):
            fields = msgspec.structs.asdict(answer)
            answer = {what: fields[what] for what in expected}
        require(answer == expected, f"{o}: answered {answer}, expected {expected}")

    def _check_rejection(self, o: Operation, error: TopicsError) -> None:
        if isinstance(error, DiskFull):
            return
        now = self.clock.wall_ms()
        missing = o.kind == "delete" and o.topic not in self.model.topics
        code = "topic_not_found" if missing else None
        if o.kind == "append":
            code = self.model.rejects(o, now)
            if any(other.topic == o.topic for other in self.model.in_flight):
                # What is on its way takes room already.
                code = error.code if error.code == "topic_full" else code
        if code != error.code:
            raise error

    def submit(self, operations: Sequence[Operation], *, wait: bool = True) -> None:
        """Hands several operations to the engine at once; each ends when its ticket does."""
        self.step += 1
        for o in map(self._without_doubt, operations):
            self.model.in_flight.append(o)
            try:
                ticket = self._submit(o)
            except (OutcomeUnknown, Poisoned):
                raise
            except TopicsError as error:
                self.model.in_flight.remove(o)
                self._check_rejection(o, error)
                continue
            if ticket.done:
                self._ended(o, ticket)
            else:
                ticket.callback = lambda t, o=o: self._ended(o, t)
        if wait:
            self.engine.flush()
            self.engine.sync()
            require(not self.model.in_flight, f"never ended: {self.model.in_flight}")
            self.model.made_durable()

    def _submit(self, o: Operation) -> Any:
        engine = self.engine
        if o.kind == "append":
            return engine.submit_append(o.topic, request_of(o.records, idempotency_key=o.key))
        if o.kind == "put":
            return engine.submit_put(o.topic, o.config).ticket
        return engine.submit_delete(o.topic, before_seq=o.before, match=_predicate(o.match))

    def _ended(self, o: Operation, ticket: Any) -> None:
        if isinstance(ticket.error, OutcomeUnknown):
            return
        self.model.in_flight.remove(o)
        if ticket.error is not None:
            self._check_rejection(o, ticket.error)
        elif o.kind == "put":
            topic = self.engine.core.by_name[o.topic]
            self.model.put(o, self.clock.wall_ms(), epoch=topic.epoch)
        else:
            self._acked(o, ticket.result)


def _predicate(match: str | None) -> object:
    if match is not None and match.endswith("*"):
        return ["tag", "Glob", match]
    return match


# -- checking one image --------------------------------------------------------------------------


def check_image(
    image: FakeDisk,
    model: Model,
    ending: Ending,
    wall_ms: int,
    settings: Settings,
    *,
    observer: Observer | None = None,
    is_deep: bool = False,
) -> None:
    """Recovers an image and holds it against the model; then again, and after some more life."""
    run = Run.__new__(Run)
    unknown = [o for o in model.in_flight if o.kind == "append" and o.key is not None]
    run.adopt(image, model, ending, wall_ms, settings, observer)
    image.on_mutation = None
    run.judge()
    # Ready means durable: a machine crash right after takes nothing.
    twin = Run.__new__(Run)
    twin.adopt(image.crashed(LOSE_ALL), model.copy(), "crash", wall_ms, settings)
    twin.judge()
    for operation in unknown:
        # Whoever does not know how it ended asks again: then it is there once.
        run.do(operation)
    _live_on(run)
    if is_deep:
        # Two checkpoints trim the log: nothing may have rested on what was only in the cache.
        run.checkpoint()
        run.checkpoint()
        run.reopen("crash")
        return
    run.reopen("clean")


def _live_on(run: Run) -> None:
    """Retries, new writes and deletes by tag behave as if nothing had happened."""
    for name, topic in list(run.model.topics.items()):
        for key, (first, count, _) in list(topic.keys.items())[-2:]:
            if key in topic.doubtful:
                continue
            retry = [topic.entries[seq - 1] for seq in range(first, first + count)]
            records = tuple({"data": 0, "tag": entry.tag} for entry in retry)
            run.do(Operation("append", name, records, key))
        run.append(name, 2)
        run.delete(name, match="y:*")
    run.append("after", 1)
    run.verify()


class Sweep:
    """Crashes a run before each mutating call, in several ways, and checks what is left."""

    def __init__(
        self,
        plans: Sequence[CrashPlan],
        *,
        every: int = 1,
        kills: bool = True,
        random_plans: int = 0,
        nested_every: int = 0,
        stop_at_first: bool = False,
        until_s: float = math.inf,
    ) -> None:
        self.plans = plans
        self.pace = Pace(every, until_s)
        self.kills = kills
        self.random_plans = random_plans
        self.nested_every = nested_every
        self.stop_at_first = stop_at_first
        self.images: set[str] = set()
        self.points = 0
        self.checks = 0
        self.records_checked = 0
        self.failures: list[str] = []
        self.calls: dict[str, int] = {}
        self._seen: set[tuple[str, int, str]] = set()
        self._depth = 0

    def observe(self, run: Run, operation: str, path: str) -> None:
        self.points += 1
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if self.pace.leaves_out(self.points):
            return
        where = f"before {operation} of {path}, step {run.step}, point {self.points}"
        extra = [CrashPlan.random(self.points * 31 + n) for n in range(self.random_plans)]
        for plan in (*self.plans, *extra):
            self._check(run, run.disk.crashed(plan), "crash", f"{plan.name} {where}")
        if self.kills:
            ending: Ending = "crash" if run.ending == "crash" else "kill"
            self._check(run, run.disk.clone().kill(), ending, f"kill {where}")

    def _check(self, run: Run, image: FakeDisk, ending: Ending, where: str) -> None:
        # Whoever recovers a full disk makes room first; that it refuses is another test.
        image.capacity_bytes = None
        name = image.image_hash() if ending == "crash" else _content_hash(image)
        seen = (name, run.step, ending)
        if seen in self._seen or len(self.failures) >= 5:
            return
        self._seen.add(seen)
        self.images.add(name)
        self.checks += 1
        model = run.model.copy()
        self.records_checked += sum(t.head for t in model.topics.values())
        nests = self.nested_every and self._depth == 0 and self.checks % self.nested_every == 0
        observer: Observer | None = None
        if nests:
            self._depth = 1
            observer = self.observe
        try:
            check_image(image, model, ending, run.clock.wall_ms(), run.settings, observer=observer)
        except Exception as error:
            self.failures.append(f"{where}: {type(error).__name__}: {error}")
            self.last_error = error
            if self.stop_at_first:
                raise Violation(self.failures[0]) from error
        finally:
            if nests:
                self._depth = 0

    def run(self, workflow: Callable[[Run], None], settings: Settings, *, seed: int = 1) -> None:
        """Runs a workflow to its end, crashing it on the way; raises Violation for what broke."""
        with deterministic(seed):
            run = Run(seed=seed, settings=settings, observer=self.observe)
            workflow(run)
            run.verify()
            run.step += 1
            self.observe(run, "end", "")
        self.require_clean()

    def run_in_passes(self, workflow: Callable[[Run], None], settings: Settings) -> None:
        for _ in self.pace.passes():
            self.points = 0
            self.run(workflow, settings)

    def require_clean(self) -> None:
        if self.failures:
            raise Violation("\n".join(self.failures)) from self.last_error


def _content_hash(image: FakeDisk) -> str:
    import hashlib

    hasher = hashlib.blake2b(digest_size=16)
    for path, content in image.files().items():
        hasher.update(path.encode() + b"\0" + content.rstrip(b"\0") + b"\0")
    return "k" + hasher.hexdigest()
