"""Expiry: by the clock, strictly after the TTL, never undone."""

from __future__ import annotations

import pytest

from tests.support.engines import (
    ENDINGS,
    SURVIVABLE,
    Ending,
    World,
    explained,
    gap,
    seqs,
    tagged,
)
from topics.errors import DiskFull
from topics.storage.wal import Shard


@pytest.mark.parametrize(("age_ms", "is_live"), [(0, True), (99, True), (100, True), (101, False)])
def test_a_record_expires_strictly_after_its_ttl(world: World, age_ms: int, is_live: bool) -> None:
    """Expired means now - $ts > ttl_ms, so a record is still there at exactly its TTL."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 1)
    world.clock.advance(age_ms)
    assert bool(world.engine.diff("t").count) == is_live
    assert world.engine.state("t").count == int(is_live)


def test_expiry_needs_no_write(world: World) -> None:
    """The floor moves with the clock alone, and a reader is told at its next read."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 2)
    world.clock.advance(60)
    world.fill("t", 2)
    assert world.engine.diff("t").tombstone is None
    world.clock.advance(50)
    page = world.engine.diff("t")
    assert gap(page.tombstone) == (1, 2, "ttl")
    assert seqs(page) == [3, 4]


def test_expired_records_leave_count_bytes_and_floor(world: World) -> None:
    """State counts only what has not expired."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 4)
    world.clock.advance(101)
    state = world.engine.state("t")
    assert (state.count, state.bytes) == (0, 0)
    assert (state.earliest_seq, state.evict_floor, state.head_seq) == (5, 5, 4)


def test_no_ttl_means_no_expiry(world: World) -> None:
    """ttl_ms 0 keeps records for ever."""
    world.fill("t", 1)
    world.clock.advance(10**12)
    assert world.engine.state("t").count == 1


def test_a_ttl_set_later_counts_from_the_commit(world: World) -> None:
    """A tightened TTL makes old records expire at once, by their own times."""
    world.fill("t", 1)
    world.clock.advance(1000)
    world.fill("t", 1)
    world.engine.put_topic("t", {"ttl_ms": 500})
    assert gap(world.engine.diff("t").tombstone) == (1, 1, "ttl")
    assert world.look("t").seqs == (2,)


@pytest.mark.parametrize("relaxed", [{}, {"ttl_ms": 10**9}])
@pytest.mark.parametrize("how", [None, *ENDINGS])
@pytest.mark.parametrize("was_read", [False, True])
def test_relaxing_a_ttl_brings_nothing_back(
    world: World, relaxed: dict[str, int], how: Ending | None, was_read: bool
) -> None:
    """What has expired stays expired when the TTL is raised or removed, restarts included."""
    world.engine.put_topic("t", {"ttl_ms": 100, "durability": "fsync"})
    world.fill("t", 3)
    world.clock.advance(101)
    if was_read:
        world.engine.diff("t")
    world.engine.put_topic("t", {**relaxed, "durability": "fsync"})
    world.fill("t", 1)
    if how is not None:
        world.restart(how)
    look = world.look("t")
    assert look.seqs == (4,)
    assert [gap(told) for told in look.tombstones] == [(1, 3, "ttl")]


@pytest.mark.parametrize("how", ENDINGS)
def test_time_that_passed_while_the_process_was_down_counts(world: World, how: Ending) -> None:
    """Records that outlived their TTL while nobody ran are expired at the next read."""
    world.engine.put_topic("t", {"ttl_ms": 100, "durability": "fsync"})
    world.fill("t", 2)
    world.end(how)
    world.clock.advance(101)
    world.engine = world.open()
    assert gap(world.engine.diff("t").tombstone) == (1, 2, "ttl")


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("steps", range(1, 7))
def test_the_floor_is_found_inside_blocks_and_segments(
    world: World, sealed: bool, steps: int
) -> None:
    """Expiry finds the exact record, whatever block or segment it is in."""
    world.engine.put_topic("t", {"ttl_ms": 1000})
    for n in range(6):
        world.engine.append("t", [{"data": n}] * 3)
        world.clock.advance(100)
        if sealed and n in (1, 3):
            world.engine.checkpoint()
    world.clock.advance(401 + 100 * (steps - 1))
    assert world.engine.state("t").earliest_seq == 3 * steps + 1
    assert world.look("t").count == 18 - 3 * steps


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_ttl_holds_in_every_durability_class(world: World, durability: str) -> None:
    """Expiry does not depend on where records are kept."""
    world.engine.put_topic("t", {"ttl_ms": 100, "durability": durability})
    world.fill("t", 1)
    world.clock.advance(101)
    assert gap(world.engine.diff("t").tombstone) == (1, 1, "ttl")


def test_ttl_and_caps_are_independent(world: World) -> None:
    """A record leaves as soon as either of them says so."""
    world.engine.put_topic("t", {"ttl_ms": 100, "cap_records": 5})
    world.fill("t", 7)
    assert world.engine.state("t").earliest_seq == 3
    world.clock.advance(101)
    world.fill("t", 1)
    assert explained(world.engine, "t") == ((1, 2, "evicted"), (3, 7, "expired"), (8, 8, "live"))


def test_a_deleted_record_among_expired_ones_is_accounted_as_deleted(world: World) -> None:
    """Expiry of a run keeps apart what had been deleted in it."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.engine.append("t", tagged(None, "x", None))
    world.engine.delete("t", match="x")
    world.clock.advance(101)
    assert explained(world.engine, "t") == (
        (1, 1, "expired"),
        (2, 2, "deleted"),
        (3, 3, "expired"),
    )


@pytest.mark.parametrize("how", SURVIVABLE)
def test_what_expired_on_a_full_disk_stays_expired(
    world: World, how: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is written down when there is room again: a clock that goes back revives nothing."""

    def full(*_: object, **__: object) -> None:
        raise DiskFull("no space left on the device")

    world.engine.put_topic("t", {"ttl_ms": 100, "durability": "fsync"})
    world.fill("t", 2)
    world.clock.advance(101)
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "write", full)
        assert world.engine.state("t").count == 0
        world.engine.flush()
    if how == "kill":
        world.clock.advance(1000)
        world.engine.maintain(1.0)
    world.end(how)
    world.clock.jump_wall(-5000)
    world.engine = world.open()
    assert world.engine.state("t").count == 0
    assert explained(world.engine, "t") == ((1, 2, "expired"),)
