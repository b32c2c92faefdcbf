"""Epochs: a topic that was deleted and made again is another topic, and readers are told."""

from __future__ import annotations

import pytest

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, gap, seqs, tagged
from tests.support.late import hold_syncs
from topics.testing import CrashPlan


@pytest.mark.parametrize("how", [None, *ENDINGS])
def test_a_recreated_topic_begins_at_one(world: World, how: Ending | None) -> None:
    """Seqs restart at the base, nothing of the old topic is left, and it stays so."""
    world.engine.put_topic("t", {"durability": "fsync", "cap_records": 3})
    world.engine.append("t", tagged("x", "x", "x", "x"))
    world.engine.checkpoint()
    world.engine.delete_topic("t")
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 2)
    if how is not None:
        world.restart(how)
    look = world.look("t")
    assert (look.head, look.seqs, look.tombstones) == (2, (1, 2), ())
    assert look.evict_floor == 1
    assert world.engine.state("t").config.cap_records == 0


@pytest.mark.parametrize("from_seq", [3, 4, 100, 2**64 - 1])
def test_a_cursor_from_the_future_is_told_that_the_topic_is_new(
    world: World, from_seq: int
) -> None:
    """from_seq > head_seq gets `recreated` with [1, head] and every record of the new topic."""
    world.fill("t", 2)
    page = world.engine.diff("t", from_seq=from_seq)
    assert gap(page.tombstone) == (1, 2, "recreated")
    assert page.tombstone is not None
    assert (page.tombstone.earliest_seq, page.tombstone.head_seq) == (1, 2)
    assert seqs(page) == [1, 2]
    assert (page.next_from_seq, page.caught_up) == (2, True)


def test_a_recreated_gap_may_be_empty(world: World) -> None:
    """On a topic without records gap_to is the head, 0, and the reader stands there."""
    world.engine.put_topic("t")
    page = world.engine.diff("t", from_seq=7)
    assert gap(page.tombstone) == (1, 0, "recreated")
    assert (page.count, page.next_from_seq, page.caught_up) == (0, 0, True)


def test_a_cursor_at_the_head_is_not_stale(world: World) -> None:
    """from_seq == head_seq without an epoch is a reader that has caught up."""
    world.fill("t", 2)
    assert world.engine.diff("t", from_seq=2).tombstone is None


@pytest.mark.parametrize("from_seq", [0, 1, 2, 3])
def test_an_older_epoch_is_told_whatever_its_cursor(world: World, from_seq: int) -> None:
    """A cursor that carries another epoch is from another topic."""
    world.fill("t", 5)
    old = world.engine.state("t").epoch
    world.engine.delete_topic("t")
    world.fill("t", 2)
    page = world.engine.diff("t", from_seq=from_seq, epoch=old)
    assert gap(page.tombstone) == (1, 2, "recreated")
    assert seqs(page) == [1, 2]
    assert page.epoch != old
    page = world.engine.diff("t", from_seq=page.next_from_seq, epoch=page.epoch)
    assert (page.tombstone, page.caught_up) == (None, True)


@pytest.mark.parametrize("from_seq", [0, 1, 2])
def test_the_right_epoch_is_silent(world: World, from_seq: int) -> None:
    """With its own epoch a reader is told nothing but what the floors say."""
    world.fill("t", 2)
    page = world.engine.diff("t", from_seq=from_seq, epoch=world.engine.state("t").epoch)
    assert page.tombstone is None


def test_a_recreated_read_goes_on_at_the_new_floor(world: World) -> None:
    """What the new topic has lost is covered by the one tombstone."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.fill("t", 5)
    page = world.engine.diff("t", from_seq=9)
    assert gap(page.tombstone) == (1, 5, "recreated")
    assert seqs(page) == [4, 5]


@pytest.mark.parametrize("how", ENDINGS)
def test_an_epoch_is_never_used_twice(world: World, how: Ending) -> None:
    """One durable counter for the directory: every instance of every topic has its own."""
    seen: list[int] = []
    for round_ in range(4):
        for name in ("a", "b"):
            world.engine.put_topic(name, {"durability": "fsync"})
            seen.append(world.engine.state(name).epoch)
        if round_ == 1:
            world.engine.checkpoint()
        world.engine.delete_topic("a")
        world.engine.delete_topic("b")
        world.restart(how)
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


@pytest.mark.parametrize("plan", CrashPlan.standard(), ids=lambda plan: plan.name)
def test_an_epoch_that_was_seen_is_not_given_to_another_topic(
    world: World, plan: CrashPlan
) -> None:
    """Also when the crash kept or lost any part of what was on its way."""
    world.engine.put_topic("a")
    epoch = world.engine.append("b", [{"data": 0}]).epoch
    world.restart("crash", plan)
    world.engine.put_topic("c")
    assert world.engine.state("c").epoch > epoch


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_crashes_in_a_row_give_no_epoch_twice(durability: str, checkpoint: bool) -> None:
    """What a start passed over stays so, though nothing that was made after it reached the disk."""
    world = World(wal_shards=1)
    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 1)
    seen = [world.engine.state("t").epoch]
    for life in range(4):
        world.restart("crash")
        if checkpoint and life == 1:
            world.engine.checkpoint()
        hold_syncs(world.engine)
        made = world.engine.submit_put(f"new{life}", {"durability": durability})
        world.engine.flush()
        seen.append(made.topic.epoch)
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_epoch_stays_through_restarts(world: World, how: Ending, durability: str) -> None:
    """A topic whose head can be proved keeps its epoch."""
    world.engine.put_topic("t", {"durability": durability})
    world.fill("t", 2)
    epoch = world.engine.state("t").epoch
    world.restart(how)
    assert world.engine.state("t").epoch == epoch
    assert world.engine.diff("t", from_seq=2, epoch=epoch).tombstone is None or how == "crash"


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("how", SURVIVABLE)
def test_names_survive_being_reused(shards: int, how: Ending) -> None:
    """Whichever shard an instance lives in, the youngest is the one that has the name."""
    world = World(wal_shards=shards)
    for round_ in range(5):
        world.engine.append("t", [{"data": round_}])
        world.engine.append("other", [{"data": round_}])
        if round_ < 4:
            world.engine.delete_topic("t")
    before = world.look("t"), world.look("other")
    epoch = world.engine.state("t").epoch
    world.restart(how)
    assert (world.look("t"), world.look("other")) == before
    assert world.engine.diff("t").records[0].value == 4
    assert world.engine.state("t").epoch == epoch


def test_a_change_of_the_number_of_shards_loses_nothing() -> None:
    """Topics move between shards when the setting changes."""
    world = World(wal_shards=2)
    for name in "abcdef":
        world.engine.append(name, [{"data": name}])
    for shards in (5, 1, 3, 2):
        world.end("kill")
        world.set(wal_shards=shards)
        world.engine = world.open()
        for name in "abcdef":
            assert world.engine.append(name, [{"data": name}]).epoch > 0
    assert {len(world.look(name).seqs) for name in "abcdef"} == {5}
