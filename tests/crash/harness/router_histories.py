"""Random histories of chains of routers, with syncs that end late and restarts of every kind.

Nothing waits for anything here: topics are written, dropped and made again under their names,
routers come, move, change and go while others catch up, and checkpoints go on a slice at a time
beside all of it. What was answered counts; what was not may have happened or not.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import msgspec

from tests.crash.harness.log_harness import ROOT, SETTINGS, deterministic
from tests.crash.harness.router_model import Instance, RouterModel
from tests.support.late import hold_syncs
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.offline import invariants
from topics.engine.offline.check import check
from topics.engine.state.segments import ColdMiss
from topics.engine.state.write_request import request_of
from topics.errors import Incompatible, RecordTooLarge, RouterCycle, TopicFull
from topics.testing import CrashPlan, DiskCrashed, FakeClock, FakeDisk
from topics.testing.modelcheck import Ending, Violation, require

TOPICS = "abcd"
EDGES = ("ab", "bc", "cd", "ab", "bc", "cd", "ac", "bd", "da")
CLASSES = ("fsync", "fsync", "fsync", "disk", "disk", "memory", "ephemeral")
ENDINGS: tuple[Ending, ...] = ("clean", "kill", "crash")
STEPS = {
    "write": 20, "forward": 20, "sync": 9, "slice": 14, "checkpoint": 4, "drop": 4, "put": 4,
    "route": 6, "unroute": 3, "change": 3, "delete": 7, "advance": 2, "restart": 4,
}  # fmt: skip


class RouterHistory:
    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.clock = FakeClock()
        self.disk = FakeDisk(seed)
        cold = {"cold_dir": "/cold", "hot_bytes": 0} if seed % 4 == 3 else {}
        self.settings = msgspec.structs.replace(
            SETTINGS, wal_shards=1 + seed % 2, seal_records=self.drawn.choice((8, 10_000)),
            own_segment_bytes=self.drawn.choice((1, 1024)), **cold,
        )  # fmt: skip
        self.has_cycles = seed % 5 == 0
        self.model = RouterModel(has_cycles=self.has_cycles)
        self.asked: list[tuple[Ticket, Callable[[], None]]] = []
        self.serial = 0
        self._open()

    def _open(self) -> None:
        self.engine = Engine.open(ROOT, clock=self.clock, fs=self.disk, settings=self.settings)
        self.syncer = hold_syncs(self.engine)

    # -- steps -------------------------------------------------------------------------------

    def run(self, length: int) -> None:
        names, weights = list(STEPS), list(STEPS.values())
        for name in self.drawn.sample(TOPICS, self.drawn.choice((0, 2, 4, 4))):
            self.put(name)
        for _ in range(length):
            getattr(self, self.drawn.choices(names, weights)[0])()
            self.look()
        self.restart()
        self.settle()

    def look(self) -> None:
        """Takes the answers that have come, and a look at everything that can be read."""
        waiting, self.asked = self.asked, []
        for ticket, answered in waiting:
            if not ticket.done:
                self.asked.append((ticket, answered))
            elif ticket.error is None:
                answered()
            else:
                raise Violation(f"refused: {ticket.error}")
        self.model.note(self.engine)

    def _some(self) -> str | None:
        """A topic that is there; most of the time one with something on its way to or from it."""
        core = self.engine.core
        there = list(core.by_name)
        moving = [r for r in core.routers.by_name.values() if r.ahead.step != r.place.step]
        busy = [r.source.name for r in moving] + [n for n in there if core.by_name[n].gated]
        if busy and self.drawn.random() < 0.7:
            return self.drawn.choice(busy)
        return self.drawn.choice(there) if there else None

    def write(self) -> None:
        name = (self.drawn.random() < 0.3 and self._some()) or self.drawn.choice(TOPICS)
        count = self.drawn.choice((1, 1, 2, 5))
        numbers = range(self.serial + 1, self.serial + count + 1)
        self.serial += count
        pad = "p" * self.drawn.choice((0, 0, 300))
        records = [
            {"data": {"n": n, "pad": pad}, **({"tag": "x"} if n % 3 == 0 else {})} for n in numbers
        ]
        try:
            ticket = self.engine.submit_append(name, request_of(records))
        except (TopicFull, RecordTooLarge):
            return
        topic = self.model.topic(self.engine, name)
        topic.direct.update(numbers)
        self.asked.append((ticket, lambda: self._sure(topic)))
        if self.drawn.random() < 0.8:
            self.engine.flush()

    def _sure(self, topic: Instance) -> None:
        topic.is_sure = True

    def put(self, name: str = "") -> None:
        config = {"durability": self.drawn.choice(CLASSES)}
        if self.drawn.random() < 0.15:
            config["cap_records"] = self.drawn.choice((3, 6))
            config["discard"] = self.drawn.choice(("old", "reject"))
        name = name or self.drawn.choice(TOPICS)
        if name not in self.engine.core.by_name:
            ticket = self.engine.submit_put(name, config).ticket
            topic = self.model.topic(self.engine, name)
            self.asked.append((ticket, lambda: self._sure(topic)))

    def drop(self) -> None:
        name = self._some()
        if name is None:
            return
        topic = self.model.topic(self.engine, name)
        topic.is_ending = True
        ending = self.model.end_routes(topic)
        _, ticket = self.engine.submit_drop(name, if_empty=False)

        def dropped() -> None:
            self.model.gone.add(topic.epoch)
            self.model.ended.update(route.key for route in ending)

        self.asked.append((ticket, dropped))
        if self.drawn.random() < 0.5:
            self.put(name)

    def route(self) -> None:
        edge = self.drawn.choice(EDGES)
        if edge == "da" and not self.has_cycles:
            return
        name = self.drawn.choice((f"{edge[0]}->{edge[1]}", f"{edge[0]}->{edge[1]}", "r"))
        given: dict[str, object] = {"source": edge[0], "dest": edge[1], "allow_cycle": edge == "da"}
        given["guarantee"] = self.drawn.choice(("at_least_once", "exactly_once"))
        if self.drawn.random() < 0.5:
            given["from_seq"] = self.drawn.choice((0, 0, 3))
        before = self.engine.core.routers.by_name.get(name)
        try:
            router, _, ticket = self.engine.submit_router(name, given)
        except (Incompatible, RouterCycle):
            return
        route = self.model.route(self.engine, router)
        if "from_seq" in given and router is not before:
            route.dest.may_repeat = True
        replaced = self.model.routes.get(before.id) if before not in (None, router) else None
        if replaced is not None:
            replaced.is_ending = True

        def routed() -> None:
            route.is_sure = route.source.is_sure = route.dest.is_sure = True
            if replaced is not None:
                self.model.ended.add(replaced.key)

        self.asked.append((ticket, routed))

    def change(self) -> None:
        """Another guarantee or other options, perhaps while the router catches up."""
        routers = list(self.engine.core.routers.by_name.values())
        if routers:
            router = self.drawn.choice(routers)
            source, dest = router.source.name, router.dest.name
            given = {
                "source": source, "dest": dest, "allow_cycle": router.options.allow_cycle,
                "guarantee": self.drawn.choice(("at_least_once", "exactly_once")),
                "preserve_tag": self.drawn.random() < 0.5,
            }  # fmt: skip
            self.engine.submit_router(router.name, given)

    def unroute(self) -> None:
        routers = list(self.engine.core.routers.by_name.values())
        if routers:
            router = self.drawn.choice(routers)
            route = self.model.route(self.engine, router)
            route.is_ending = True
            _, ticket = self.engine.submit_unroute(router.name)
            self.asked.append((ticket, lambda: self.model.ended.add(route.key)))

    def delete(self) -> None:
        name = self._some()
        if name is not None:
            topic = self.model.topic(self.engine, name)
            head = self.engine.state(name).head_seq
            before = self.drawn.randint(1, head + 1) if self.drawn.random() < 0.7 else None
            match = None if before else "x"
            # Also what is on its way, and what has the tag: more than need be is excused.
            topic.deleted.update(range(1, before or self.engine.core.by_name[name].next_seq))
            self.engine.submit_delete(name, before_seq=before, match=match)

    def forward(self) -> None:
        with contextlib.suppress(ColdMiss):
            self.engine.forward_now()

    def sync(self) -> None:
        self.engine.flush()
        if self.drawn.random() < 0.5:
            self.syncer.release()
        else:
            self.syncer.release(self.drawn.randrange(self.settings.wal_shards))
        self.engine.poll()

    def slice(self) -> None:
        for _ in range(self.drawn.choice((1, 1, 2, 6, 25))):
            self.engine.maintain(0)

    def checkpoint(self) -> None:
        self.engine.begin_checkpoint()

    def advance(self) -> None:
        self.clock.advance(self.drawn.choice((1, 60, 2000)))
        self.engine.maintain(0)

    # -- ends --------------------------------------------------------------------------------

    def restart(self) -> None:
        ending = self.drawn.choice(ENDINGS)
        if ending == "clean":
            self.engine.close()
            self.look_closed()
        else:
            plan = self.drawn.choice(CrashPlan.standard())
            self.disk = self.disk.kill() if ending == "kill" else self.disk.crash(plan)
            with contextlib.suppress(DiskCrashed):
                self.engine.maintenance.give_up()
        self.asked.clear()
        self._open()
        self.model.judge(self.engine, ending)
        self.look()
        self.model.relations(self.engine)

    def look_closed(self) -> None:
        """An orderly stop answers everything."""
        for ticket, answered in self.asked:
            require(ticket.done and ticket.error is None, f"unanswered: {ticket.error}")
            answered()

    def settle(self) -> None:
        """When nothing more happens every router arrives, and the directory is sound."""
        for _ in range(12):
            self.clock.advance(2000)
            for _ in range(4):
                self.forward()
                self.sync()
                self.slice()
            self.look()
        self.engine.sync()
        self.look()
        self.model.relations(self.engine)
        for router in self.engine.core.routers.by_name.values():
            arrived = router.place.cursor == router.source.head
            require(arrived or router.blocked != "", f"{router.name}: at {router.place.cursor}")
        for topic in self.engine.core.by_id.values():
            broken = list(invariants.examine(self.engine.core, topic))
            require(not broken, f"{topic.name}: {broken}")
        self.engine.close()
        report = check(self.disk, ROOT, clock=self.clock)
        require(report.ok, f"check: {report.problems}")


def random_history(seed: int, length: int = 90) -> None:
    with deterministic(seed):
        RouterHistory(seed).run(length)
