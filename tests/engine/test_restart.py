"""Restarts: the same topic before and after, however the process ended, whatever was going on."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from tests.support.engines import (
    ENDINGS,
    PATH,
    SURVIVABLE,
    Ending,
    World,
    read_all,
    tagged,
    values,
)
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.engine.upkeep.checkpoint import take
from topics.settings import KIB
from topics.storage import snapshot
from topics.storage.fs import join, opened
from topics.testing import FakeClock, FakeDisk, Lateness


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("restarts", [1, 3])
def test_an_empty_directory_restarts(world: World, how: Ending, restarts: int) -> None:
    """Nothing written, nothing lost."""
    for _ in range(restarts):
        world.restart(how)
    assert world.engine.list_topics() == []


@pytest.mark.parametrize("how", ENDINGS)
def test_seqs_go_on_behind_everything_that_was_acknowledged(world: World, how: Ending) -> None:
    """No seq is handed out twice within an epoch."""
    world.engine.put_topic("t", {"durability": "disk"})
    heads = []
    for _ in range(5):
        heads.append(world.engine.append("t", [{"data": 0}] * 3))
        world.restart(how)
    assert all(a.last_seq < b.first_seq for a, b in pairwise(heads))
    assert len({done.epoch for done in heads}) == 1


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("cuts", [1, 2, 5])
def test_a_recovery_cut_short_can_be_repeated(world: World, how: Ending, cuts: int) -> None:
    """Being killed while starting loses nothing."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.append("t", tagged("x", "y", "x"))
    world.engine.checkpoint()
    world.fill("t", 3)
    world.engine.delete("t", match="x")
    before = world.look("t")
    world.end(how)
    for cut in range(cuts):
        steps = Engine.opening("/data", clock=world.clock, fs=world.disk, settings=world.settings)
        for _ in range(cut + 1):
            next(steps, None)
        world.disk = world.disk.kill()
        steps.close()
    world.engine = world.open()
    assert world.look("t") == before


@pytest.mark.parametrize("how", SURVIVABLE)
def test_a_killed_checkpoint_leaves_everything_as_it_was(world: World, how: Ending) -> None:
    """A checkpoint that was cut anywhere neither loses nor doubles a record."""
    for n in range(4):
        world.engine.append(f"t{n}", tagged("x", "y", None))
    names = world.engine.list_topics()
    for cut in range(12):
        assert world.engine.begin_checkpoint()
        for _ in range(cut):
            world.engine.maintain(0.0)
        world.engine.append("t0", [{"data": cut}])
        world.engine.delete("t1", match="x")
        before = [world.look(name) for name in names]
        world.restart("kill" if how == "kill" or cut % 2 else "clean")
        assert [world.look(name) for name in names] == before


@pytest.mark.parametrize("size", [10, 5_000, 40_000, 200_000])
def test_records_larger_than_a_log_file_are_kept(world: World, size: int) -> None:
    """A group that does not fit the usual file gets one that it fits."""
    for n in range(6):
        world.engine.append("t", [{"data": "x" * size}, {"data": n}])
    world.restart("kill")
    got = [v for page in read_all(world.engine, "t") for v in values(page)]
    assert got == [v for n in range(6) for v in ("x" * size, n)]


def test_the_log_is_trimmed_and_goes_on(world: World) -> None:
    """Checkpoints keep the log short; what they sealed is read from segments."""
    sizes = []
    for round_ in range(6):
        for n in range(30):
            world.engine.append("t", [{"data": [round_, n, "x" * 1000]}])
        world.engine.checkpoint()
        sizes.append(sum(1 for name in world.disk.files() if name.endswith(".wal")))
    assert max(sizes) <= 2 * sizes[1]
    world.restart("kill")
    got = [v[:2] for page in read_all(world.engine, "t") for v in values(page)]
    assert got == [[round_, n] for round_ in range(6) for n in range(30)]


@pytest.mark.parametrize("trigger", ["bytes", "records", "age"])
def test_sealing_happens_by_itself(trigger: str) -> None:
    """Enough bytes, enough records or enough time bring a checkpoint about."""
    limits: dict[str, dict[str, Any]] = {
        "bytes": {"seal_bytes": 5_000},
        "records": {"seal_records": 20},
        "age": {"seal_age_ms": 1_000},
    }
    world = World(**limits[trigger])
    for _ in range(40):
        world.engine.append("t", [{"data": "x" * 300}])
        world.clock.advance(60)
        world.engine.maintain(1.0)
    assert [name for name in world.disk.files() if name.endswith(".seg")]
    world.restart("kill")
    assert world.engine.state("t").count == 40


def log_files(world: World) -> list[str]:
    return [name for name in world.disk.files() if name.endswith(".wal")]


@pytest.mark.parametrize("how", SURVIVABLE)
def test_what_was_recovered_is_sealed_like_what_was_written(how: Ending) -> None:
    """Restarts do not keep a checkpoint from coming, and it makes the log short again."""
    world = World(seal_age_ms=1_000)
    world.fill("t", 20)
    for _ in range(5):
        world.restart(how)
    for _ in range(4):
        world.clock.advance(1_100)
        world.engine.maintain(1.0)
        world.engine.maintain(1.0)
    assert len(log_files(world)) <= 2 * world.settings.wal_shards
    world.restart(how)
    assert world.engine.state("t").count == 20


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_a_process_that_ends_at_each_start_adds_nothing_to_the_disk(durability: str) -> None:
    """However short its lives, the log is as long after many of them as after some."""
    world = World()
    world.engine.put_topic("t", {"durability": durability})
    world.fill("t", 5)
    longest = []
    for _ in range(4):
        sizes = []
        for _ in range(40):
            world.restart("kill")
            sizes.append(len(log_files(world)))
        longest.append(max(sizes))
    assert longest[3] <= longest[1]
    assert world.look("t").seqs == (1, 2, 3, 4, 5)


def test_memory_topics_may_come_after_readiness(world: World) -> None:
    """An engine is ready without them, and a call that needs one brings it back first."""
    for name in ("m1", "m2", "m3", "m4"):
        world.engine.put_topic(name, {"durability": "memory"})
        world.engine.append(name, tagged("x", None))
    looks = {name: world.look(name) for name in world.engine.list_topics()}
    world.end("kill")
    steps = Engine.opening("/data", clock=world.clock, fs=world.disk, settings=world.settings)
    while True:
        try:
            assert 0 <= next(steps) <= 1
        except StopIteration as ready:
            world.engine = ready.value
            break
    assert world.look("m1") == looks["m1"]
    assert world.engine.append("m2", [{"data": 0}]).first_seq == 3
    assert world.engine.delete("m3", match="x").deleted == 1
    world.engine.put_topic("m4", {"durability": "fsync"})
    world.engine.finish_recovery()
    assert world.look("m4").seqs == (1, 2)
    world.restart("kill")
    assert [world.look(name).count for name in ("m1", "m2", "m3", "m4")] == [2, 3, 1, 2]


def test_a_real_directory_restarts_with_threads(tmp_path: Any) -> None:
    """The same on the real filesystem, with the sync threads running."""
    path = str(tmp_path / "data")
    for round_ in range(3):
        with Engine.open(path) as engine:
            engine.put_topic("f", {"durability": "fsync"})
            for name in ("f", "d"):
                engine.append(name, [{"data": round_, "tag": "t"}] * 10)
            engine.delete("d", match="t", before_seq=round_ * 10 + 3)
            if round_ == 1:
                engine.checkpoint()
            assert engine.state("f").count == 10 * (round_ + 1)
            assert engine.state("d").earliest_seq == round_ * 10 + 3


# -- against a model -----------------------------------------------------------------------------


class Model:
    """One topic as the contract describes it, in the plainest way."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.head = 0
        # seq -> (time, tag, bytes); and what became of the others.
        self.live: dict[int, tuple[int, str | None, int]] = {}
        self.gone: dict[int, str] = {}
        self.last_ts = 0

    def expire(self, now: int) -> None:
        ttl = self.config.get("ttl_ms", 0)
        for seq, (ts, _, _) in list(self.live.items()):
            if ttl and now - ts > ttl:
                self.lose(seq, "expired")

    def evict(self) -> None:
        cap, cap_bytes = self.config.get("cap_records", 0), self.config.get("cap_bytes", 0)
        while self.live and (
            (cap and len(self.live) > cap)
            or (cap_bytes and sum(size for _, _, size in self.live.values()) > cap_bytes)
        ):
            self.lose(min(self.live), "evicted")

    def lose(self, seq: int, state: str) -> None:
        del self.live[seq]
        self.gone[seq] = state

    def append(self, now: int, tags: list[str | None], texts: list[str]) -> None:
        self.expire(now)
        self.last_ts = max(self.last_ts, now)
        for tag, text in zip(tags, texts, strict=True):
            self.head += 1
            size = len(f'{{"$seq":{self.head},"$ts":{self.last_ts},"data":{text}}},')
            self.live[self.head] = (self.last_ts, tag, size)
        self.evict()

    def delete(self, now: int, before: int | None, prefix: str | None) -> int:
        self.expire(now)
        count = 0
        for seq, (_, tag, _) in list(self.live.items()):
            below = before is None or seq < before
            if below and (prefix is None or (tag is not None and tag.startswith(prefix))):
                self.lose(seq, "deleted")
                count += 1
        return count

    def look(self, now: int) -> tuple[Any, ...]:
        self.expire(now)
        lost = [seq for seq, state in self.gone.items() if state != "deleted"]
        earliest = min(self.live, default=self.head + 1)
        states = tuple(self.gone.get(seq, "live") for seq in range(1, self.head + 1))
        size = sum(size for _, _, size in self.live.values())
        return (
            self.head, earliest, max(lost, default=0) + 1, len(self.live), size,
            tuple(self.live), states,
        )  # fmt: skip


def seen(world: World) -> tuple[Any, ...]:
    look = world.look("t")
    states = tuple(state for a, b, state in look.ranges for _ in range(a, b + 1))
    return (
        look.head, look.earliest, look.evict_floor, look.count, look.bytes, look.seqs, states
    )  # fmt: skip


def step(world: World, model: Model, dice: random.Random) -> None:
    """One random operation on both."""
    now = world.clock.wall_ms()
    act = dice.choices(
        ("append", "delete", "config", "time", "checkpoint", "slice", "restart"),
        (10, 4, 2, 4, 1, 3, 1),
    )[0]
    if act == "append":
        count = dice.choice((1, 1, 1, 2, 5, 30))
        tags = [dice.choice((None, "a", "ab", "b", "b:1")) for _ in range(count)]
        texts = ['"' + "x" * dice.choice((0, 3, 40, 300)) + '"' for _ in range(count)]
        records = [
            {"data": text[1:-1], **({} if tag is None else {"tag": tag})}
            for tag, text in zip(tags, texts, strict=True)
        ]
        world.engine.append("t", records)
        model.append(now, tags, texts)
    elif act == "delete":
        before = dice.choice((None, None, dice.randint(0, model.head + 5)))
        prefix = dice.choice(("a", "b", "b:", "")) if before is None else dice.choice((None, "a"))
        match = None if prefix is None else ["tag", "Glob", prefix + "*"]
        done = world.engine.delete("t", before_seq=before, match=match)
        assert done.deleted == model.delete(now, before, prefix)
    elif act == "config":
        model.expire(now)
        model.config = {
            "ttl_ms": dice.choice((0, 0, 500, 3000)),
            "cap_records": dice.choice((0, 0, 7, 60)),
            "cap_bytes": dice.choice((0, 0, 500, 5000)),
        }
        world.engine.put_topic("t", {**model.config, "durability": dice.choice(("disk", "fsync"))})
        model.expire(now)
        model.evict()
    elif act == "time":
        world.clock.advance(dice.choice((1, 100, 700)))
        if dice.random() < 0.2:
            world.clock.jump_wall(-dice.randint(0, 400))
    elif act == "checkpoint":
        world.engine.checkpoint()
    elif act == "slice":
        if not world.engine.maintenance.is_running and dice.random() < 0.5:
            world.engine.begin_checkpoint()
        world.engine.maintain(0.0)
    else:
        world.restart(dice.choice(SURVIVABLE))


@pytest.mark.parametrize("seed", quick_first(range(40), 15))
def test_random_histories_agree_with_the_model(seed: int) -> None:
    """After any mix of writes, deletes, configs, time, sealing and restarts, all numbers agree."""
    dice = random.Random(seed)
    world = World(
        disk=FakeDisk(seed), wal_shards=dice.choice((1, 2)),
        block_bytes=dice.choice((512, 4 * KIB)),
        own_segment_bytes=dice.choice((2 * KIB, 64 * KIB)), segment_bytes=4 * KIB,
        resident_bytes=dice.choice((0, 4 * KIB)), block_cache_bytes=dice.choice((0, 8 * KIB)),
    )  # fmt: skip
    world.clock = FakeClock()
    world.restart("clean")
    world.engine.put_topic("t")
    model = Model()
    for _ in range(60):
        step(world, model, dice)
        if dice.random() < 0.4:
            assert seen(world) == model.look(world.clock.wall_ms())
    assert seen(world) == model.look(world.clock.wall_ms())


def test_tickets_of_many_topics_end_in_order(world: World) -> None:
    """Writes submitted together are applied per topic in the order of submission."""
    for name, durability in (("a", "fsync"), ("b", "disk"), ("c", "memory"), ("d", "ephemeral")):
        world.engine.put_topic(name, {"durability": durability})
    tickets = [
        world.engine.submit_append(name, request_of([{"data": n}]))
        for n in range(10)
        for name in "abcd"
    ]
    world.engine.sync()
    assert [ticket.result.first_seq for ticket in tickets] == [
        n + 1 for n in range(10) for _ in "abcd"
    ]
    for name in "abcd":
        assert values(world.engine.diff(name)) == list(range(10))


def test_what_a_start_copied_counts_once(world: World) -> None:
    """A ceiling that stands only where a crash of the machine may still take it is no promise.

    The creation and a change of a topic are written and not synced, and the process is killed. The
    next start copies both. Who then read both places would take the second creation for a newer
    one, with the ceiling that the change had ended, and acknowledge records under it.
    """
    Lateness().attach(world.engine)
    for ttl_ms in (0, 1000):
        world.engine.submit_put("t", {"ttl_ms": ttl_ms})
        world.engine.flush()
    world.restart("kill")
    Lateness().attach(world.restart("clean"))
    ticket = world.engine.submit_append("t", request_of([{"data": 0}] * 3))
    world.engine.flush()
    head = ticket.result.last_seq if ticket.done else 0
    world.restart("crash")
    assert world.engine.state("t").head_seq >= head


def spoil_newest_snapshot(world: World) -> None:
    folder = f"{PATH}/snap"
    newest = max(snapshot.numbers(world.disk, folder))
    with opened(world.disk, join(folder, snapshot.file_name(newest))) as file:
        file.truncate(file.size() - 1)
        file.sync()


@pytest.mark.parametrize("pieces", range(5))
def test_the_older_snapshot_and_the_log_come_to_the_same(world: World, pieces: int) -> None:
    """Also where the machine crashed before MARKS was synced, and another start came since.

    The log was durable up to the newer snapshot, and MARKS did not know that yet. What came after
    the log was cut for it, and before its topic was recorded, was perhaps not durable at all.
    """
    for name in ("a", "t"):
        world.engine.put_topic(name, {"durability": "disk"})
        world.fill(name, 3)
    world.engine.checkpoint()
    world.fill("t", 3)
    world.fill("a", 3)
    steps = take(world.engine.core)
    for _ in range(pieces):
        next(steps)
        world.fill("t", 1)
    list(steps)
    world.restart("crash")
    world.fill("t", 1)
    before = world.look("t"), world.look("a")
    assert before[0].seqs[:6] == before[1].seqs[:6] == (1, 2, 3, 4, 5, 6)
    world.end("kill")
    spoil_newest_snapshot(world)
    world.engine = world.open()
    assert (world.look("t"), world.look("a")) == before
