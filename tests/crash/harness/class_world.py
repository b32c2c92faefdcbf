"""An engine whose calls end late, on a disk that fills up or fails, through many processes.

As in `stage_lateness`, nothing is predicted. What a process leaves when everything has ended is
there after the next start in every visible detail; of what ends in the middle, what was
acknowledged is there. Every call comes to its end, whatever ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from typing import Any

from tests.crash.harness.class_draws import BUCKET, Mood
from tests.crash.harness.class_facts import Facts
from tests.crash.harness.class_looks import Look, look, require_same
from tests.crash.harness.log_harness import ROOT
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.errors import Closed, CorruptData, DiskFull, OutcomeUnknown, Poisoned, TopicsError
from topics.testing import CrashPlan, FakeClock, FakeDisk, Fault, FaultFs, Lateness
from topics.testing.modelcheck import Ending, require

PLANS = CrashPlan.standard()
ROUNDS_MAX = 800
# Rounds in which nothing happens before nothing more will.
QUIET_ROUNDS = 20

Ended = Callable[[Ticket[Any]], None]


def _unheard(_: Ticket[Any]) -> None:
    pass


class ClassWorld:
    def __init__(self, seed: int, rng: random.Random, mood: Mood) -> None:
        self.rng = rng
        self.mood = mood
        self.clock = FakeClock()
        self.disk = FakeDisk(seed)
        self.facts = Facts()
        self.history = rng.choice((1, 3))
        # What is under way, each with what was asked and with what its end means.
        self.asked: list[tuple[str, Ticket[Any], Ended]] = []
        self.numbers = {"p": 1, "q": 1}
        # Stage to (producer, number, topic, values).
        self.staged: dict[str, tuple[str, int, str, list[int]]] = {}
        self.is_poisoned = False
        self.trace: list[str] = []
        self.open()

    def any_name(self) -> str:
        return self.rng.choice(self.mood.names)

    def epoch_of(self, name: str) -> int:
        topic = self.engine.core.by_name.get(name)
        return 0 if topic is None else topic.epoch

    # -- calls -------------------------------------------------------------------------------

    def open(self) -> None:
        self.faults = FaultFs(self.disk)
        self.engine = Engine.open(
            ROOT, clock=self.clock, fs=self.faults, settings=self.mood.settings
        )
        self.late = Lateness(self.faults)
        self.late.attach(self.engine)
        self.is_poisoned = False

    def ask(self, label: str, submit: Callable[[], Ticket[Any]], ended: Ended = _unheard) -> None:
        self.trace.append(label)
        ticket: Ticket[Any]
        try:
            ticket = submit()
        except TopicsError as error:
            self.is_poisoned |= isinstance(error, Poisoned)
            ticket = Ticket()
            ticket.fail(error)
        self.asked.append((label, ticket, ended))
        self.collect()

    def collect(self) -> None:
        for each in [each for each in self.asked if each[1].done]:
            self.asked.remove(each)
            label, ticket, ended = each
            error = ticket.error
            if error is not None:
                self.trace.append(f"  {label[:40]}: {error.code}")
                self.is_sound(error)
            ended(ticket)

    def is_sound(self, error: BaseException) -> None:
        """Only where something fails may a process end, or may it not be known what is there."""
        is_grave = isinstance(error, (Poisoned, OutcomeUnknown, CorruptData, OSError))
        require(self.mood.fails > 0 or not is_grave, f"nothing failed, and yet: {error!r}")
        is_full = self.mood.fails > 0 or self.mood.fills > 0
        require(is_full or not isinstance(error, DiskFull), f"there is room, and yet: {error!r}")

    def call(self, what: Callable[[], object]) -> None:
        if self.is_poisoned:
            return
        try:
            what()
        except (TopicsError, OSError) as error:
            self.trace.append(f"  {error!r}"[:100])
            self.is_sound(error)
            self.is_poisoned |= isinstance(error, Poisoned)
        self.collect()

    def making(self, name: str) -> Ended:
        """What the end of a call means that leaves a topic there."""
        drops = self.facts.drops[name]

        def ended(ticket: Ticket[Any]) -> None:
            if ticket.error is None:
                self.facts.is_there(name, drops)

        return ended

    def refused(self, error: TopicsError, values: list[int]) -> None:
        if not isinstance(error, (OutcomeUnknown, Poisoned, Closed)):
            self.facts.refused.update(values)

    def drive(self) -> None:
        """The loop and its threads get on, more or less."""
        rng = self.rng
        if rng.random() < 0.5:
            self.call(self.engine.flush)
        for _ in range(rng.choice(self.mood.turns)):
            self.late.step(rng, fails=self.mood.fails)
        if rng.random() < 0.5:
            self.call(self.engine.poll)
        if rng.random() < self.mood.fails:
            nth = rng.randint(1, 3)
            self.faults.fault = Fault("pwrite", nth, errno.EIO, path_contains=".wal", forever=True)
        if rng.random() < self.mood.fills:
            room = None
            if self.disk.capacity_bytes is None:
                room = self.disk.used_bytes() + rng.choice((0, 4096, 20_000))
            self.trace.append(f"room {room}")
            self.disk.capacity_bytes = room

    # -- ends --------------------------------------------------------------------------------

    def rest(self) -> None:
        """Everything under way ends; nothing more fails, and there is room."""
        self.trace.append("rest")
        self.disk.capacity_bytes = self.faults.fault = None
        engine = self.engine
        quiet = 0
        for _ in range(ROUNDS_MAX):
            if self.is_poisoned or quiet > QUIET_ROUNDS:
                break
            self.late.drain()
            for turn in (engine.flush, engine.poll, lambda: engine.maintain(0), engine.forward):
                self.call(turn)
            busy = engine.maintenance.due() or self.late.pending or self.asked
            quiet = 0 if busy else quiet + 1
        require(self.is_poisoned or not self.asked, f"never end: {[a[0] for a in self.asked]}")

    def seen(self) -> Look | None:
        """What is there when nobody has anything to do; None where storage has failed."""
        for _ in range(2):
            # Looking at a topic makes it expire what is due.
            self.call(lambda: look(self.engine))
            self.rest()
            self.call(self.engine.core.stage_files.finish)
            self.call(self.engine.sync)
        return None if self.is_poisoned else look(self.engine)

    def end(self) -> None:
        """The process ends, at rest or in the middle of everything; another begins."""
        ending = self.rng.choice(self.mood.endings)
        before = None
        if ending != "crash" and self.rng.random() < 0.7:
            self.rest()
            before = self.seen()
        self.stop(ending)
        self.facts.judge(self.engine, self.ending)
        if before is not None and self.ending != "crash":
            require_same(before, look(self.engine))

    def stop(self, ending: Ending) -> None:
        self.disk.capacity_bytes = self.faults.fault = None
        if ending == "clean" or self.is_poisoned:
            with contextlib.suppress(Poisoned, OSError, TopicsError):
                self.engine.close()
            self.collect()
            require(not self.asked, f"left without an end: {[a[0] for a in self.asked]}")
        if any(shard.poison is not None for shard in self.engine.core.log.shards):
            # Nobody knows what a failed sync has left.
            ending = "crash"
        self.trace.append(f"end {ending}")
        if ending == "crash":
            self.disk = self.disk.crash(self.rng.choice(PLANS))
        elif ending == "kill":
            self.disk = self.disk.kill()
        with contextlib.suppress(Exception):
            self.engine.maintenance.give_up()
        self.asked.clear()
        self.ending = ending
        self.open()


def begin(world: ClassWorld) -> None:
    if not world.mood.has_bucket:
        return
    world.engine.put_bucket(BUCKET, {"durability": "ephemeral", "history": world.history})
    world.facts.made.add(BUCKET)
