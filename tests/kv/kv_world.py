"""A bucket and its replica beside a plain list of everything that was written to it.

The list has every record of the source by seq, for ever. What a crash of the machine took is known
from the log's own account; what compaction removed never has a say. So the bucket has to hold what
the list makes of all that was not lost, and the replica the same as soon as it has caught up.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.engines import Ending, World, explained, read_all
from topics.engine.engine import Engine
from topics.errors import Compacted, Conflicting, Incompatible, RouterNotFound
from topics.kv.embedded import KeyValue, buckets_of, open_bucket
from topics.testing import CrashPlan, FakeClock, FakeDisk
from topics.types import ROUTER_META

SOURCE, REPLICA = "kv:s", "kv:r"
ROUTER = "s-to-r"
KEYS = ["a", "a:1", "a:2", "b", "é"]
PREFIXES = ["", "a", "a:", "é", "q"]


@dataclass(frozen=True)
class Change:
    kind: str
    name: str
    value: int = 0


def fold(changes: Mapping[int, Change], upto: int) -> dict[str, tuple[int, int]]:
    """Key to (value, seq) as of a seq."""
    live: dict[str, tuple[int, int]] = {}
    for seq in sorted(changes):
        if seq > upto:
            break
        change = changes[seq]
        if change.kind == "put":
            live[change.name] = (change.value, seq)
        elif change.kind == "delete":
            live.pop(change.name, None)
        else:
            live = {key: entry for key, entry in live.items() if not key.startswith(change.name)}
    return live


class KvWorld:
    """The source has the class given; its replica is of class disk, fed by a router."""

    def __init__(self, durability: str = "disk", *, history: int = 1, **settings: Any) -> None:
        small = {"block_bytes": 512, "own_segment_bytes": 2048, "resident_bytes": 2048}
        self.world = World(**{**small, **settings})
        self.changes: dict[int, Change] = {}
        # Of a write that ended in the middle of a crash: it may be there or not.
        self.unsure: tuple[int, Change] | None = None
        self.values = 0
        config = {"durability": durability, "history": history, "grace_ms": 1000}
        self.engine.put_bucket(SOURCE, config)
        self.engine.put_bucket(REPLICA, {"grace_ms": 1000})
        self.engine.put_router(ROUTER, {"source": SOURCE, "dest": REPLICA, "from_seq": 0})
        self.snapshots: list[tuple[Any, dict[str, tuple[int, int]]]] = []
        # The newest value of each key that the replica had: an older one never comes again.
        self.newest: dict[str, int] = {}
        # Where its router was when it was dropped, if it had brought something: before that the
        # replica has nothing, and a later start would leave out what is older for good.
        self.left_at = 0

    @property
    def engine(self) -> Engine:
        return self.world.engine

    @property
    def source(self) -> KeyValue:
        return open_bucket(self.engine, SOURCE[3:])

    @property
    def replica(self) -> KeyValue:
        return open_bucket(self.engine, REPLICA[3:])

    @property
    def head(self) -> int:
        return self.engine.state(SOURCE, touch=False).head_seq

    # -- writing -----------------------------------------------------------------------------

    def _about_to(self, change: Change) -> None:
        self.unsure = (self.head + 1, change)

    def _wrote(self, seq: int) -> None:
        assert self.unsure is not None
        assert self.unsure[0] == seq
        self.changes[seq] = self.unsure[1]
        self.unsure = None

    def put(self, key: str, if_seq: int | None = None) -> None:
        self.values += 1
        live = self.live()
        self._about_to(Change("put", key, self.values))
        try:
            seq = self.source.put(key, self.values, if_seq=if_seq)
        except Conflicting as error:
            refused: Conflicting | None = error
        else:
            refused = None
            self._wrote(seq)
        stands = live[key][1] if key in live else 0
        assert (refused is None) == (if_seq in (None, stands))
        if refused is not None:
            assert refused.detail["seq"] == stands
        self.unsure = None

    def delete(self, key: str) -> None:
        head, was_live = self.head, key in self.live()
        self._about_to(Change("delete", key))
        assert self.source.delete(key) is was_live
        if was_live:
            self._wrote(head + 1)
        self.unsure = None

    def delete_range(self, prefix: str) -> None:
        head, hidden = self.head, [key for key in self.live() if key.startswith(prefix)]
        self._about_to(Change("prefix", prefix))
        assert self.source.delete_range(prefix) == len(hidden)
        if hidden:
            self._wrote(head + 1)
        self.unsure = None

    def append(self, names: list[str]) -> None:
        """A write to the log itself, of several records."""
        first, base = self.head + 1, self.values
        self.values += len(names)
        records = [{"data": base + n + 1, "tag": name} for n, name in enumerate(names)]
        self.engine.append(SOURCE, records)
        for n, name in enumerate(names):
            self.changes[first + n] = Change("put", name, base + n + 1)

    # -- beside the writes -------------------------------------------------------------------

    def compact(self, max_age_ms: int) -> None:
        self.world.clock.advance(1)
        self.source.compaction(max_age_ms)
        self.replica.compaction(max_age_ms)

    def work(self, slices: int) -> None:
        for _ in range(slices):
            buckets_of(self.engine).work(0.0)
            self.engine.poll()

    def forward(self) -> None:
        while self.engine.forward():
            pass
        self.engine.sync()
        while self.engine.forward():
            pass

    def unroute(self) -> None:
        """The replica is left to itself; nobody waits for it any more."""
        with contextlib.suppress(RouterNotFound):
            place = self.engine.router(ROUTER).place
            self.left_at = place.cursor if place.forwarded_total else 0
        self.engine.delete_router(ROUTER)

    def route(self, from_seq: int) -> None:
        """A router that is made anew goes on, or is refused and the replica made anew as well."""
        options = {"source": SOURCE, "dest": REPLICA, "from_seq": min(from_seq, self.left_at)}
        try:
            self.engine.put_router(ROUTER, options)
        except Incompatible as error:
            if error.detail["reason"] != "router_dest_outdated":
                raise
            self.engine.delete_topic(REPLICA)
            self.newest.clear()
            self.engine.put_router(ROUTER, {**options, "from_seq": 0})

    def check_order(self) -> None:
        """No key of the replica has an older value than it had before, and no change is there
        twice.
        """
        pages = read_all(self.engine, REPLICA) if self.engine.has_topic(REPLICA) else ()
        metas = [record.meta or {} for page in pages for record in page.records]
        applied = [meta[ROUTER_META]["source_seq"] for meta in metas if ROUTER_META in meta]
        assert len(set(applied)) == len(applied), f"applied twice: {applied}"
        for key, value in self.replica.scan():
            assert value >= self.newest.get(key, 0), f"{key} went back to {value}"
            self.newest[key] = value

    def open_snapshot(self) -> None:
        if len(self.snapshots) < 3:
            self.snapshots.append((self.source.snapshot(), dict(self.live())))

    def close_snapshot(self) -> None:
        if self.snapshots:
            self.snapshots.pop(0)[0].close()

    def restart(self, how: Ending, plan: CrashPlan) -> None:
        self.snapshots.clear()
        self.world.restart(how, plan)
        if how == "crash":
            # It is of class disk: it may have lost its last changes, and gets them again.
            self.newest.clear()
        self.account()

    def recovered(self, image: FakeDisk) -> KvWorld:
        """The same on another disk, with nothing but what that has."""
        found = copy.copy(self)
        found.world = copy.copy(self.world)
        found.world.disk = image
        found.world.clock = FakeClock(self.world.clock.wall_ms())
        found.world.engine = found.world.open()
        found.changes, found.snapshots, found.newest = dict(self.changes), [], {}
        found.account()
        return found

    # -- what has to hold --------------------------------------------------------------------

    def account(self) -> None:
        """Forgets what the log says that a crash took, and finds out about what was unsure."""
        lost = {
            seq
            for first, last, state in explained(self.engine, SOURCE)
            for seq in range(first, last + 1)
            if state in ("crash", "restart")
        }
        head = self.head
        self.changes = {s: c for s, c in self.changes.items() if s not in lost and s <= head}
        if self.unsure is not None:
            seq, change = self.unsure
            self.unsure = None
            if seq <= head and seq not in lost:
                self.changes[seq] = change

    def live(self) -> dict[str, tuple[int, int]]:
        return fold(self.changes, max(self.changes, default=0))

    def check(self) -> None:
        truth, kv = self.live(), self.source
        assert dict(kv.scan()) == {key: value for key, (value, _) in truth.items()}
        assert list(kv.keys()) == sorted(truth, key=str.encode)
        assert kv.size == len(truth)
        for key in KEYS:
            entry = kv.entry(key)
            assert (entry and (entry.value, entry.seq)) == truth.get(key)
        for view, seen in self.snapshots:
            assert dict(view.scan()) == {key: value for key, (value, _) in seen.items()}

    def check_past(self, chance: random.Random) -> None:
        head = self.head
        for at in {0, head, *(chance.randint(0, head) for _ in range(4))}:
            truth = fold(self.changes, at)
            for key in KEYS:
                try:
                    found = self.source.entry(key, at_seq=at)
                except Compacted:
                    continue
                assert (found and (found.value, found.seq)) == truth.get(key), (key, at)
            try:
                listed = dict(self.source.scan(at_seq=at))
            except Compacted:
                continue
            assert listed == {key: value for key, (value, _) in truth.items()}, at

    def check_replica(self) -> None:
        """Once it has caught up it holds what the source holds, whatever was compacted."""
        self.route(0)
        self.forward()
        for _ in range(100):
            if not self.engine.router(ROUTER).lag:
                break
            # It was held back, and tries again after a while.
            self.world.clock.advance(1000)
            self.engine.maintain()
            self.forward()
        truth = {key: value for key, (value, _) in self.live().items()}
        self.check_order()
        assert dict(self.replica.scan()) == truth

    # -- whole histories ---------------------------------------------------------------------

    def hold_back(self, *, is_full: bool) -> None:
        """The replica takes no more puts, and its router falls behind; or takes them again."""
        self.engine.put_bucket(REPLICA, {"grace_ms": 1000, "cap_records": int(is_full)})

    def set_cap(self, cap_records: int) -> None:
        """A cap far below what the source holds: nothing may go for it."""
        config = self.engine.state(SOURCE, touch=False).config
        fields = {"durability": config.durability, "history": config.history, "grace_ms": 1000}
        self.engine.put_bucket(SOURCE, {**fields, "cap_records": cap_records})

    def step(self, chance: random.Random) -> str:
        """Does one thing, most often what a bucket is for; what it was."""
        key, prefix = chance.choice(KEYS), chance.choice(PREFIXES)
        plan = chance.choice(CrashPlan.standard())
        live = self.live()
        stands = live[key][1] if key in live else 0
        things: list[tuple[int, str, Callable[[], object]]] = [
            (8, f"put {key}", lambda: self.put(key)),
            (2, f"put {key} if", lambda: self.put(key, chance.choice((stands, 0, 1)))),
            (7, f"delete {key}", lambda: self.delete(key)),
            (2, f"delete range {prefix}", lambda: self.delete_range(prefix)),
            (1, "append", lambda: self.append([chance.choice(KEYS) for _ in range(3)])),
            (6, "compact", lambda: self.compact(chance.choice((0, 0, 500)))),
            (2, "work", lambda: self.work(chance.randint(1, 12))),
            (2, "forward", self.forward),
            (1, "checkpoint", self.engine.checkpoint),
            (2, "time", lambda: self.world.clock.advance(chance.choice((1, 600, 2000)))),
            (3, "open snapshot", self.open_snapshot),
            (1, "close snapshot", self.close_snapshot),
            (1, "hold back", lambda: self.hold_back(is_full=True)),
            (1, "let go", lambda: self.hold_back(is_full=False)),
            (1, "unroute", self.unroute),
            (1, "route", lambda: self.route(chance.randint(0, 5))),
            (1, "cap", lambda: (self.set_cap(1), self.set_cap(0))),
            (1, "clean stop", lambda: self.restart("clean", plan)),
            (1, "kill", lambda: self.restart("kill", plan)),
            (2, f"crash {plan.name}", lambda: self.restart("crash", plan)),
            (2, "look back", lambda: self.check_past(chance)),
        ]
        [(_, name, thing)] = chance.choices(things, [weight for weight, _, _ in things])
        thing()
        return name


def history(seed: int, steps: int = 40) -> None:
    """A history from a seed. Raises AssertionError with what was done."""
    chance = random.Random(seed)
    run = KvWorld(chance.choice(("disk", "fsync")), history=chance.randint(1, 3))
    done: list[str] = []
    try:
        for _ in range(steps):
            done.append(run.step(chance))
            run.check()
            run.check_order()
        run.hold_back(is_full=False)
        run.check_replica()
    except Exception as error:
        raise AssertionError(f"seed {seed} after {len(done)} steps: {done[-12:]}") from error
