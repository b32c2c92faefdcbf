"""What a reader is told about records that are gone, and about which ones it is told nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, gap, seqs, tagged
from topics.engine.engine import Engine
from topics.engine.state.holes import joined


@pytest.fixture
def mixed(world: World) -> World:
    """Ten seqs: 1-3 evicted, 4-5 deleted, 6-10 live."""
    world.engine.put_topic("t", {"cap_records": 7})
    world.fill("t", 10)
    world.engine.delete("t", before_seq=6)
    return world


@pytest.mark.parametrize("from_seq", range(11))
def test_a_tombstone_is_told_exactly_below_the_evict_floor(mixed: World, from_seq: int) -> None:
    """A read carries a tombstone if and only if from_seq + 1 < evict_floor."""
    state = mixed.engine.state("t")
    page = mixed.engine.diff("t", from_seq=from_seq)
    assert (state.evict_floor, state.earliest_seq) == (4, 6)
    assert (page.tombstone is not None) == (from_seq + 1 < state.evict_floor)


@pytest.mark.parametrize("from_seq", [0, 1, 2])
def test_the_gap_reaches_from_the_cursor_to_the_first_live_record(
    mixed: World, from_seq: int
) -> None:
    """gap_from is the seq asked for next, gap_to the one in front of earliest_seq, inclusive."""
    told = mixed.engine.diff("t", from_seq=from_seq).tombstone
    assert told is not None
    assert (told.gap_from, told.gap_to) == (from_seq + 1, 5)
    assert (told.earliest_seq, told.head_seq) == (6, 10)


@pytest.mark.parametrize("from_seq", range(6))
def test_a_read_across_a_gap_goes_on_at_the_first_live_record(mixed: World, from_seq: int) -> None:
    """After a tombstone, or a silent gap, the same response continues at earliest_seq."""
    page = mixed.engine.diff("t", from_seq=from_seq)
    assert seqs(page) == [6, 7, 8, 9, 10]
    assert page.next_from_seq == page.head_seq == 10
    assert page.caught_up


@pytest.mark.parametrize("from_seq", [3, 4])
def test_a_gap_of_deleted_records_alone_is_silent(mixed: World, from_seq: int) -> None:
    """A cursor in a purely deleted gap is moved past it without a word."""
    page = mixed.engine.diff("t", from_seq=from_seq)
    assert page.tombstone is None
    assert seqs(page)[0] == 6


def test_a_tombstone_is_told_even_when_no_record_is_left(world: World) -> None:
    """The gap is told when the topic is empty, and the cursor then stands at the head."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 3)
    world.clock.advance(101)
    page = world.engine.diff("t")
    assert gap(page.tombstone) == (1, 3, "ttl")
    assert (page.count, page.next_from_seq, page.caught_up) == (0, 3, True)


def test_from_seq_zero_is_a_cursor_like_any_other(world: World) -> None:
    """A reader that starts from the beginning is told what it can no longer get."""
    world.engine.put_topic("t", {"cap_records": 1})
    world.fill("t", 2)
    assert gap(world.engine.diff("t", from_seq=0).tombstone) == (1, 1, "cap")


def test_a_loss_behind_the_cursor_is_not_told(world: World) -> None:
    """Records that a reader had passed before they were lost raise no alarm for it."""
    world.engine.put_topic("t", {"cap_records": 3})
    world.fill("t", 3)
    cursor = world.engine.diff("t").next_from_seq
    world.fill("t", 3)
    page = world.engine.diff("t", from_seq=cursor)
    assert page.tombstone is None
    assert seqs(page) == [4, 5, 6]


@pytest.mark.parametrize(
    ("from_seq", "reason"), [(0, "mixed"), (1, "mixed"), (2, "ttl"), (3, "ttl"), (4, None)]
)
def test_the_reason_names_only_what_removed_something_above_the_cursor(
    world: World, from_seq: int, reason: str | None
) -> None:
    """A cause whose losses are all before the cursor is not mentioned."""
    world.engine.put_topic("t", {"cap_records": 3, "ttl_ms": 1000})
    world.fill("t", 4)
    world.clock.advance(500)
    world.fill("t", 1)
    assert world.engine.state("t").evict_floor == 3
    world.clock.advance(501)
    told = world.engine.diff("t", from_seq=from_seq).tombstone
    assert (told and told.reason) == reason


@pytest.mark.parametrize(("from_seq", "reason"), [(0, "mixed"), (1, "mixed"), (2, "cap")])
def test_the_reason_is_exact_when_the_ttl_came_first(
    world: World, from_seq: int, reason: str
) -> None:
    """Expiry first and eviction later is told as both below, as eviction alone above."""
    world.engine.put_topic("t", {"cap_records": 2, "ttl_ms": 1000})
    world.fill("t", 2)
    world.clock.advance(1001)
    world.fill("t", 4)
    told = world.engine.diff("t", from_seq=from_seq).tombstone
    assert told is not None
    assert told.reason == reason
    assert told.gap_to == 4


def test_the_estimate_counts_what_was_lost_and_not_what_was_deleted(world: World) -> None:
    """missed_estimate leaves out the deleted records inside the gap."""
    world.engine.append("t", tagged(None, "x", None, "x", None))
    world.engine.delete("t", match="x")
    world.engine.put_topic("t", {"cap_records": 1})
    told = world.engine.diff("t").tombstone
    assert told is not None
    assert (told.gap_from, told.gap_to, told.missed_estimate) == (1, 4, 2)


def test_a_deleted_record_that_would_have_expired_stays_silent(world: World) -> None:
    """Time passing over a deleted record never turns its removal into a loss."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 3)
    world.engine.delete("t", before_seq=4)
    world.clock.advance(10_000)
    state = world.engine.state("t")
    assert (state.earliest_seq, state.evict_floor) == (4, 1)
    assert world.engine.diff("t").tombstone is None


def test_a_deleted_record_that_a_cap_would_have_evicted_stays_silent(world: World) -> None:
    """Eviction passes over deleted records without counting them as lost."""
    world.engine.append("t", tagged("x", "x", None, None))
    world.engine.delete("t", match="x")
    world.engine.put_topic("t", {"cap_records": 2})
    assert world.engine.diff("t").tombstone is None
    assert world.engine.state("t").evict_floor == 1


def test_a_deleted_tail_above_expired_records_is_silent_for_who_read_the_rest(
    world: World,
) -> None:
    """The evict floor stops at the last record that was live when it was lost."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.engine.append("t", tagged(None, None, "x"))
    world.engine.delete("t", match="x")
    world.clock.advance(101)
    state = world.engine.state("t")
    assert (state.evict_floor, state.earliest_seq) == (3, 4)
    assert gap(world.engine.diff("t", from_seq=1).tombstone) == (2, 3, "ttl")
    assert world.engine.diff("t", from_seq=2).tombstone is None


def test_deleting_what_is_left_behind_a_loss_does_not_hide_the_loss(mixed: World) -> None:
    """A delete moves earliest_seq on and leaves the evict floor where it was."""
    mixed.engine.delete("t", before_seq=11)
    state = mixed.engine.state("t")
    assert (state.evict_floor, state.earliest_seq, state.count) == (4, 11, 0)
    assert gap(mixed.engine.diff("t", from_seq=0).tombstone) == (1, 10, "cap")
    assert mixed.engine.diff("t", from_seq=3).tombstone is None


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_tombstones_are_the_same_after_a_restart(
    mixed: World, how: Ending, checkpoint: bool
) -> None:
    """What a cursor is told does not depend on whether the process was restarted."""
    before = [mixed.look("t", cursor) for cursor in range(11)]
    if checkpoint:
        mixed.engine.checkpoint()
    mixed.restart(how)
    assert [mixed.look("t", cursor) for cursor in range(11)] == before


@pytest.fixture
def holed(world: World) -> World:
    """Five live records, a hole left by a machine crash, two live records behind it."""
    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 5)
    world.engine.sync()
    world.fill("t", 3)
    world.restart("crash")
    world.fill("t", 2)
    return world


def test_a_read_stops_in_front_of_a_hole(holed: World) -> None:
    """Live records below a hole are delivered first, without a tombstone, and not caught up."""
    page = holed.engine.diff("t")
    assert seqs(page) == [1, 2, 3, 4, 5]
    assert page.tombstone is None
    assert (page.next_from_seq, page.caught_up) == (5, False)


def test_the_read_at_the_edge_of_a_hole_tells_it_and_goes_on_behind_it(holed: World) -> None:
    """At the edge the reader learns the range and the reason and gets the records after it."""
    head = holed.engine.state("t").head_seq
    page = holed.engine.diff("t", from_seq=5)
    assert gap(page.tombstone) == (6, head - 2, "crash")
    assert seqs(page) == [head - 1, head]
    assert page.caught_up


def test_a_cursor_inside_a_hole_is_told_the_rest_of_it(holed: World) -> None:
    """gap_from follows the cursor also inside a hole."""
    head = holed.engine.state("t").head_seq
    assert gap(holed.engine.diff("t", from_seq=7).tombstone) == (8, head - 2, "crash")
    assert holed.engine.diff("t", from_seq=head - 2).tombstone is None


def test_a_limit_in_front_of_a_hole_still_meets_it_later(holed: World) -> None:
    """Paging in small steps tells the hole once, between its neighbours."""
    look, cursor, told = [], 0, 0
    while True:
        page = holed.engine.diff("t", from_seq=cursor, limit=2)
        told += page.tombstone is not None
        look += seqs(page)
        cursor = page.next_from_seq
        if page.caught_up:
            break
    assert told == 1
    assert look == list(holed.look("t").seqs)
    assert len(look) == 7


def test_a_gap_below_the_floor_comes_before_a_hole(holed: World) -> None:
    """One tombstone a response: first what was lost below the floor, then the hole."""
    holed.engine.put_topic("t", {"cap_records": 5})
    first = holed.engine.diff("t")
    assert gap(first.tombstone) == (1, 2, "cap")
    assert seqs(first) == [3, 4, 5]
    second = holed.engine.diff("t", from_seq=first.next_from_seq)
    assert second.tombstone is not None
    assert second.tombstone.reason == "crash"


def test_a_floor_that_rises_over_a_hole_keeps_its_reason(holed: World) -> None:
    """A hole that the floor has passed is part of the gap below it, with every cause named."""
    holed.engine.put_topic("t", {"cap_records": 1})
    head = holed.engine.state("t").head_seq
    assert gap(holed.engine.diff("t").tombstone) == (1, head - 1, "mixed")
    assert holed.engine.state("t").count == 1


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_hole_stays_where_it_is_through_restarts(
    holed: World, how: Ending, checkpoint: bool
) -> None:
    """A loss that was decided once is told the same way ever after."""
    holed.engine.sync()
    if checkpoint:
        holed.engine.checkpoint()
    before = holed.engine.diff("t", from_seq=5).tombstone
    assert before is not None
    holed.restart(how)
    after = holed.engine.diff("t", from_seq=5).tombstone
    assert after is not None
    assert (after.gap_from, after.gap_to, after.reason) == gap(before)


def test_a_deleted_record_in_front_of_a_hole_is_passed_silently(holed: World) -> None:
    """Deleting up to the edge of a hole makes the hole a gap below the floor."""
    holed.engine.delete("t", before_seq=6)
    head = holed.engine.state("t").head_seq
    told = holed.engine.diff("t").tombstone
    assert gap(told) == (1, head - 2, "crash")
    assert told is not None
    assert told.missed_estimate == head - 2 - 5


@pytest.mark.parametrize("topic_is_empty", [False, True])
def test_the_floors_keep_their_order(engine: Engine, topic_is_empty: bool) -> None:
    """evict_floor <= earliest_seq <= head_seq + 1, also on a topic never written."""
    engine.put_topic("t")
    if not topic_is_empty:
        engine.append("t", tagged(None, None))
    state = engine.state("t")
    assert 1 <= state.evict_floor <= state.earliest_seq <= state.head_seq + 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from((1, 2)))))
def test_losses_that_adjoin_for_one_reason_are_one_gap(parts: list[tuple[int, int, int]]) -> None:
    """However many crashes made it: a reader is told once, of all of it."""
    holes, became, seq = [], {}, 0
    for apart, length, state in parts:
        first = seq + apart + 1
        seq = first + length - 1
        holes.append((first, seq, state))
        became.update(dict.fromkeys(range(first, seq + 1), state))
    told = joined(reversed(holes))
    assert {s: state for low, high, state in told for s in range(low, high + 1)} == became
    assert all(a[1] + 1 < b[0] or a[2] != b[2] for a, b in pairwise(told))
