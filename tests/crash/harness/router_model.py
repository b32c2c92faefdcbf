"""What somebody outside knows of topics and routers, and what must be true of them for ever.

A record is written with a number of its own, and its copies keep that. So a reader who looks after
every step knows which records a source had, which of them have a copy, and in which order they
came. Topics are told apart by their epochs and routers by their ids, not by their names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import msgspec

from topics.engine.engine import Engine
from topics.engine.state.routers import Router
from topics.testing.modelcheck import Ending, require
from topics.types import Record

# What a topic loses without being asked to.
INVOLUNTARY = frozenset(("evicted", "crash", "restart", "source_trim"))


@dataclasses.dataclass(eq=False)
class Instance:
    """A topic from its creation to its end, or to the loss of its head."""

    name: str
    epoch: int
    durability: str
    is_capped: bool
    is_sure: bool = False
    is_ending: bool = False
    head: int = 0
    # By seq: the number of the record, and all of it as it was read.
    seen: dict[int, tuple[int, bytes]] = dataclasses.field(default_factory=dict)
    deleted: set[int] = dataclasses.field(default_factory=set)
    # Numbers of records written here, and by router the topics that others were copied from.
    direct: Counter[int] = dataclasses.field(default_factory=Counter)
    sources: dict[int, Instance] = dataclasses.field(default_factory=dict)
    # Whether something may stand in it twice: a router started over, or copies were lost.
    may_repeat: bool = False

    def may_renew(self, ending: Ending) -> bool:
        """Whether its head can not be proved after such an end."""
        if self.durability == "memory":
            return ending == "crash"
        return self.durability == "ephemeral" and ending != "clean"

    def may_be(self, state: str, seq: int, ending: Ending) -> bool:
        """Whether a record that was seen may be gone with this explanation."""
        return (
            (state == "deleted" and seq in self.deleted)
            or (state == "evicted" and self.is_capped)
            or (state == "crash" and self.durability == "disk" and ending == "crash")
            or (state == "restart" and self.durability == "ephemeral")
        )


@dataclasses.dataclass(eq=False)
class Route:
    """A router from its creation on."""

    id: int
    # With the ids of its topics: the number of one that a crash took is given again.
    key: tuple[int, int, int]
    name: str
    source: Instance
    dest: Instance
    start: int
    cursor: int
    is_sure: bool = False
    is_ending: bool = False


class RouterModel:
    def __init__(self, *, has_cycles: bool = False) -> None:
        # There something may come back to where it was written when the process ends, and what
        # was told all the way round is told no more.
        self.has_cycles = has_cycles
        self.topics: dict[int, Instance] = {}
        self.routes: dict[int, Route] = {}
        # Epochs of topics and keys of routers whose end was acknowledged.
        self.gone: set[int] = set()
        self.ended: set[tuple[int, int, int]] = set()

    def topic(self, engine: Engine, name: str) -> Instance:
        """The topic that has a name now; entered when it is new."""
        state = engine.state(name)
        config = state.config
        made = Instance(name, state.epoch, config.durability, bool(config.cap_records))
        known = self.topics.setdefault(state.epoch, made)
        known.is_capped = known.is_capped or made.is_capped
        return known

    def route(self, engine: Engine, router: Router) -> Route:
        known = self.routes.get(router.id)
        if known is None:
            source = self.topic(engine, router.source.name)
            dest = self.topic(engine, router.dest.name)
            dest.sources[router.id] = source
            start = router.place.cursor
            known = Route(router.id, key_of(router), router.name, source, dest, start, start)
            self.routes[router.id] = known
        return known

    def end_routes(self, topic: Instance) -> list[Route]:
        """The routes that go with a topic; they may be gone from now on."""
        ending = [r for r in self.routes.values() if topic in (r.source, r.dest)]
        for route in ending:
            route.is_ending = True
        return ending

    # -- looking -----------------------------------------------------------------------------

    def note(self, engine: Engine) -> None:
        """Remembers what a reader can see now, and holds it against what was known."""
        for name in engine.list_topics():
            topic = self.topic(engine, name)
            for record in records_from(engine, name, topic.head):
                number = msgspec.json.decode(bytes(record.data))["n"]
                require(record.seq not in topic.seen, f"{name}: seq {record.seq} came twice")
                topic.seen[record.seq] = number, msgspec.json.encode(record)
            head = engine.state(name).head_seq
            require(head >= topic.head, f"{name}: the head went back")
            topic.head = head
        for router in engine.core.routers.by_name.values():
            route = self.route(engine, router)
            require(router.place.cursor >= route.cursor, f"{router.name}: went back")
            route.cursor = router.place.cursor

    def judge(self, engine: Engine, ending: Ending) -> None:
        """Holds a recovered engine against what was known before, and goes on from there."""
        there = {engine.state(name).epoch: name for name in engine.list_topics()}
        for epoch, topic in list(self.topics.items()):
            if epoch in there:
                self._same(engine, topic, ending)
                continue
            may_go = topic.is_ending or not topic.is_sure or topic.may_renew(ending)
            require(may_go, f"{topic.name}: the topic is gone")
            del self.topics[epoch]
        for epoch, name in there.items():
            require(epoch not in self.gone, f"{name}: the topic is back")
            topic = self.topic(engine, name)
            topic.is_sure, topic.is_ending = True, False
            if not topic.seen:
                # Another epoch of a topic that was there before.
                topic.may_repeat = True
                states = states_of(engine, name)
                topic.deleted.update(seq for seq in states if states[seq] == "deleted")
        self._judge_routes(engine, ending)

    def _same(self, engine: Engine, topic: Instance, ending: Ending) -> None:
        name = topic.name
        require(engine.state(name).head_seq >= topic.head, f"{name}: the head went back")
        states = states_of(engine, name)
        found = {record.seq: record for record in records_from(engine, name, 0)}
        for seq, (_, raw) in list(topic.seen.items()):
            state = states[seq]
            if state == "live":
                same = msgspec.json.encode(found[seq]) == raw
                require(same, f"{name} {seq}: another record than before")
                continue
            require(topic.may_be(state, seq, ending), f"{name} {seq}: {state} after {ending}")
            if state == "crash":
                # What was lost is forwarded again, behind the hole.
                del topic.seen[seq]
                topic.may_repeat = True

    def _judge_routes(self, engine: Engine, ending: Ending) -> None:
        there = {router.id: router for router in engine.core.routers.by_name.values()}
        for number, route in list(self.routes.items()):
            if number in there:
                self._goes_on(engine, route, there[number], ending)
                continue
            kept = all(x.epoch in self.topics for x in (route.source, route.dest))
            may_go = route.is_ending or not route.is_sure
            require(may_go or not kept, f"{route.name}: the router is gone")
            del self.routes[number]
        for router in there.values():
            require(key_of(router) not in self.ended, f"{router.name}: the router is back")
            route = self.route(engine, router)
            route.is_sure, route.is_ending = True, False

    def _goes_on(self, engine: Engine, route: Route, router: Router, ending: Ending) -> None:
        source = self.topic(engine, router.source.name)
        dest = self.topic(engine, router.dest.name)
        cursor = router.place.cursor
        if source is not route.source or dest is not route.dest:
            # Seqs of another epoch: from here on as from the beginning.
            dest.sources[router.id] = source
            dest.may_repeat = True
            route.source, route.dest, route.start = source, dest, cursor
        elif cursor < route.cursor:
            # What was passed over is passed over again; what was copied may be lost with its copy.
            copied = {number for number, _ in dest.seen.values()}
            again = [source.seen.get(seq) for seq in range(cursor + 1, route.cursor + 1)]
            is_empty = not any(item is not None and item[0] in copied for item in again)
            may_go_back = ending == "crash" and (is_empty or dest.durability != "fsync")
            require(may_go_back, f"{route.name}: went back from {route.cursor} to {cursor}")
            dest.may_repeat = True
        route.cursor = cursor

    # -- what holds between topics -------------------------------------------------------------

    def relations(self, engine: Engine) -> None:
        for router in engine.core.routers.by_name.values():
            self._folded(engine, self.routes[router.id])
        for topic in self.topics.values():
            if topic.is_ending or engine.core.by_name.get(topic.name) is None:
                continue
            self._once(engine, topic)

    def _folded(self, engine: Engine, route: Route) -> None:
        """Up to its cursor everything has a copy, was deleted before, or is told as lost."""
        source, dest = route.source, route.dest
        copied = {number for number, _ in dest.seen.values()}
        states = states_of(engine, source.name)
        missing = [
            seq
            for seq in range(route.start + 1, route.cursor + 1)
            if source.seen.get(seq, (0, b""))[0] not in copied and seq not in source.deleted
        ]
        skipped = [seq for seq in missing if states[seq] not in INVOLUNTARY]
        ends = states_of(engine, dest.name)
        # What a crash took from the source it takes from a destination that had it already.
        told = sum(state in ("source_trim", "crash") for state in ends.values())
        # A copy may have come and gone between two looks.
        unseen = sum(state == "evicted" and seq not in dest.seen for seq, state in ends.items())
        require(len(skipped) <= unseen, f"{route.name}: skipped {skipped[:5]}")
        lost = sum(not (self.has_cycles and states[seq] == "source_trim") for seq in missing)
        # So may what was copied: then the copy is known, and nothing that it could be one of.
        passing = sum(states[seq] == "evicted" and seq not in source.seen for seq in missing)
        lost -= min(passing, _foreign(dest))
        require(lost <= told + unseen, f"{route.name}: {lost} lost, {told} told")

    def _once(self, engine: Engine, topic: Instance) -> None:
        """Nothing was copied twice, unless a router was told to."""
        if not topic.may_repeat and not self.has_cycles:
            had = topic.direct.copy()
            for source in topic.sources.values():
                had.update(number for number, _ in source.seen.values())
            for number, count in Counter(number for number, _ in topic.seen.values()).items():
                unseen = any(source.is_capped for source in topic.sources.values())
                require(count <= had[number] or unseen, f"{topic.name}: {number} came twice")
        names = {source.name for source in topic.sources.values()}
        if len(names) == 1:
            # Copies of copies have the keys of the first ones.
            metas = [r.meta for r in records_from(engine, topic.name, 0) if r.meta is not None]
            marks = [meta["_topics_router"] for meta in metas]
            keys = [m["idempotency_key"] for m in marks if m["source_topic"] in names]
            require(len(keys) == len(set(keys)), f"{topic.name}: a key stands there twice")


def _foreign(dest: Instance) -> int:
    """How many of its records were neither written here nor seen in a source."""
    found = Counter(number for number, _ in dest.seen.values())
    found.subtract(dest.direct)
    for source in dest.sources.values():
        found.subtract(number for number, _ in source.seen.values())
    return (+found).total()


def key_of(router: Router) -> tuple[int, int, int]:
    return router.id, router.source.id, router.dest.id


def states_of(engine: Engine, name: str) -> dict[int, str]:
    """What became of each seq up to the head."""
    head = engine.state(name).head_seq
    states = {
        seq: part.state
        for part in (engine.explain(name, 1, head) if head else ())
        for seq in range(part.first, part.last + 1)
    }
    require(len(states) == head, f"{name}: explain covers {len(states)} of {head} seqs")
    return states


def records_from(engine: Engine, name: str, cursor: int) -> Iterator[Record]:
    while True:
        page = engine.diff(name, from_seq=cursor, limit=1000, include_tags=True)
        yield from page.records
        cursor = page.next_from_seq
        if page.caught_up:
            return
