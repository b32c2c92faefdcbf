"""The four commit classes: what each promises, and that a class can change in place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import permutations

import pytest

from tests.support.engines import (
    ENDINGS,
    SURVIVABLE,
    Ending,
    Look,
    World,
    explained,
    gap,
    read_all,
    seqs,
    tagged,
)
from tests.support.tiers import quick_first
from topics.engine.commit.syncing import Syncer
from topics.engine.state.write_request import request_of
from topics.storage.frames import Mark
from topics.storage.wal import Shard
from topics.testing import CrashPlan
from topics.types import CRASH

CLASSES = ("ephemeral", "memory", "disk", "fsync")


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("how", ENDINGS)
def test_a_topic_is_there_after_any_end(world: World, durability: str, how: Ending) -> None:
    """Name and config survive in every class, and the topic can be written again."""
    config, _ = world.engine.put_topic("t", {"durability": durability, "ttl_ms": 10**9})
    world.fill("t", 3)
    world.restart(how)
    assert world.engine.state("t").config == config
    head = world.engine.state("t").head_seq
    assert world.engine.append("t", [{"data": 1}]).first_seq == head + 1


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_process_that_ends_loses_nothing_it_wrote(
    world: World, durability: str, how: Ending, checkpoint: bool
) -> None:
    """What was acknowledged is with the kernel: a stop or a kill keeps it, floors and epoch too."""
    world.engine.put_topic("t", {"durability": durability})
    world.engine.append("t", tagged("x", None, "x", None))
    world.engine.delete("t", match="x")
    if checkpoint:
        world.engine.checkpoint()
    world.fill("t", 2)
    before, epoch = world.look("t"), world.engine.state("t").epoch
    world.restart(how)
    assert world.look("t") == before
    assert world.engine.state("t").epoch == epoch


@pytest.mark.parametrize("plan", CrashPlan.standard(), ids=lambda plan: plan.name)
def test_fsync_survives_any_crash(world: World, plan: CrashPlan) -> None:
    """An acknowledged write of class fsync is there, and no alarm is raised."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 5)
    world.engine.delete("t", before_seq=3)
    before = world.look("t")
    world.restart("crash", plan)
    assert world.look("t") == before


@pytest.mark.parametrize("plan", CrashPlan.standard(), ids=lambda plan: plan.name)
def test_disk_tells_what_a_crash_took(world: World, plan: CrashPlan) -> None:
    """Synced records stay; what was acknowledged behind them is there or in a crash tombstone."""
    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 3)
    world.engine.sync()
    world.fill("t", 4)
    epoch = world.engine.state("t").epoch
    world.restart("crash", plan)
    state = world.engine.state("t")
    assert (state.epoch, state.head_seq >= 7) == (epoch, True)
    pages = list(read_all(world.engine, "t"))
    got = [seq for page in pages for seq in seqs(page)]
    told = [page.tombstone for page in pages if page.tombstone]
    assert got[:3] == [1, 2, 3]
    assert got == list(range(1, len(got) + 1))
    assert [gap(t) for t in told] == [(len(got) + 1, state.head_seq, "crash")]
    assert world.engine.gauges().tally.lost == {CRASH: state.head_seq - len(got)}
    assert world.engine.append("t", [{"data": 0}]).first_seq == state.head_seq + 1


def test_an_idle_disk_topic_raises_no_alarm_after_a_crash(world: World) -> None:
    """A topic that was quiet for a while and synced has nothing that could be missing."""
    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 3)
    for _ in range(300):
        world.clock.advance(100)
        world.engine.maintain(1.0)
    world.restart("crash")
    look = world.look("t")
    assert (look.head, look.seqs, look.tombstones) == (3, (1, 2, 3), ())


@pytest.mark.parametrize("discard", ["old", "reject"])
@pytest.mark.parametrize("cap", [{"cap_records": 100}, {"cap_bytes": 6_000}])
def test_what_was_durable_and_within_the_cap_is_there_after_a_crash(
    world: World, cap: dict[str, int], discard: str
) -> None:
    """The seqs that a crash may have taken are many, and take no room: they push nothing out."""
    world.engine.put_topic("t", {"durability": "disk", "discard": discard, **cap})
    for _ in range(3):
        world.engine.append("t", [{"data": 0}] * 30)
        world.engine.sync()
    before = world.look("t")
    assert before.count == 90
    world.restart("crash")
    after = world.look("t")
    assert after.seqs == before.seqs
    assert after.ranges == ((1, 90, "live"), (91, after.head, "crash"))
    assert after.head > 100


def test_a_crash_gives_back_no_more_than_the_lost_records_had_pushed_out(world: World) -> None:
    """What is lost with the machine has pushed nothing out; what was pushed out before stays so."""
    world.engine.put_topic("t", {"durability": "disk", "cap_records": 5})
    world.fill("t", 7)
    world.engine.sync()
    world.fill("t", 2)
    assert world.look("t").seqs == (5, 6, 7, 8, 9)
    world.restart("crash")
    after = world.look("t")
    assert after.seqs == (3, 4, 5, 6, 7)
    assert after.ranges == ((1, 2, "evicted"), (3, 7, "live"), (8, after.head, "crash"))


class Stubborn(Syncer):
    """A disk that has not got round to syncing yet."""

    def kick(self, shard: Shard) -> None:
        pass

    def wait(self, shard: Shard, upto: Mark) -> None:
        raise AssertionError("nothing here may wait")


@pytest.fixture
def stubborn(world: World) -> Iterator[World]:
    world.engine.put_topic("d", {"durability": "disk"})
    world.fill("d", 1)
    world.engine.sync()
    log = world.engine.core.log
    patient, log.syncer = log.syncer, Stubborn()
    yield world
    log.syncer = patient
    world.engine.sync()


@pytest.mark.parametrize("batches", [[1] * 400, [33, 100], [30, 5, 200, 3000], [64], [500]])
def test_no_disk_write_is_acknowledged_above_a_durable_ceiling(
    stubborn: World, batches: list[int]
) -> None:
    """A write is answered before its sync only if a crash would still know that it may exist."""
    engine = stubborn.engine
    topic = engine.core.by_name["d"]
    for count in batches:
        ticket = engine.submit_append("d", request_of([{"data": 0}] * count))
        engine.flush()
        if ticket.done:
            assert ticket.result.last_seq <= topic.ceiling.seq
    assert engine.state("d").head_seq <= topic.ceiling.seq


class Stalling(Syncer):
    """A disk whose syncs end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Shard] = []

    def kick(self, shard: Shard) -> None:
        self.asked.append(shard)

    def wait(self, shard: Shard, upto: Mark) -> None:
        shard.sync()

    def end(self) -> None:
        for shard in self.asked:
            shard.sync()
            shard.prepare()
        self.asked.clear()


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_is_there_or_told_however_syncs_stall(seed: int) -> None:
    """Ceilings that are raised, closed and stalled in any order bound every acknowledged seq."""
    dice = random.Random(seed)
    world = World(idle_close_ms=1000, sync_interval_ms=10**9, wal_shards=1)
    engine, stalling = world.engine, Stalling()
    engine.put_topic("t", {"durability": "disk"})
    engine.core.log.syncer = stalling
    tickets = []
    for _ in range(60):
        act = dice.choice(("write", "write", "idle", "end"))
        if act == "write":
            for _ in range(dice.choice((1, 20, 40))):
                tickets.append(engine.submit_append("t", request_of([{"data": 0}])))
                engine.flush()
        elif act == "idle":
            for _ in range(3):
                world.clock.advance(600)
                engine.maintain()
        else:
            stalling.end()
            engine.poll()
    acknowledged = [ticket.result.last_seq for ticket in tickets if ticket.done]
    epoch = engine.state("t").epoch
    world.restart("crash")
    told = world.look("t").ranges
    assert {state for _, _, state in told} <= {"live", "crash"}
    assert max(acknowledged, default=0) <= told[-1][1]
    assert world.engine.append("t", [{"data": 1}]).first_seq > max(acknowledged, default=0)
    assert world.engine.state("t").epoch == epoch


@pytest.mark.parametrize(("durability", "is_done"), [("memory", True), ("fsync", False)])
def test_only_fsync_waits_for_the_disk(world: World, durability: str, is_done: bool) -> None:
    """memory is acknowledged at once, fsync is neither acknowledged nor visible before its sync."""
    world.engine.put_topic("t", {"durability": durability})
    log = world.engine.core.log
    patient, log.syncer = log.syncer, Stubborn()
    ticket = world.engine.submit_append("t", request_of([{"data": 0}]))
    world.engine.flush()
    assert ticket.done == is_done
    assert world.engine.diff("t").count == int(is_done)
    log.syncer = patient
    world.engine.sync()
    assert ticket.done
    assert world.engine.diff("t").count == 1


def test_memory_opens_with_a_new_epoch_after_a_crash(world: World) -> None:
    """A head that can not be proved belongs to a new instance; stale cursors are told."""
    world.engine.put_topic("t", {"durability": "memory"})
    world.fill("t", 3)
    before = world.engine.state("t")
    world.restart("crash")
    assert world.engine.state("t").epoch > before.epoch
    told = world.engine.diff("t", from_seq=3, epoch=before.epoch).tombstone
    assert told is not None
    assert told.reason == "recreated"


def test_ephemeral_keeps_its_head_through_a_clean_restart(world: World) -> None:
    """Seqs go on, the epoch stays, and what is gone is told as restart."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.fill("t", 3)
    epoch = world.engine.state("t").epoch
    world.restart("clean")
    state = world.engine.state("t")
    assert (state.epoch, state.head_seq, state.count, state.earliest_seq) == (epoch, 3, 0, 4)
    page = world.engine.diff("t", from_seq=1)
    assert gap(page.tombstone) == (2, 3, "restart")
    assert world.engine.diff("t", from_seq=3).tombstone is None
    assert world.engine.append("t", [{"data": 0}]).first_seq == 4
    world.restart("clean")
    assert explained(world.engine, "t") == ((1, 4, "restart"),)


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_ephemeral_has_a_new_epoch_when_it_was_not_stopped(world: World, how: Ending) -> None:
    """Without a clean stop nobody knows the head: a new instance, and no seq is passed twice."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.fill("t", 3)
    before = world.engine.state("t")
    world.restart(how)
    after = world.engine.state("t")
    assert after.epoch > before.epoch
    assert after.count == 0
    told = world.engine.diff("t", from_seq=1, epoch=before.epoch).tombstone
    assert told is not None
    assert told.reason == "recreated"


@pytest.mark.parametrize("how", ENDINGS)
def test_a_checkpoint_keeps_the_head_of_an_ephemeral_topic(world: World, how: Ending) -> None:
    """Seqs handed out before a checkpoint are not handed out again."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.fill("t", 4)
    world.engine.checkpoint()
    world.engine.put_topic("t", {"durability": "ephemeral", "cap_records": 9})
    world.restart(how)
    assert world.engine.state("t").head_seq == 4
    assert world.engine.append("t", [{"data": 0}]).first_seq == 5


def test_ephemeral_records_never_reach_the_disk(world: World) -> None:
    """Neither the log nor a segment ever holds their data."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.engine.append("t", [{"data": "TOP-SECRET", "tag": "HIDDEN-TAG"}])
    world.engine.delete("t", match="nobody")
    world.engine.checkpoint()
    world.engine.sync()
    everything = b"".join(world.disk.files().values())
    assert b"TOP-SECRET" not in everything
    assert b"HIDDEN-TAG" not in everything


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("deleted", ["all", "some", "middle"])
def test_a_delete_in_an_ephemeral_topic_is_never_told_as_a_loss(
    world: World, how: Ending, deleted: str
) -> None:
    """After a clean stop the account still knows what was deleted on purpose."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.engine.append("t", tagged("a", "b", "c"))
    before = {"all": 4, "some": 2, "middle": 0}[deleted]
    if before:
        world.engine.delete("t", before_seq=before)
    else:
        world.engine.delete("t", match="b")
    epoch = world.engine.state("t").epoch
    world.restart(how)
    if how == "kill":
        assert world.engine.state("t").epoch > epoch
        return
    states = [s for a, b, s in explained(world.engine, "t") for _ in range(a, b + 1)]
    expected = {
        "all": ["deleted"] * 3,
        "some": ["deleted", "restart", "restart"],
        "middle": ["restart", "deleted", "restart"],
    }
    assert states == expected[deleted]
    assert (world.engine.diff("t").tombstone is None) == (deleted == "all")


def test_a_stop_on_a_full_disk_does_not_take_an_ephemeral_head_back(world: World) -> None:
    """When the head could not be written down, the topic comes back as a new instance."""
    world.engine.put_topic("t", {"durability": "ephemeral"})
    world.engine.append("t", tagged(*["x" if n % 2 else "y" for n in range(4000)]))
    world.engine.delete("t", match="x")
    before = world.engine.state("t")
    world.disk.capacity_bytes = world.disk.used_bytes()
    world.engine.close()
    world.disk.capacity_bytes = None
    world.engine = world.open()
    after = world.engine.state("t")
    assert after.epoch > before.epoch or after.head_seq >= before.head_seq


# -- classes changed in place --------------------------------------------------------------------


def change(world: World, durability: str) -> None:
    world.engine.put_topic("t", {"durability": durability})


def check_restart(world: World, durability: str, how: Ending, before: Look, epoch: int) -> None:
    """What must hold for a topic that now has this class, after this end."""
    after = world.look("t")
    same_epoch = world.engine.state("t").epoch == epoch
    keeps = durability != "ephemeral" and not (durability == "memory" and how == "crash")
    assert keeps <= same_epoch
    if durability == "ephemeral":
        assert after.seqs == ()
        assert same_epoch == (how == "clean")
    if same_epoch:
        assert after.head >= before.head
        assert after.earliest >= before.earliest
        assert after.evict_floor >= before.evict_floor
        assert set(after.seqs) <= set(before.seqs), "nothing comes back"
        gone = set(before.seqs) - set(after.seqs)
        told = {s for t in after.tombstones for s in range(t.gap_from, t.gap_to + 1)}
        assert gone <= told, "nothing goes without a word"
    head = world.engine.state("t").head_seq
    assert world.engine.append("t", [{"data": 0}]).first_seq == head + 1


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoints", quick_first(["between", "none", "after"], 1))
@pytest.mark.parametrize(("first", "second"), list(permutations(CLASSES, 2)))
def test_a_class_can_change_in_place(
    world: World, first: str, second: str, how: Ending, checkpoints: str
) -> None:
    """Every change of class keeps the records readable; the new promise holds from then on."""
    change(world, first)
    world.fill("t", 3)
    if checkpoints == "between":
        world.engine.checkpoint()
    change(world, second)
    world.fill("t", 3)
    assert world.look("t").seqs == (1, 2, 3, 4, 5, 6)
    if checkpoints == "after":
        world.engine.checkpoint()
    before, epoch = world.look("t"), world.engine.state("t").epoch
    world.restart(how)
    if second == "fsync":
        assert world.look("t").seqs == (1, 2, 3, 4, 5, 6)
    check_restart(world, second, how, before, epoch)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("removal", ["before", "match", "cap", "ttl", "everything"])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("last", quick_first(["disk", "memory", "fsync"], 1))
def test_what_went_while_a_topic_was_ephemeral_stays_gone(
    world: World, how: Ending, removal: str, checkpoint: bool, last: str
) -> None:
    """Deletes and losses of an ephemeral time hold after the topic became durable again."""
    change(world, "fsync")
    world.engine.append("t", tagged("x", "y", "x"))
    change(world, "ephemeral")
    world.engine.append("t", tagged("y", "x", "y"))
    if checkpoint:
        world.engine.checkpoint()
    if removal == "before":
        world.engine.delete("t", before_seq=3)
    elif removal == "match":
        world.engine.delete("t", match="x")
    elif removal == "everything":
        world.engine.delete("t", before_seq=100)
    elif removal == "cap":
        world.engine.put_topic("t", {"durability": "ephemeral", "cap_records": 2})
    else:
        world.engine.put_topic("t", {"durability": "ephemeral", "ttl_ms": 100})
        world.clock.advance(101)
    change(world, last)
    world.fill("t", 2)
    before, epoch = world.look("t"), world.engine.state("t").epoch
    silent = {seq for a, b, s in before.ranges if s == "deleted" for seq in range(a, b + 1)}
    world.restart(how)
    check_restart(world, last, how, before, epoch)
    after = {seq: s for a, b, s in explained(world.engine, "t") for seq in range(a, b + 1)}
    if world.engine.state("t").epoch == epoch:
        assert {after[seq] for seq in silent} <= {"deleted"}
        assert world.engine.diff("t", from_seq=8).tombstone is None or how == "crash"


@pytest.mark.parametrize("how", ENDINGS)
def test_a_class_can_go_round_and_round(world: World, how: Ending) -> None:
    """A topic that took every class in turn restarts from each of them."""
    change(world, "disk")
    for durability in (*CLASSES, *reversed(CLASSES), "ephemeral", "fsync", "ephemeral", "memory"):
        change(world, durability)
        world.fill("t", 2)
        before, epoch = world.look("t"), world.engine.state("t").epoch
        world.restart(how)
        check_restart(world, durability, how, before, epoch)


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize(("first", "second"), list(permutations(CLASSES, 2)))
def test_writes_submitted_behind_a_change_belong_to_the_new_class(
    world: World, first: str, second: str, how: Ending
) -> None:
    """A change of class and the writes around it may be on their way together."""
    change(world, first)
    engine = world.engine
    tickets = [engine.submit_append("t", request_of([{"data": 0}]))]
    tickets.append(engine.submit_put("t", {"durability": second}).ticket)
    tickets.append(engine.submit_append("t", request_of([{"data": 1}])))
    tickets.append(engine.submit_delete("t", before_seq=1, match=None))
    tickets.append(engine.submit_append("t", request_of([{"data": 2}])))
    engine.sync()
    assert [ticket.error for ticket in tickets] == [None] * 5
    assert world.look("t").seqs == (1, 2, 3)
    world.fill("t", 1)
    before, epoch = world.look("t"), world.engine.state("t").epoch
    world.restart(how)
    if second != "ephemeral":
        assert set(world.look("t").seqs) >= {2, 3, 4}
    check_restart(world, second, how, before, epoch)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("later", [None, "fsync", "disk"], ids=str)
@pytest.mark.parametrize("what", ["written", "copied", "lost"])
def test_a_checkpoint_while_a_topic_becomes_ephemeral(
    world: World, how: Ending, later: str | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may begin in the middle of records that it then says nothing more of."""
    engine = world.engine
    source = "t" if what == "written" else "source"
    # While this one is sealed the others are still to be captured.
    engine.append("before", [{"data": 0}])
    engine.put_topic(source, {"cap_records": 1} if what == "lost" else None)
    engine.put_topic("t")
    if what != "written":
        engine.put_router("source->t", {"source": "source", "dest": "t"})
    engine.append(source, [{"data": 1}])
    while engine.forward():
        pass
    engine.sync()
    monkeypatch.setattr(engine.maintenance, "due", lambda: False)
    assert engine.begin_checkpoint()
    engine.maintain(0)
    # Of a source with room for one the first of these is gone before it is forwarded.
    engine.append(source, [{"data": 2}, {"data": 3}])
    while engine.forward():
        pass
    engine.put_topic("t", {"durability": "ephemeral"})
    while engine.maintain(0):
        pass
    assert world.look("t").seqs == ((1, 3) if what == "lost" else (1, 2, 3))
    if later:
        engine.put_topic("t", {"durability": later})
        engine.append("t", [{"data": 4}])
        engine.sync()
    before = world.look("t")
    world.restart(how)
    assert world.look("t").seqs == (before.seqs if later else ())


def test_a_ceiling_from_before_an_ephemeral_time_moves_no_head(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that knows the change may come with a log that begins in front of it."""
    engine = world.engine
    # While this one is sealed the other is still to be captured.
    engine.append("before", [{"data": 0}])
    engine.put_topic("t", {"durability": "disk"})
    monkeypatch.setattr(engine.maintenance, "due", lambda: False)
    assert engine.begin_checkpoint()
    engine.maintenance.step()
    world.fill("t", 3)
    engine.put_topic("t", {"durability": "ephemeral"})
    engine.maintenance.drain()
    engine = world.restart("clean")
    assert engine.state("t").head_seq == 3
