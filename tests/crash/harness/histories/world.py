"""One engine in a world that can go wrong: its disk, its clock, its threads, its memory.

The world owns what outlives a process (the disk, the clock, what was promised) and drives the
engine as a server does: operations are submitted and end when their tickets do, syncs and
background jobs end when a draw says so. `facts` are what somebody outside knows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.crash.harness.histories import outcomes
from tests.crash.harness.histories.draws import Mood
from tests.crash.harness.histories.facts import Asked, Born, Ending, Instance, Sight
from tests.crash.harness.histories.memory import Memory
from topics.engine.engine import Engine
from topics.engine.state.explaining import explain
from topics.engine.state.segments import ColdMiss
from topics.errors import Closed, OutcomeUnknown, Poisoned, TopicsError
from topics.testing import (
    CrashPlan,
    DiskCrashed,
    FakeClock,
    FakeDisk,
    Fault,
    FaultFs,
    Lateness,
    MonitorFs,
)
from topics.testing.modelcheck import Violation, require
from topics.types import TopicConfig

ROOT = "/data"
TURNS = ("flush", "step", "poll", "forward", "maintain")
# Turns until everything has ended: a promotion waits for a checkpoint of many small blocks. What a
# fault has left may never end.
ROUNDS_MAX, FAULTY_ROUNDS_MAX = 1000, 60
GRAVE: dict[Ending, int] = {"live": 0, "clean": 1, "kill": 2, "crash": 3}


class Edge:
    """A router as its owner knows it."""

    def __init__(
        self, name: str, source: Instance, dest: Instance, start: int, guarantee: str, asked: Asked
    ) -> None:
        self.name = name
        # What made it, and what ends it.
        self.asked = asked
        self.ended: Asked | None = None
        self.source = source
        self.dest = dest
        # Source seqs up to here are none of its business, nor is what stood in the destination.
        self.start = start
        self.dest_start = dest.head
        # From here on the destination may have copies that it need not make, of an earlier router.
        self.copied_from = dest.head
        self.begins_again = False
        self.guarantee = guarantee
        # How far it had come when it was last seen.
        self.cursor = start
        # What it copied can not be counted: its source or destination lost its memory.
        self.is_doubtful = False


class World:
    def __init__(self, seed: int, mood: Mood) -> None:
        self.seed = seed
        self.mood = mood
        self.clock = FakeClock()
        self.disk = FakeDisk(seed)
        self.memory = Memory()
        self.born: dict[int, Born] = {}
        self.by_epoch: dict[int, Instance] = {}
        self.epochs: set[int] = set()
        self.edges: dict[str, Edge] = {}
        # Those that were taken away or replaced; some may be there again after a crash.
        self.past_edges: list[Edge] = []
        self.open_asks: list[Asked] = []
        self.retries: list[Asked] = []
        self.tallies: Counter[str] = Counter()
        # The worst that happened since an engine was last judged on this disk.
        self.ending: Ending = "clean"
        self.is_poisoned = False
        # Whether a fault was met since this process began: then calls may fail in any way.
        self.is_faulty = False
        # Whether the disk hangs: nothing that was asked of it ends.
        self.is_stalled = False
        self.faulty_places: set[str] = set()
        # The newest snapshot when one was spoilt, and whether a start has met that since.
        self.spoilt_at = -1
        self.is_spoil_met = False
        self.log: list[str] = []
        self.open()

    # -- the process -------------------------------------------------------------------------

    def open(self, planned: Fault | None = None) -> None:
        """Starts a process on the disk as it is. Raises what opening raises."""
        self.faults = FaultFs(self.disk, planned)
        self.monitor = MonitorFs(self.faults, assume_durable=self.ending != "kill")
        self.late = Lateness(self.faults)
        self.is_faulty = False
        self.faulty_places = set()
        self.memory.fired = 0
        self.engine = Engine.open(
            ROOT, clock=self.clock, fs=self.monitor, settings=self.mood.settings
        )
        self.late.attach(self.engine)
        # What a start has met and got over may have left its traces in this process.
        self.plan(None)
        self.is_poisoned = self.is_stalled = False

    def end(self, ending: Ending, plan: CrashPlan | None = None) -> None:
        """Ends the process; what was under way then is unknown."""
        self.tallies[{"clean": "clean_stops", "kill": "kills", "crash": "crashes"}[ending]] += 1
        if ending == "kill" and any(
            shard.poison is not None for shard in self.engine.core.log.shards
        ):
            # A failed sync is noticed at once; a kill in that moment leaves no note, nor could it.
            self.call(self.engine.poll)
        fed = {edge.dest for edge in [*self.edges.values(), *self.past_edges]}
        for known in self.by_epoch.values():
            known.is_fed |= known in fed or known.name == "dead"
            topic = self.engine.core.by_name.get(known.name)
            known.was_unwritten = (
                ending == "kill"
                and topic is not None
                and self.engine.core.committer.has_staged(topic)
            )
            known.was_busy |= known in fed or any(o.outcome in ("", "unknown") for o in known.asked)
        if ending == "clean":
            self._stop()
        if ending == "crash":
            assert plan is not None
            self.disk = self.disk.crash(plan)
        elif ending == "kill":
            self.disk = self.disk.kill()
        try:
            self.engine.maintenance.give_up()
        except (DiskCrashed, OSError, TopicsError):
            pass
        if self.is_poisoned:
            # Nobody knows what the failed sync left on the disk.
            self.disk = self.disk.kill() if ending == "clean" else self.disk
            ending = "crash"
        self.worse(ending)
        for asked in self.open_asks:
            outcomes.settle(self, asked)
            if not asked.outcome:
                asked.outcome = "unknown"
                outcomes.doubt(self, asked)
        self.open_asks.clear()

    def _stop(self) -> None:
        """An orderly stop ends every ticket and leaves nothing open."""
        self.plan(None)
        try:
            self.engine.close()
        except Poisoned:
            # A sync had failed and nobody had looked yet.
            if not self.is_faulty:
                raise
            self.is_poisoned = True
        self.collect()
        for asked in self.open_asks:
            require(
                asked.ticket is None or asked.ticket.done,
                f"{asked.kind} was never answered: {asked}",
            )
        self.monitor.assert_no_leaks(ROOT)

    def give_up(self) -> None:
        """Storage failed: the process closes what it can and exits."""
        self.plan(None)
        try:
            self.engine.close()
        except Exception as error:
            require(isinstance(error, TopicsError | OSError), f"close after poison: {error!r}")
        self.collect()
        for asked in self.open_asks:
            require(
                asked.ticket is None or asked.ticket.done,
                f"after the failure {asked.kind} was never answered: {asked}",
            )
        self.tallies["poisoned"] += 1
        self.is_poisoned = True
        self.end("kill")

    def worse(self, ending: Ending) -> None:
        if GRAVE[ending] > GRAVE[self.ending]:
            self.ending = ending

    # -- calling the engine ------------------------------------------------------------------

    def call(self, what: Callable[[], Any]) -> Any:
        """Calls the engine; None or the error when it refused. Others than ours need a fault."""
        try:
            answer = self._fetching(what)
            self.note_fault()
            return answer
        except Poisoned as error:
            self.note_fault()
            require(self.is_faulty, f"nothing failed, and the process ends: {error}")
            require(self.faulty_places != {"/cold/"}, f"the cold store ends the process: {error}")
            self.is_poisoned = True
        except (Closed, TopicsError) as error:
            self.note_fault()
            self.log.append(f"  refused: {error.code} {error}"[:120])
            return error
        except (OSError, MemoryError, AssertionError, RuntimeError) as error:
            self.note_fault()
            if not self.is_faulty or isinstance(error, AssertionError):
                raise
            self.log.append(f"  failed: {error!r}")
            return error
        return None

    def plan(self, fault: Fault | None) -> None:
        """What will fail next; the one before it may have done so where nobody looked."""
        self.note_fault()
        self.faults.fault = fault

    def note_fault(self) -> None:
        fault = self.faults.fault
        if fault is not None and fault.fired:
            self.is_faulty = True
            self.faulty_places.add(fault.path_contains)
        if self.memory.fired:
            self.is_faulty = True
            self.faulty_places.add("memory")

    def _fetching(self, what: Callable[[], Any]) -> Any:
        segments = self.engine.core.segments
        for _ in range(50):
            try:
                return what()
            except ColdMiss as miss:
                fetched = list(zip(miss.ahead, segments.ask(miss.ahead).read(), strict=True))
                for block, columns in reversed(fetched):
                    segments.admit(block, columns)
        raise Violation("the cold store is asked for ever")

    def drive(self, rng: random.Random, steps: int) -> None:
        """Turns of a server: what is written, what became durable, what runs beside."""
        threads = 0 if self.is_stalled else self.mood.threads
        for _ in range(steps):
            if self.is_poisoned:
                return
            turn = rng.choices(TURNS, (3, threads, 3, 2, 3))[0]
            if turn == "step":
                before = self.faults.fault
                self.late.step(rng, fails=self.mood.fails)
                if "with Fault" in (self.late.trace or [""])[-1]:
                    self.is_faulty = True
                    self.faulty_places.add("thread")
                self.faults.fault = before
            elif turn == "flush":
                self.call(self.engine.flush)
            elif turn == "poll":
                self.call(self.engine.poll)
            elif turn == "forward":
                self.call(self.forward)
            else:
                self.call(lambda: self.engine.maintain(0))
            self.note_fault()
        self.collect()

    def forward(self) -> None:
        try:
            self.engine.forward_now()
        except ColdMiss:
            # Maintenance fetches it, beside the loop.
            pass

    def quiesce(self) -> None:
        """Everything under way ends; nothing fails."""
        for turn in range(ROUNDS_MAX):
            self.late.drain()
            self.call(self.engine.sync)
            self.collect()
            is_over = (turn > 1 and not self.open_asks) or (
                self.is_faulty and turn >= FAULTY_ROUNDS_MAX
            )
            if self.is_poisoned or is_over:
                break
            # What a delete by tag needs may have to be looked up first.
            self.call(lambda: self.engine.maintain(0))
        if self.is_poisoned:
            return
        self.collect()
        if not self.is_faulty:
            for asked in self.open_asks:
                require(asked.ticket is None or asked.ticket.done, f"never answered: {asked}")

    # -- what was asked ----------------------------------------------------------------------

    def instance(self, name: str) -> Instance | None:
        """What stands under a name now, entered when it is first seen."""
        topic = self.engine.core.by_name.get(name)
        if topic is None:
            return None
        known = self.by_epoch.get(topic.epoch)
        if known is None:
            require(topic.epoch not in self.epochs, f"{name}: epoch {topic.epoch} was used before")
            known = self.by_epoch[topic.epoch] = Instance(name, topic.epoch, topic.config)
        return known

    def may_repeat(self, known: Instance) -> None:
        """A topic, and whatever is fed by it, may have records twice."""
        known.may_repeat = True
        for edge in self.edges.values():
            if edge.source is known and not edge.dest.may_repeat:
                self.may_repeat(edge.dest)

    def ask(self, asked: Asked, submit: Callable[[], Any]) -> Any:
        """Submits something; `submit` returns its ticket, alone or last in a tuple."""
        before = self.instance(asked.topic)
        asked.asked_ms = int(self.clock.monotonic_s() * 1000)
        if before is not None:
            asked.last_seq = self.engine.core.by_name[asked.topic].next_seq - 1
        answer = self.call(submit)
        after = self.instance(asked.topic)
        known = before if asked.kind == "drop" else after
        if isinstance(answer, BaseException) or answer is None:
            if isinstance(answer, TopicsError) and not isinstance(answer, OutcomeUnknown):
                asked.outcome = "refused"
                outcomes.refuse(self, asked)
                return answer
            asked.outcome = "unknown"
            asked.epoch = 0 if known is None else known.epoch
            outcomes.doubt(self, asked)
        else:
            asked.ticket = answer[-1] if isinstance(answer, tuple) else answer
            self.open_asks.append(asked)
        if known is not None:
            asked.epoch = known.epoch
            known.asked.append(asked)
            known.was_busy = True
            if asked.kind in ("delete", "ack"):
                known.removals.append(asked)
            known.is_dropping |= asked.kind == "drop"
        self.collect()
        return answer

    def collect(self) -> None:
        """Notes how tickets have ended."""
        for asked in [o for o in self.open_asks if o.ticket is not None and o.ticket.done]:
            self.open_asks.remove(asked)
            outcomes.settle(self, asked)

    # -- what is seen ------------------------------------------------------------------------

    def peek(self, ending: Ending = "live") -> None:
        """Looks at every seq of every topic without touching anything."""
        for name in list(self.engine.core.by_name):
            known = self.instance(name)
            assert known is not None
            self.see(known, ending)

    def see(self, known: Instance, ending: Ending) -> None:
        self.collect()
        topic = self.engine.core.by_name[known.name]
        states: list[str] = []
        for part in explain(topic, 1, topic.head) if topic.head else ():
            states += [part.state] * (part.last - part.first + 1)
        require(len(states) == topic.head, f"{known.name}: {len(states)} of {topic.head} explained")
        sight = Sight(known, ending, self.clock.wall_ms(), self.born)
        sight.states(states, topic.floor, topic.evict_floor)
        known.was_busy = False
        known.was_ephemeral |= "ephemeral" in known.classes()
        if known.classes() == {"fsync"}:
            # What is seen is durable.
            known.durable_upto = known.head
        known.stood = [c for c in known.stood if c is topic.config]

    def config_of(self, name: str) -> TopicConfig | None:
        topic = self.engine.core.by_name.get(name)
        return None if topic is None else topic.config
