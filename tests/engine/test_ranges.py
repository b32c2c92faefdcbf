"""Ranges: everything of (from_seq, to_seq] in order, and the seq of a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.engines import ENDINGS, Ending, World, seqs, tagged
from topics.engine.engine import Engine
from topics.engine.reading.ranges import Asked, Gap, RangePage, Run
from topics.errors import InvalidRequest, StoreUnreachable, TopicNotFound
from topics.types import CRASH, U64_MAX


def told(page: RangePage) -> list[int | tuple[int, int, str]]:
    """Seqs and gaps as they come."""
    out: list[int | tuple[int, int, str]] = []
    for part in page.parts:
        if isinstance(part, Gap):
            out.append((part.gap_from, part.gap_to, part.reason))
        else:
            out.extend(record.seq for record in part.records)
    return out


def pages(engine: Engine, to_seq: int, **options: int) -> Iterator[RangePage]:
    """A range in as many reads as its bounds ask for."""
    at = 0
    while True:
        page = engine.range("t", from_seq=at, to_seq=to_seq, **options)
        yield page
        if page.complete:
            return
        assert page.next_from_seq > at
        at = page.next_from_seq


def test_a_range_is_what_lies_between_its_ends(world: World) -> None:
    """from_seq is exclusive, to_seq inclusive; data, tag, node and meta are all there."""
    records = [{"data": n, "tag": f"t{n}", "node": "n", "meta": {"k": str(n)}} for n in range(6)]
    world.engine.append("t", records)
    page = world.engine.range("t", from_seq=1, to_seq=4)
    assert [record.seq for record in page.records] == [2, 3, 4]
    assert [(r.value, r.tag, r.node, r.meta) for r in page.records] == [
        (n, f"t{n}", "n", {"k": str(n)}) for n in (1, 2, 3)
    ]
    assert (page.complete, page.next_from_seq) == (True, 4)
    assert page.epoch == page.asked_epoch == world.engine.state("t").epoch


def test_an_empty_range_is_complete(world: World) -> None:
    """Nothing is asked for, nothing is missing."""
    world.fill("t", 3)
    for at in (0, 2, 3):
        page = world.engine.range("t", from_seq=at, to_seq=at)
        assert (page.parts, page.complete, page.next_from_seq) == ([], True, at)


def test_a_range_ends_at_the_head_for_now(world: World) -> None:
    """What is not written yet is not complete; without to_seq the head is the end."""
    world.fill("t", 3)
    page = world.engine.range("t", from_seq=1, to_seq=9)
    assert (told(page), page.complete, page.next_from_seq) == ([2, 3], False, 3)
    page = world.engine.range("t", from_seq=3, to_seq=9)
    assert (told(page), page.complete, page.next_from_seq) == ([], False, 3)
    assert world.engine.range("t").complete


@pytest.mark.parametrize(
    ("from_seq", "to_seq"), [(-1, 2), (0, -1), (3, 2), (0, 2**64), (True, 2), (0, "2")]
)
def test_what_is_no_range_is_refused(world: World, from_seq: int, to_seq: int) -> None:
    """Ends are seqs, in order; a missing topic is topic_not_found."""
    world.fill("t", 3)
    with pytest.raises(InvalidRequest):
        world.engine.range("t", from_seq=from_seq, to_seq=to_seq)
    with pytest.raises(TopicNotFound):
        world.engine.range("missing", from_seq=0, to_seq=1)


def test_gaps_are_told_in_their_place_and_cut_to_the_range(world: World) -> None:
    """What a diff tells as a tombstone a range tells as a gap, never beyond its ends."""
    world.engine.put_topic("t", {"cap_records": 4})
    world.fill("t", 10)
    assert told(world.engine.range("t", to_seq=8)) == [(1, 6, "cap"), 7, 8]
    assert told(world.engine.range("t", from_seq=2, to_seq=4)) == [(3, 4, "cap")]
    assert told(world.engine.range("t", from_seq=5, to_seq=7)) == [(6, 6, "cap"), 7]
    assert told(world.engine.range("t", from_seq=6, to_seq=7)) == [7]


def test_deleted_records_are_passed_in_silence(world: World) -> None:
    """Below the floor and above it."""
    world.engine.append("t", tagged(None, "x", None, "x", "x", None))
    world.engine.delete("t", before_seq=2)
    world.engine.delete("t", match="x")
    page = world.engine.range("t", to_seq=5)
    assert (told(page), page.complete, page.next_from_seq) == ([3], True, 5)
    assert told(world.engine.range("t", from_seq=3, to_seq=5)) == []


def test_a_range_goes_on_behind_a_hole(world: World) -> None:
    """Several gaps may be told in one range, each between its neighbours."""
    world.engine.put_topic("t", {"cap_records": 5})
    world.fill("t", 4)
    topic = world.engine.core.by_name["t"]
    topic.add_hole(5, 7, CRASH)
    world.clock.advance(10)
    world.fill("t", 3)
    assert world.engine.place_at("t", world.clock.wall_ms()) == 4
    whole = [(1, 2, "cap"), 3, 4, (5, 7, "crash"), 8, 9, 10]
    assert told(world.engine.range("t", to_seq=10)) == whole
    assert told(world.engine.range("t", from_seq=3, to_seq=6)) == [4, (5, 6, "crash")]
    assert told(world.engine.range("t", from_seq=5, to_seq=8)) == [(6, 7, "crash"), 8]
    in_steps = [part for page in pages(world.engine, 10, records_max=1) for part in told(page)]
    assert in_steps == whole


@pytest.mark.parametrize("how", ENDINGS)
def test_a_range_tells_what_a_crash_took(world: World, how: Ending) -> None:
    """Every seq of a range is a record, in a gap, or accounted for as deleted."""
    world.fill("t", 20)
    world.engine.delete("t", before_seq=3)
    world.fill("t", 5)
    world.restart(how)
    head = world.engine.state("t").head_seq
    seen: set[int] = set()
    for part in told(world.engine.range("t", to_seq=head)):
        seen.update((part,) if isinstance(part, int) else range(part[0], part[1] + 1))
    for account in world.engine.explain("t"):
        if account.state == "deleted":
            seen.update(range(account.first, account.last + 1))
    assert seen == set(range(1, head + 1))


def test_a_range_stops_at_its_bounds(world: World) -> None:
    """By records and by bytes, at the record that crosses them; the rest follows."""
    world.fill("t", 10)
    page = world.engine.range("t", to_seq=10, records_max=4)
    assert (told(page), page.complete, page.next_from_seq) == ([1, 2, 3, 4], False, 4)
    page = world.engine.range("t", to_seq=10, bytes_max=1)
    assert (told(page), page.complete, page.next_from_seq) == ([1], False, 1)
    in_steps = [part for page in pages(world.engine, 10, bytes_max=90) for part in told(page)]
    assert in_steps == list(range(1, 11))


def test_another_epoch_is_a_gap_and_a_new_beginning(world: World) -> None:
    """Nothing of the new instance is given for the old one; the reader goes on at its start."""
    world.fill("t", 5)
    old = world.engine.state("t").epoch
    world.engine.delete_topic("t")
    world.fill("t", 9)
    page = world.engine.range("t", from_seq=2, to_seq=5, epoch=old)
    assert told(page) == [(3, 5, "recreated")]
    assert (page.complete, page.next_from_seq) == (True, 0)
    assert (page.asked_epoch, page.epoch) == (old, world.engine.state("t").epoch)
    # Nobody knows how far the old one went: nothing is known to be missed.
    assert told(world.engine.range("t", from_seq=5, epoch=old)) == [(6, 5, "recreated")]


def test_a_cursor_from_the_future_is_of_another_instance(world: World) -> None:
    """Without an epoch, from_seq above the head says the same."""
    world.fill("t", 3)
    page = world.engine.range("t", from_seq=4, to_seq=8)
    assert (told(page), page.next_from_seq) == ([(5, 8, "recreated")], 0)
    assert told(world.engine.range("t", from_seq=U64_MAX)) == [(U64_MAX + 1, U64_MAX, "recreated")]


def test_a_range_counts_as_a_read_and_expires_first(world: World) -> None:
    """It is told what the clock took up to now, and keeps the topic warm."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 2)
    world.clock.advance(101)
    world.fill("t", 1)
    assert told(world.engine.range("t")) == [(1, 2, "ttl"), 3]
    assert world.engine.state("t", touch=False).last_read_ts == world.clock.wall_ms()


def test_a_range_reads_sealed_and_cold_records(world: World) -> None:
    """Wherever blocks are, a range has them all, in as many reads as the cache asks for."""
    world = World(cold_dir="/cold", hot_bytes=0, block_bytes=256, resident_bytes=0,
                  own_segment_bytes=256, block_cache_bytes=1)  # fmt: skip
    world.fill("t", 60)
    world.engine.checkpoint()
    world.fill("t", 10)
    found = [part for page in pages(world.engine, 70) for part in told(page)]
    assert found == list(range(1, 71))
    assert world.engine.seq_at("t", 0) == (1, world.clock.wall_ms())


def test_verbatim_data_survives_a_range(world: World) -> None:
    """Number spelling and lone surrogates are as they were written."""
    body = b'{"records":[{"data":1e400},{"data":"\\ud800"},{"data":{"a":1.0,"a":2},"tag":"x"}]}'
    world.engine.append_json("t", body)
    data = [bytes(record.data) for record in world.engine.range("t").records]
    assert data == [b"1e400", b'"\\ud800"', b'{"a":1.0,"a":2}']
    assert all(isinstance(part, Run) for part in world.engine.range("t").parts)


@pytest.mark.parametrize("sealed", [False, True])
def test_the_seq_of_a_time_is_the_first_at_or_after(world: World, sealed: bool) -> None:
    """By binary search over times that never decrease; None past the head."""
    start = world.clock.wall_ms()
    for n in range(9):
        world.engine.append("t", [{"data": n}] * 2)
        world.clock.advance(10)
        if sealed and n in (2, 5):
            world.engine.checkpoint()
    for n in range(9):
        expected = (2 * n + 1, start + 10 * n)
        assert world.engine.seq_at("t", start + 10 * n) == expected
        assert world.engine.seq_at("t", max(start + 10 * n - 9, 0)) == expected
    assert world.engine.seq_at("t", 0) == (1, start)
    assert world.engine.seq_at("t", start + 81) is None


def test_the_seq_of_a_time_is_of_a_live_record(world: World) -> None:
    """Deleted, evicted and expired records are passed over; an empty topic has none."""
    world.engine.put_topic("t", {"cap_records": 6})
    assert world.engine.seq_at("t", 0) is None
    start = world.clock.wall_ms()
    for n in range(8):
        world.engine.append("t", [{"data": n, "tag": f"t{n}"}])
        world.clock.advance(10)
    assert world.engine.seq_at("t", 0) == (3, start + 20)
    world.engine.delete("t", match="t4")
    assert world.engine.seq_at("t", start + 40) == (6, start + 50)
    world.engine.delete("t", match=["tag", "Glob", "t*"])
    assert world.engine.seq_at("t", 0) is None


@pytest.mark.parametrize("sealed", [False, True])
def test_the_place_of_a_time_is_in_front_of_what_may_be_lost_of_it(
    world: World, sealed: bool
) -> None:
    """After the last live record before it: when a lost one was written nobody knows."""
    start = world.clock.wall_ms()
    world.engine.put_topic("t", {"cap_records": 4})
    assert world.engine.place_at("t", 0) == 0
    for n in range(8):
        world.engine.append("t", [{"data": n, "tag": f"t{n}"}])
        world.clock.advance(10)
        if sealed and n % 3 == 2:
            world.engine.checkpoint()
    # 1 to 4 are evicted, and 6 is deleted.
    world.engine.delete("t", match="t5")
    assert [world.engine.place_at("t", start + 10 * n) for n in range(10)] == [
        0, 0, 0, 0, 0, 5, 5, 7, 8, 8,
    ]  # fmt: skip
    assert told(world.engine.range("t", from_seq=world.engine.place_at("t", start)))[0] == (
        1, 4, "cap",
    )  # fmt: skip
    world.engine.delete("t", match=["tag", "Glob", "t*"])
    assert world.engine.place_at("t", start + 10**6) == 0


@pytest.mark.parametrize("ts", [-1, 2**64, True, 1.5])
def test_a_time_is_milliseconds(world: World, ts: int) -> None:
    """Anything else is invalid_request."""
    world.fill("t", 1)
    with pytest.raises(InvalidRequest):
        world.engine.seq_at("t", ts)


def test_a_range_of_what_matches(world: World) -> None:
    """A tag, or what it begins with, as in a delete; gaps are told whether or not they matched."""
    world.engine.put_topic("t", {"cap_records": 8})
    world.engine.append("t", tagged("a:1", "b", None, "a:2", "a:1", "b", "a", "a:3", None, "a:1"))
    engine = world.engine
    assert told(engine.range("t", match="a:1")) == [(1, 2, "cap"), 5, 10]
    assert told(engine.range("t", match=["tag", "Eq", "b"], from_seq=2)) == [6]
    assert told(engine.range("t", match=["tag", "Glob", "a*"], from_seq=3)) == [4, 5, 7, 8, 10]
    engine.delete("t", match="a:2")
    page = engine.range("t", match=["tag", "Glob", "a:*"], from_seq=2, records_max=2)
    assert (told(page), page.next_from_seq, page.complete) == ([5, 8], 8, False)
    rest = engine.range("t", match=["tag", "Glob", "a:*"], from_seq=8)
    assert (told(rest), rest.next_from_seq, rest.complete) == ([10], 10, True)
    assert told(engine.range("t", match="nobody", from_seq=2)) == []
    for match in (["tag", "Glob", "a"], ["node", "Eq", "a"], ["tag", "Eq"], 5):
        with pytest.raises(InvalidRequest):
            engine.range("t", match=match)


def test_a_range_is_counted_where_its_budget_ends(world: World) -> None:
    """Data and meta count, nodes and tags do not; the record that crosses the budget is in it."""
    fields = {"tag": "t" * 50, "node": "n" * 50}
    records = [{"data": "x" * 8, "meta": {"k": "v"}, **fields}, {"data": "x" * 18, **fields}]
    world.engine.append("t", records * 5)
    for bytes_max, count in ((1, 1), (20, 2), (19, 1), (39, 2), (40, 3), (400, 10), (0, 10)):
        for keeps in (True, False):
            page = world.engine.range("t", bytes_max=bytes_max, keeps_records=keeps)
            each = [10 + len('{"k":"v"}'), 20]
            content = sum(each[n % 2] for n in range(count))
            assert (page.count, page.content_bytes, page.next_from_seq) == (count, content, count)
            assert bool(page.parts) is keeps
    assert world.engine.range("t", records_max=3, keeps_records=False).next_from_seq == 3


class Away:
    """A cold store that nobody can reach."""

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        raise OSError("away")


def test_counting_needs_nothing_of_the_cold_store() -> None:
    """Where each record ends, and what of it is data and meta, is kept beside the log."""
    world = World(cold_dir="/cold", hot_bytes=0, block_bytes=256, resident_bytes=0,
                  own_segment_bytes=256, block_cache_bytes=1)  # fmt: skip
    rich = {"data": [1, 2], "node": "né", "meta": {"k": "v"}, "tag": "x"}
    for n in range(60):
        world.engine.append("t", [rich if n % 3 else {"data": "plain"}])
    world.engine.checkpoint()
    world.engine.delete("t", match="x", before_seq=20)
    before = [world.engine.range("t", from_seq=at, keeps_records=False) for at in range(60)]
    content = len(b"[1,2]") + len(b'{"k":"v"}')
    assert (before[0].count, before[0].content_bytes) == (48, 20 * 7 + 28 * content)
    assert (before[29].count, before[29].content_bytes) == (31, 10 * 7 + 21 * content)
    engine = world.restart("kill")
    engine.core.segments.store = Away()  # type: ignore[assignment]
    assert [engine.range("t", from_seq=at, keeps_records=False) for at in range(60)] == before
    with pytest.raises(StoreUnreachable):
        engine.range("t")


def stepped(world: World, between: Callable[[], object], **asked: Any) -> RangePage:
    """A range, with something that happens after its first piece."""
    steps = world.engine.range_steps("t", Asked(**asked))
    next(steps)
    between()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            page: RangePage = done.value
            return page


def long_topic() -> World:
    """More blocks than are read in one piece."""
    world = World(block_bytes=64, resident_bytes=0)
    world.engine.append("t", [{"data": 0, "tag": f"t{n % 2}"} for n in range(300)])
    world.engine.checkpoint()
    return world


@pytest.mark.parametrize("keeps", [True, False])
def test_a_range_in_pieces_sees_what_happens_between_them(keeps: bool) -> None:
    """What goes meanwhile is a gap where it was lost and nothing where it was deleted."""
    world = long_topic()
    engine = world.engine
    seen = engine.range("t").count
    assert seen == 300
    page = stepped(world, lambda: engine.delete("t", match="t1"), keeps_records=keeps)
    assert 150 < page.count < 300
    assert (page.gaps, page.complete) == ([], True)
    world = long_topic()
    engine = world.engine
    page = stepped(world, lambda: engine.put_topic("t", {"cap_records": 10}), keeps_records=keeps)
    (gap,) = page.gaps
    assert 1 < gap.gap_from <= gap.gap_to == 290
    assert page.count == gap.gap_from - 1 + 10
    assert (gap.reason, page.complete) == ("cap", True)


def test_a_range_whose_topic_goes_is_not_found() -> None:
    """Half of it would be an answer about nothing."""
    world = long_topic()
    with pytest.raises(TopicNotFound):
        stepped(world, lambda: world.engine.delete_topic("t"))


def test_gaps_that_grow_while_a_range_is_read_are_one() -> None:
    """The same loss, told once, however many pieces found it."""
    page = RangePage("t", 1, 1, 0)
    for gap in (Gap(1, 4, "cap"), Gap(5, 9, "cap"), Gap(10, 11, "ttl"), Gap(13, 14, "ttl")):
        page.tell(gap)
    assert page.gaps == [Gap(1, 9, "cap"), Gap(10, 11, "ttl"), Gap(13, 14, "ttl")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("how", ["diff", "range", "seq_at"])
def test_a_read_ends_however_little_of_the_cold_store_is_kept(how: str) -> None:
    """It waits for no block of which it wants nothing, and so never for the same one again."""
    world = World(cold_dir="/cold", hot_bytes=0, resident_bytes=0, block_cache_bytes=0)
    engine, times = world.engine, []
    engine.put_topic("t", {"durability": "fsync"})
    for block in range(2):
        for number in range(4):
            tag = "gone" if (block, number) in [(0, 2), (0, 3)] else "kept"
            times.append(engine.append("t", [{"data": 0, "tag": tag}]).ts)
            world.clock.advance(10)
        engine.checkpoint()
    engine.delete("t", match="gone")
    if how == "diff":
        assert seqs(engine.diff("t", from_seq=2)) == [5, 6, 7, 8]
    elif how == "range":
        assert [record.seq for record in engine.range("t", from_seq=2).records] == [5, 6, 7, 8]
    else:
        assert engine.seq_at("t", times[2]) == (5, times[4])


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_gap_is_no_record(cache_bytes: int) -> None:
    """At least one record is told, also one that is in the cold store behind a gap."""
    world = World(cold_dir="/cold", hot_bytes=0, resident_bytes=0, block_cache_bytes=cache_bytes)
    engine = world.engine
    engine.put_topic("t", {"durability": "fsync"})
    for _ in range(4):
        engine.append("t", [{"data": 0, "tag": "a"}] * 5)
        engine.checkpoint()
    engine.put_topic("t", {"durability": "fsync", "cap_records": 10})
    for match in (None, "a"):
        page = engine.range("t", records_max=1, match=match)
        assert page.gaps == [Gap(1, 10, "cap")]
        assert [record.seq for record in page.records] == [11]
        counted = engine.range("t", records_max=1, match=match, keeps_records=False)
        assert (page.count, page.next_from_seq) == (counted.count, counted.next_from_seq)
