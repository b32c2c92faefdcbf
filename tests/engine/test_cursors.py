"""Named cursors: a reader's place, durable before it is acknowledged, never back by accident."""

from __future__ import annotations

import pytest

from tests.support.engines import ENDINGS, Ending, World
from topics.engine.ops.cursors import CURSORS_MAX, Given
from topics.errors import (
    Conflicting,
    CursorRegressed,
    DiskFull,
    InvalidRequest,
    NotFound,
    Throttled,
    TopicNotFound,
)
from topics.settings import KIB
from topics.types import CursorState, Hold

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def places(world: World, topic: str = "t") -> list[tuple[str, int]]:
    return [(found.cursor, found.seq) for found in world.engine.cursors(topic)]


def test_a_cursor_says_where_its_reader_stands(world: World) -> None:
    """What is put is what is found: seq, epoch, lag, time; `created` once."""
    world.fill("t", 5)
    world.clock.advance(50)
    put = world.engine.put_cursor("t", "spark", seq=3)
    epoch = world.engine.state("t").epoch
    assert put == CursorState(
        topic="t", cursor="spark", seq=3, epoch=epoch, lag=2, hold=None,
        updated_ts=world.clock.wall_ms(), created=True,
    )  # fmt: skip
    assert not world.engine.put_cursor("t", "spark", seq=4).created
    found = world.engine.cursor("t", "spark")
    assert (found.seq, found.lag) == (4, 1)
    world.fill("t", 2)
    assert world.engine.cursor("t", "spark").lag == 3
    assert world.engine.state("t").cursors == world.engine.cursors("t")


def test_cursors_are_listed_in_byte_order(world: World) -> None:
    """Names are compared as bytes."""
    world.fill("t", 1)
    for name in ("b", "a:1", "B", "a.1", "a"):
        world.engine.put_cursor("t", name, seq=0)
    assert [name for name, _ in places(world)] == ["B", "a", "a.1", "a:1", "b"]
    world.fill("u", 1)
    assert places(world, "u") == []


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_acknowledged_cursor_survives(
    world: World, durability: str, how: Ending, checkpoint: bool
) -> None:
    """A put and a delete hold after any restart, in every class of topic, trimmed or not."""
    engine = world.engine
    engine.put_topic("t", {"durability": durability})
    world.fill("t", 4)
    hold = Hold(max_bytes=1000, max_age_ms=60_000)
    engine.put_cursor("t", "kept", seq=1)
    engine.put_cursor("t", "moved", seq=1, hold=hold)
    engine.put_cursor("t", "gone", seq=2)
    if checkpoint:
        engine.checkpoint()
    engine.put_cursor("t", "moved", seq=4)
    assert engine.delete_cursor("t", "gone")
    if checkpoint:
        engine.checkpoint()
        engine.checkpoint()
    before = engine.cursors("t")
    engine = world.restart(how)
    after = engine.cursors("t")
    told = [(c.cursor, c.seq, c.epoch, c.hold, c.updated_ts) for c in after]
    assert told == [(c.cursor, c.seq, c.epoch, c.hold, c.updated_ts) for c in before]
    assert [c.hold for c in after] == [None, hold]


def test_if_absent_answers_what_stands(world: World) -> None:
    """The first start of a reader is fixed for good: later ones are told it."""
    world.fill("t", 5)
    first = world.engine.put_cursor("t", "c", seq=2, if_absent=True)
    again = world.engine.put_cursor("t", "c", seq=5, if_absent=True)
    assert (first.created, first.seq) == (True, 2)
    assert (again.created, again.seq, again.lag) == (False, 2, 3)


def test_a_cursor_goes_back_only_when_told_to(world: World) -> None:
    """Backwards is cursor_regressed and changes nothing; with reset it is done."""
    world.fill("t", 5)
    world.engine.put_cursor("t", "c", seq=4)
    with pytest.raises(CursorRegressed) as refused:
        world.engine.put_cursor("t", "c", seq=3)
    assert (refused.value.code, refused.value.status) == ("cursor_regressed", 409)
    assert refused.value.detail["seq"] == 4
    assert places(world) == [("c", 4)]
    assert world.engine.put_cursor("t", "c", seq=3, reset=True).seq == 3


@pytest.mark.parametrize("seq", [-1, 6, 2**64, True, 1.5, "1"])
def test_a_seq_that_nobody_can_have_read_is_refused(world: World, seq: object) -> None:
    """seq is a seq up to the head; anything else is invalid_request and creates nothing."""
    world.fill("t", 5)
    with pytest.raises(InvalidRequest):
        world.engine.put_cursor("t", "c", seq=seq)
    assert places(world) == []


def test_a_new_cursor_needs_a_seq(world: World) -> None:
    """An existing one keeps its place when only its hold changes."""
    world.fill("t", 5)
    with pytest.raises(InvalidRequest):
        world.engine.put_cursor("t", "c")
    world.engine.put_cursor("t", "c", seq=3)
    held = world.engine.put_cursor("t", "c", hold=Hold(max_bytes=10))
    assert (held.seq, held.hold) == (3, Hold(max_bytes=10))
    assert world.engine.put_cursor("t", "c", seq=4).hold == Hold(max_bytes=10)
    assert world.engine.put_cursor("t", "c", hold=None).hold is None


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "x" * 256, "ü"])
def test_cursor_names_are_like_topic_names(world: World, name: str) -> None:
    """The same pattern, matched as a whole."""
    world.fill("t", 1)
    with pytest.raises(InvalidRequest):
        world.engine.put_cursor("t", name, seq=0)
    with pytest.raises(InvalidRequest):
        world.engine.delete_cursor("t", name)
    with pytest.raises(InvalidRequest):
        world.engine.cursor("t", name)


def test_a_cursor_creates_no_topic(world: World) -> None:
    """Of a missing topic there are no cursors: topic_not_found."""
    calls = (
        lambda: world.engine.put_cursor("t", "c", seq=0),
        lambda: world.engine.cursor("t", "c"),
        lambda: world.engine.cursors("t"),
        lambda: world.engine.delete_cursor("t", "c"),
    )
    for call in calls:
        with pytest.raises(TopicNotFound):
            call()
    world.fill("t", 1)
    with pytest.raises(NotFound):
        world.engine.cursor("t", "c")


def test_deleting_a_cursor_again_is_not_an_error(world: World) -> None:
    """The second call finds nothing and says so; a new cursor starts anew."""
    world.fill("t", 3)
    world.engine.put_cursor("t", "c", seq=3)
    assert world.engine.delete_cursor("t", "c")
    assert not world.engine.delete_cursor("t", "c")
    assert world.engine.put_cursor("t", "c", seq=1).created


@pytest.mark.parametrize("how", [None, *ENDINGS])
def test_cursors_go_with_their_topic(world: World, how: Ending | None) -> None:
    """A topic that is created again has none of the old one's."""
    world.fill("t", 3)
    world.engine.put_cursor("t", "c", seq=3)
    world.engine.delete_topic("t")
    world.engine.put_topic("t")
    if how is not None:
        world.restart(how)
    assert places(world) == []


def test_a_cursor_for_another_epoch_is_a_conflict(world: World) -> None:
    """Whoever names an epoch is told when it is not the topic's."""
    world.fill("t", 3)
    epoch = world.engine.state("t").epoch
    world.engine.put_cursor("t", "c", seq=1, epoch=epoch)
    with pytest.raises(Conflicting) as refused:
        world.engine.put_cursor("t", "c", seq=2, epoch=epoch + 1)
    assert (refused.value.code, refused.value.status) == ("conflict", 409)
    assert places(world) == [("c", 1)]


@pytest.mark.parametrize("durability", ["ephemeral", "memory"])
def test_a_cursor_outlives_an_epoch_that_could_not(world: World, durability: str) -> None:
    """Under a new epoch the old place stays visible, counts for nothing, and can be left."""
    world.engine.put_topic("t", {"durability": durability})
    world.fill("t", 5)
    old = world.engine.put_cursor("t", "c", seq=4)
    world.restart("crash")
    state = world.engine.state("t")
    found = world.engine.cursor("t", "c")
    assert state.epoch != old.epoch
    assert (found.epoch, found.seq) == (old.epoch, 4)
    assert found.lag == state.head_seq
    page = world.engine.diff("t", from_seq=found.seq, epoch=found.epoch)
    assert page.tombstone is not None
    assert page.tombstone.reason == "recreated"
    moved = world.engine.put_cursor("t", "c", seq=0)
    assert (moved.epoch, moved.seq) == (state.epoch, 0)


def test_a_put_is_seen_when_it_is_durable(world: World) -> None:
    """Until its ticket has ended the old place stands; later puts count from the new one."""
    world.fill("t", 5)
    world.engine.put_cursor("t", "c", seq=1)
    ticket = world.engine.submit_put_cursor("t", "c", Given(seq=4))
    assert not ticket.done
    assert places(world) == [("c", 1)]
    with pytest.raises(CursorRegressed):
        world.engine.submit_put_cursor("t", "c", Given(seq=3))
    world.engine.sync()
    assert ticket.done
    assert places(world) == [("c", 4)]


def test_the_same_put_again_writes_nothing(world: World) -> None:
    """A reader that stands still costs the log nothing."""
    world.fill("t", 5)
    put = world.engine.put_cursor("t", "c", seq=3)
    frames = world.engine.wal_stats.frames_total
    world.clock.advance(10)
    again = world.engine.put_cursor("t", "c", seq=3)
    assert world.engine.wal_stats.frames_total == frames
    assert (again.updated_ts, again.created) == (put.updated_ts, False)


def test_a_full_disk_leaves_a_cursor_where_it_was(world: World) -> None:
    """A refused put has not happened, here or after a restart."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 5)
    world.engine.put_cursor("t", "c", seq=1)
    world.disk.capacity_bytes = world.disk.used_bytes()
    refused = 0
    for number in range(5000):
        try:
            world.engine.put_cursor("t", f"filler-{number % 9}", seq=number % 5, reset=True)
        except DiskFull:
            refused += 1
            break
    assert refused
    before = world.engine.cursors("t")
    with pytest.raises(DiskFull):
        world.engine.put_cursor("t", "c", seq=2)
    assert world.engine.cursors("t") == before
    world.disk.capacity_bytes = None
    assert world.engine.put_cursor("t", "c", seq=1).seq == 1
    world.restart("kill")
    assert world.engine.cursors("t") == before


def test_there_are_only_so_many_cursors(world: World) -> None:
    """A bound on everything: one more is throttled, an existing one still moves."""
    world.fill("t", 2)
    tickets = [
        world.engine.submit_put_cursor("t", f"c{n}", Given(seq=1)) for n in range(CURSORS_MAX)
    ]
    world.engine.sync()
    assert all(ticket.done for ticket in tickets)
    with pytest.raises(Throttled):
        world.engine.put_cursor("t", "one-more", seq=1)
    assert world.engine.put_cursor("t", "c7", seq=2).seq == 2


@pytest.mark.parametrize("how", ENDINGS)
def test_a_snapshot_between_two_puts_keeps_the_later(world: World, how: Ending) -> None:
    """Frames that a snapshot has seen already are not applied again, deletes included."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 20)
    for seq in range(1, 8):
        world.engine.put_cursor("t", "c", seq=seq)
        world.engine.put_cursor("t", f"d{seq % 2}", seq=seq, reset=True)
        if seq % 3 == 0:
            world.engine.delete_cursor("t", "d0")
        if seq in (3, 5):
            world.engine.checkpoint()
    before = world.engine.cursors("t")
    for _ in range(3):
        assert world.restart(how).cursors("t") == before


def test_cursors_alone_do_not_let_the_log_grow() -> None:
    """Readers that only note where they are cause checkpoints, which trim what they wrote."""
    world = World(seal_bytes=40 * KIB)
    world.fill("t", 5)
    sizes = []
    for n in range(1500):
        world.engine.put_cursor("t", "reader", seq=n % 5, reset=True)
        world.clock.advance(60)
        world.engine.maintain(1.0)
        sizes.append(sum(len(raw) for name, raw in world.disk.files().items() if "/wal/" in name))
    assert max(sizes[500:]) <= max(sizes[:500])
    world.restart("crash")
    assert world.engine.cursor("t", "reader").seq == 4
