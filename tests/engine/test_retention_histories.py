"""Caps, TTLs, holds, deletes, tiers, restarts and faults of the store, in any order.

Two engines live through the same random history. One has everything in memory and never ends; the
other seals, relocates to a cold store that fails now and then, and is stopped or killed every few
calls. Whatever the history, both show the same.
"""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.engines import LOSE_ALL, SURVIVABLE, Look, World
from tests.support.tiers import quick_first
from topics.engine.commit.syncing import Syncer
from topics.engine.engine import Engine
from topics.engine.offline.invariants import examine
from topics.engine.ops.cursors import Given
from topics.engine.state.write_request import request_of
from topics.engine.upkeep import flagging
from topics.errors import RecordTooLarge, TopicFull
from topics.storage.wal import Shard
from topics.testing import CrashPlan
from topics.types import Hold

TOPICS = ("log", "jobs")
CALLS = ("put", "get_range", "size", "delete", "list", "sweep", "exists")


@pytest.fixture(autouse=True)
def short_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noted before delete flags are written takes many steps, as if there were much."""
    monkeypatch.setattr(flagging, "RANGES_MAX", 3)
    monkeypatch.setattr(flagging, "RUNS_MAX", 2)


class Outage:
    """A store of which some calls fail, as one behind a network does."""

    def __init__(self, inner: Any, dice: random.Random) -> None:
        self.inner = inner
        self.dice = dice
        self.share = 0.0
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        if name in CALLS and self.dice.random() < self.share:
            self.failed += 1

            def fail(*_: Any, **__: Any) -> None:
                raise OSError(errno.EIO, "the store does not answer", name)

            return fail
        return getattr(self.inner, name)


class Pair:
    """The two worlds, and one call made to both."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.plain = World(seal_bytes=1 << 40, seal_age_ms=10**9)
        self.tiered = World(
            cold_dir="/cold", hot_bytes=self.dice.choice((0, 0, 3000)), resident_bytes=0,
            block_bytes=self.dice.choice((256, 1024)), own_segment_bytes=1024, segment_bytes=2048,
            block_cache_bytes=self.dice.choice((0, 100_000)), idle_close_ms=200,
        )  # fmt: skip
        self.store = self._outage()
        self.durability = self.dice.choice(("fsync", "disk", "memory"))

    def _outage(self) -> Outage:
        segments = self.tiered.engine.core.segments
        segments.store = store = Outage(segments.store, self.dice)  # type: ignore[assignment]
        return store

    def both(self, call: Any) -> None:
        """Makes one call to both engines; either both answer or both refuse alike."""
        answers = []
        for engine in (self.plain.engine, self.tiered.engine):
            try:
                answers.append((call(engine), ""))
            except (TopicFull, RecordTooLarge) as error:
                answers.append((None, error.code))
        assert answers[0] == answers[1]

    def restart(self) -> None:
        self.store.share = 0.0
        before = self.looks(self.tiered)
        self.tiered.restart(self.dice.choice(SURVIVABLE))
        self.store = self._outage()
        assert self.looks(self.tiered) == before

    @contextmanager
    def reachable(self) -> Iterator[None]:
        share, self.store.share = self.store.share, 0.0
        yield
        self.store.share = share

    def looks(self, world: World) -> list[Look]:
        return [world.look(name) for name in TOPICS]

    def compare(self) -> None:
        with self.reachable():
            assert self.looks(self.tiered) == self.looks(self.plain)

    def advance(self, ms: int) -> None:
        for world in (self.plain, self.tiered):
            world.clock.advance(ms)
        # Both look at their TTLs at the same moments, and so see the same floors.
        for world in (self.plain, self.tiered):
            for name in TOPICS:
                world.engine.state(name)

    # -- calls -------------------------------------------------------------------------------

    def config(self, name: str) -> dict[str, object]:
        dice = self.dice
        found: dict[str, object] = {
            "durability": self.durability, "type": "queue" if name == "jobs" else "log",
            "discard": "reject" if name == "jobs" else dice.choice(("old", "old", "reject")),
        }  # fmt: skip
        caps = {"cap_records": (0, 12, 30), "cap_bytes": (0, 900, 3000), "ttl_ms": (0, 0, 700)}
        return found | {what: dice.choice(values) for what, values in caps.items()}

    def step(self) -> None:
        dice, name = self.dice, self.dice.choice(TOPICS)
        act = dice.choice((
            "append", "append", "append", "delete", "trim", "config", "seal", "seal", "hold",
            "unhold", "time", "restart", "store", "ack", "single",
        ))  # fmt: skip
        if act == "append":
            tags = [dice.choice("xyz") for _ in range(dice.choice((1, 3, 9)))]
            records = [{"data": "d" * dice.choice((1, 40, 150)), "tag": tag} for tag in tags]
            self.both(lambda engine: engine.append(name, records))
        elif act == "single":
            self.both(lambda engine: engine.append(name, [{"data": 1}]))
        elif act == "delete":
            tag, bound = dice.choice("xyz"), dice.randint(1, self.head(name) + 1)
            with self.reachable():
                self.both(lambda engine: engine.delete(name, match=tag, before_seq=bound))
        elif act == "trim":
            bound = dice.randint(1, self.head(name) // 2 + 1)
            self.both(lambda engine: engine.delete(name, before_seq=bound))
        elif act == "config":
            config = self.config(name)
            self.both(lambda engine: engine.put_topic(name, config)[1:])
        elif act == "hold":
            seq = dice.randint(0, self.head(name))
            kept = Hold(max_bytes=dice.choice((None, 500, 2000)), max_age_ms=500)
            self.both(lambda e: e.put_cursor(name, "c", seq=seq, reset=True, hold=kept).seq)
        elif act == "unhold":
            self.both(lambda engine: engine.delete_cursor(name, "c"))
        elif act == "ack":
            with self.reachable():
                self.both(lambda engine: _consume(engine))
        elif act == "time":
            self.advance(dice.choice((50, 300, 600)))
        elif act == "store":
            self.store.share = dice.choice((0.0, 0.3, 1.0))
        elif act == "seal":
            self.tiered.engine.checkpoint()
        else:
            self.restart()

    def head(self, name: str) -> int:
        return self.plain.engine.state(name).head_seq


def _consume(engine: Engine) -> list[int]:
    taken = engine.claim("jobs", "w", 1).seqs
    if taken:
        engine.ack("jobs", "w", taken)
    return taken


def _live(pair: Pair) -> None:
    for name in TOPICS:
        config = pair.config(name)
        pair.both(lambda engine, n=name, c=config: engine.put_topic(n, c)[1:])
    for _ in range(60):
        pair.step()
        pair.compare()
    pair.restart()
    pair.compare()


@pytest.mark.parametrize("seed", quick_first(range(16), 6))
def test_what_is_shown_depends_on_no_tier_no_restart_and_no_outage(seed: int) -> None:
    """Counts, floors, reasons and records are those of a log that never left the memory."""
    _live(Pair(seed))


class Stalling(Syncer):
    """A disk whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Shard] = []

    def kick(self, shard: Shard) -> None:
        self.asked.append(shard)

    def end(self) -> None:
        asked, self.asked = self.asked, []
        for shard in asked:
            shard.sync()
            shard.prepare()


class Stalled:
    """One topic whose calls wait for syncs that end late, while time passes and readers look."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(sync_interval_ms=10**9, wal_shards=self.dice.choice((1, 2)))
        self.durability = self.dice.choice(("fsync", "fsync", "disk", "memory"))
        self.world.engine.put_topic("t", self.config())
        self.stalling = self.stall()

    def stall(self) -> Stalling:
        core, stalling = self.world.engine.core, Stalling()
        core.log.syncer = stalling
        return stalling

    def config(self) -> dict[str, object]:
        caps = {"cap_records": (0, 6, 12), "cap_bytes": (0, 0, 400), "ttl_ms": (0, 500, 900)}
        found = {what: self.dice.choice(values) for what, values in caps.items()}
        return {"durability": self.durability, **found}

    def step(self) -> None:
        dice, engine = self.dice, self.world.engine
        act = dice.choice((
            "append", "append", "append", "delete", "trim", "config", "hold", "unhold", "time",
            "time", "look", "end", "flush", "restart",
        ))  # fmt: skip
        head = engine.core.by_name["t"].head
        if act == "append":
            tags = [dice.choice("xyz") for _ in range(dice.choice((1, 2, 5)))]
            engine.submit_append("t", request_of([{"data": 0, "tag": tag} for tag in tags]))
        elif act == "delete":
            engine.submit_delete("t", before_seq=None, match=dice.choice("xyz"))
        elif act == "trim":
            engine.submit_delete("t", before_seq=dice.randint(1, head + 1), match=None)
        elif act == "config":
            engine.submit_put("t", self.config())
        elif act == "hold":
            kept = Hold(max_bytes=dice.choice((None, 200)), max_age_ms=dice.choice((300, 2000)))
            given = Given(seq=dice.randint(0, head), reset=True, hold=kept)
            engine.submit_put_cursor("t", "c", given)
        elif act == "unhold":
            engine.submit_delete_cursor("t", "c")
        elif act == "time":
            self.world.clock.advance(dice.choice((100, 400)))
        elif act == "look":
            engine.diff("t")
        elif act == "flush":
            engine.flush()
        elif act == "end":
            self.stalling.end()
            engine.poll()
        else:
            self.restart()

    def restart(self) -> None:
        """What was seen when all had arrived is seen again behind a kill."""
        self.world.engine.flush()
        self.stalling.end()
        self.world.engine.poll()
        before = self.world.look("t")
        self.world.restart(self.dice.choice(SURVIVABLE))
        assert self.world.look("t") == before
        self.stalling = self.stall()


def _stall(seed: int) -> None:
    stalled = Stalled(seed)
    for _ in range(80):
        stalled.step()
    stalled.restart()


@pytest.mark.parametrize("seed", quick_first(range(30), 6))
def test_a_floor_seen_while_something_was_on_its_way_is_the_same_after_a_restart(seed: int) -> None:
    """Floors, reasons and the account do not depend on when a sync ended."""
    _stall(seed)


class Crashing:
    """Two topics on a machine that crashes, with a store that fails at any call."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.world = World(
            cold_dir="/cold", hot_bytes=0, resident_bytes=0, block_cache_bytes=0, block_bytes=512,
            own_segment_bytes=1024, segment_bytes=2048, idle_close_ms=200,
        )  # fmt: skip
        self.classes = {name: dice.choice(("fsync", "disk")) for name in TOPICS}
        for name in TOPICS:
            self.put(name)

    def put(self, name: str) -> None:
        dice, is_queue = self.dice, name == "jobs"
        self.world.engine.put_topic(name, {
            "durability": self.classes[name], "type": "queue" if is_queue else "log",
            "discard": "reject" if is_queue else "old",
            "cap_records": dice.choice((0, 12, 40)), "cap_bytes": dice.choice((0, 1500)),
            "ttl_ms": dice.choice((0, 0, 700)),
        })  # fmt: skip

    def step(self) -> None:
        dice, engine, name = self.dice, self.world.engine, self.dice.choice(TOPICS)
        act = dice.choice(("append", "append", "append", "delete", "put", "seal", "time", "sync"))
        if act == "append":
            for _ in range(dice.choice((1, 4))):
                records = [{"data": "d" * dice.choice((1, 90)), "tag": dice.choice("xy")}] * 2
                with contextlib.suppress(TopicFull):
                    engine.append(name, records)
        elif act == "delete":
            engine.delete(name, match=dice.choice("xy"), before_seq=dice.randint(1, 99))
        elif act == "put":
            self.put(name)
        elif act == "seal":
            segments = engine.core.segments
            store = segments.store
            segments.store = failing = Outage(store, dice)  # type: ignore[assignment]
            failing.share = dice.choice((0.0, 0.3))
            engine.checkpoint()
            segments.store = store
        elif act == "time":
            self.world.clock.advance(dice.choice((60, 300)))
            engine.maintain(1.0)
        else:
            engine.sync()

    def crash(self) -> None:
        engine = self.world.engine
        engine.sync()
        durable = {name: self.world.look(name) for name in TOPICS}
        for _ in range(self.dice.choice((0, 1, 4))):
            self.step()
        before = {name: self.world.look(name) for name in TOPICS}
        self.world.restart("crash", self.dice.choice((LOSE_ALL, *CrashPlan.standard())))
        for name in TOPICS:
            self.compare(name, durable[name], before[name])

    def compare(self, name: str, durable: Look, before: Look) -> None:
        after, engine = self.world.look(name), self.world.engine
        if self.classes[name] == "fsync":
            assert after == before
        assert set(durable.seqs) & set(before.seqs) <= set(after.seqs)
        was, now = _states(before), _states(after)
        for seq, state in was.items():
            assert now[seq] == state or now[seq] == "crash" or state == "evicted", (seq, state)
        evicted = [seq for seq, state in now.items() if state == "evicted" != was.get(seq)]
        assert not evicted
        assert after.head >= before.head
        assert not list(examine(engine.core, engine.core.by_name[name]))


def _states(look: Look) -> dict[int, str]:
    return {n: state for first, last, state in look.ranges for n in range(first, last + 1)}


def _crash(seed: int) -> None:
    crashing = Crashing(seed)
    for _ in range(4):
        for _ in range(12):
            crashing.step()
        crashing.crash()


@pytest.mark.parametrize("seed", quick_first(range(16), 6))
def test_a_crash_costs_a_capped_topic_its_last_moments_and_nothing_else(seed: int) -> None:
    """What was durable and live stays so; a topic that rejects evicts nothing; counts are exact."""
    _crash(seed)


@pytest.mark.full(share=2)
@pytest.mark.timeout(0)
def test_many_more_histories_of_retention(deadline: float) -> None:
    """The same, for as long as there is time."""
    seed = 1000
    while time.monotonic() < deadline:
        _live(Pair(seed))
        _stall(seed)
        _crash(seed)
        seed += 1
