"""Producers whose calls end late, out of order, some of them failed, and processes that end so.

As in `stage_harness`, nothing is predicted: what was answered is there, what was not is there whole
or not at all, and whoever asks again finds it there once.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.crash.harness.log_harness import ROOT, SETTINGS, deterministic
from tests.crash.harness.stage_harness import QUERY, Batch, StageRun, records
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.ops import commits
from topics.engine.state.stage_request import stage_request_of
from topics.engine.state.write_request import request_of
from topics.errors import Conflicting, Poisoned, StageExpired, TopicsError
from topics.testing import CrashPlan, Fault, FaultFs, Lateness, MonitorFs
from topics.testing.modelcheck import Ending, require

PLANS = CrashPlan.standard()
TOPICS = ("a", "b", "c")
ROUNDS_MAX = 400
OPERATIONS = ("pwrite", "sync", "sync_dir", "create", "rename", "unlink", "pread")


class LateRun(StageRun):
    is_prompt = False

    def __init__(self, seed: int, fails: float) -> None:
        self.rng = random.Random(seed)
        self.fails = fails
        self.is_poisoned = False
        # What is under way, each with what its end means.
        self.asked: list[tuple[Ticket[Any], Callable[[Ticket[Any]], None]]] = []
        self.numbers = dict.fromkeys("pqr", 0)
        super().__init__(seed=seed, settings=SETTINGS)

    def open(self) -> None:
        self.faults = FaultFs(self.disk)
        fs = MonitorFs(self.faults, assume_durable=self.ending != "kill")
        self.engine = Engine.open(ROOT, clock=self.clock, fs=fs, settings=self.settings)
        self.monitor = fs
        self.late = Lateness(self.faults)
        self.late.attach(self.engine)
        self.is_poisoned = False

    # -- asking ------------------------------------------------------------------------------

    def ask(self, submit: Callable[[], Ticket[Any]], ended: Callable[[Ticket[Any]], None]) -> None:
        refused: Ticket[Any] = Ticket()
        try:
            ticket = submit()
        except Poisoned as error:
            self.is_poisoned = True
            ticket = refused
            ticket.fail(error)
        except TopicsError as error:
            ticket = refused
            ticket.fail(error)
        self.asked.append((ticket, ended))
        self.collect()

    def collect(self) -> None:
        for each in [each for each in self.asked if each[0].done]:
            self.asked.remove(each)
            each[1](each[0])

    def write(self) -> None:
        topic, values = self.rng.choice(TOPICS), self.values(self.rng.randint(1, 3))
        self.facts.writing.setdefault(topic, []).extend(values)

        def ended(ticket: Ticket[Any]) -> None:
            if ticket.error is None:
                self.facts.written.setdefault(topic, []).extend(values)

        self.ask(lambda: self.engine.submit_append(topic, request_of(records(values))), ended)

    def hand_in(self) -> None:
        producer = self.rng.choice(sorted(self.numbers))
        number, topic = self.numbers[producer], self.rng.choice(TOPICS)
        values = self.values(self.rng.randint(1, 4))
        request = stage_request_of(
            records(values), self.settings, topic=topic, producer=producer, batch=number
        )

        def ended(ticket: Ticket[Any]) -> None:
            if ticket.error is None and number >= self.numbers[producer]:
                self.facts.live[ticket.result.stage] = (producer, number, topic, values)

        self.ask(lambda: self.engine.submit_stage(request), ended)

    def try_commit(self) -> None:
        producer = self.rng.choice(sorted(self.numbers))
        number = self.numbers[producer]
        batch = self._open_batch(producer)
        if batch is None:
            held = [n for n, each in self.facts.live.items() if each[:2] == (producer, number)]
            chosen = self.rng.sample(held, self.rng.randint(0, len(held)))
            if not chosen:
                return
            batch = self.batch(producer, number, chosen)
            self.facts.committing.append(batch)
        for _ in range(self.rng.choice((1, 1, 2))):
            self.ask(self._submit(batch), self._told(batch))

    def _open_batch(self, producer: str) -> Batch | None:
        """One that was asked for, and of which nobody knows how it ended."""
        return next((b for b in self.facts.committing if b.producer == producer), None)

    def _submit(self, batch: Batch) -> Callable[[], Ticket[Any]]:
        return lambda: self.engine.submit_commit(batch.producer, batch.number, QUERY, batch.stages)

    def _told(self, batch: Batch) -> Callable[[Ticket[Any]], None]:
        def ended(ticket: Ticket[Any]) -> None:
            error = ticket.error
            require(not isinstance(error, Conflicting), f"{batch} is refused: {error}")
            if error is not None:
                if isinstance(error, StageExpired):
                    require(batch.answer is None, f"{batch} was there and is not: {error}")
                return
            if batch.answer is not None:
                require(ticket.result.topics == batch.answer.topics, f"{batch}: {ticket.result}")
                return
            batch.answer = ticket.result
            if batch in self.facts.committing:
                self.facts.committing.remove(batch)
            self.numbers[batch.producer] = batch.number + self.rng.randint(1, 2)
            self.committed(batch)

        return ended

    def try_drop(self) -> None:
        producer = self.rng.choice(sorted(self.numbers))
        number, facts = self.numbers[producer], self.facts
        if self._open_batch(producer) is not None:
            return
        names = [n for n, each in facts.live.items() if each[:2] == (producer, number)]
        for name in names:
            del facts.live[name]

        def ended(ticket: Ticket[Any]) -> None:
            if ticket.error is None:
                facts.gone.extend(names)

        self.ask(lambda: self.engine.submit_drop_stages(producer, number), ended)

    # -- time, and ends ----------------------------------------------------------------------

    def call(self, what: Callable[[], Any]) -> None:
        try:
            what()
        except Poisoned:
            self.is_poisoned = True
        except (TopicsError, OSError) as error:
            require(self.fails > 0 or isinstance(error, TopicsError), f"{error!r}")
        self.collect()

    def drive(self, turns: int) -> None:
        for _ in range(turns):
            if self.is_poisoned:
                return
            roll = self.rng.random()
            if roll < 0.5:
                self.late.step(self.rng, fails=self.fails)
            elif roll < 0.65:
                self.call(self.engine.flush)
            elif roll < 0.85:
                self.call(self.engine.poll)
            else:
                self.call(lambda: self.engine.maintain(0))

    def plan_fault(self) -> None:
        self.faults.fault = Fault(
            self.rng.choice(OPERATIONS),  # type: ignore[arg-type]
            self.rng.randint(1, 3),
            self.rng.choice((errno.EIO, errno.ENOSPC, errno.EMFILE)),
            path_contains=self.rng.choice((".stage", "/stage", "")),
        )

    def rest(self) -> None:
        """Everything under way ends; nothing more fails."""
        self.faults.fault = None
        for _ in range(ROUNDS_MAX):
            if self.is_poisoned or not self.asked:
                break
            self.late.drain()
            self.call(self.engine.sync)
            if not self.is_poisoned:
                self.call(self.engine.poll)
                self.call(lambda: self.engine.maintain(0))
        require(self.is_poisoned or not self.asked, "something never ends")

    def end(self) -> None:
        """The process ends somehow, perhaps in the middle, and another begins."""
        ending: Ending = self.rng.choice(("clean", "clean", "kill", "crash"))
        self.faults.fault = None
        if ending == "clean" or self.is_poisoned:
            with contextlib.suppress(Poisoned, OSError, TopicsError):
                self.engine.close()
            self.collect()
            require(not self.asked, "an end left calls without an answer")
        if self.is_poisoned:
            ending = "crash"
        if ending == "crash":
            self.disk = self.disk.crash(self.rng.choice(PLANS))
        elif ending == "kill":
            self.disk = self.disk.kill()
        with contextlib.suppress(Exception):
            self.engine.maintenance.give_up()
        self.asked.clear()
        self.ending = ending
        self.open()
        self.judge()

    def ask_again(self) -> None:
        """Comes to rest, and has every batch of which nobody knows the end committed."""
        for _ in range(20):
            self.rest()
            if self.is_poisoned:
                self.end()
                continue
            if not self.facts.committing:
                break
            for batch in list(self.facts.committing):
                self.ask(self._submit(batch), self._told(batch))
        require(not self.facts.committing, f"can not be committed: {self.facts.committing}")


@contextlib.contextmanager
def large_from(size: int) -> Iterator[None]:
    """From which size on a commit waits for the others that are as large."""
    before, commits.LARGE_BYTES = commits.LARGE_BYTES, size
    try:
        yield
    finally:
        commits.LARGE_BYTES = before


def run_late_history(seed: int, length: int = 70) -> LateRun:
    """Half of them without a fault: then nothing may be refused. In some every batch is large."""
    with deterministic(seed), large_from(0 if seed % 3 == 0 else commits.LARGE_BYTES):
        run = LateRun(seed, fails=(0.0, 0.06)[seed % 2])
        steps = (run.hand_in, run.hand_in, run.try_commit, run.try_commit, run.write, run.try_drop)
        for name, durability in zip("ab", ("fsync", "disk"), strict=True):
            run.facts.classes[name] = durability
            run.ask(_put(run, name, durability), lambda _: None)
        for _ in range(length):
            run.rng.choice(steps)()
            if run.fails and run.rng.random() < 0.1:
                run.plan_fault()
            if run.rng.random() < 0.06:
                run.call(run.engine.begin_checkpoint)
            run.drive(run.rng.randint(0, 6))
            if run.is_poisoned or run.rng.random() < 0.06:
                run.end()
            run.verify()
        run.ask_again()
        run.verify()
        run.require_promises()
        run.live_on()
    return run


def _put(run: LateRun, name: str, durability: str) -> Callable[[], Ticket[Any]]:
    return lambda: run.engine.submit_put(name, {"durability": durability}).ticket
