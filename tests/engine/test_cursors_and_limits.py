"""Cursors: where a read begins, where it ends, and how it says that there is no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import World, gap, read_all, seqs, tagged, values
from topics.engine.engine import BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX, Engine
from topics.errors import InvalidRequest, TopicNotFound
from topics.settings import MIB


@pytest.mark.parametrize("from_seq", range(6))
def test_a_cursor_is_an_exclusive_lower_bound(world: World, from_seq: int) -> None:
    """A read returns the records with $seq > from_seq, ascending."""
    world.fill("t", 5)
    assert seqs(world.engine.diff("t", from_seq=from_seq)) == list(range(from_seq + 1, 6))


def test_a_cursor_at_the_head_is_caught_up(world: World) -> None:
    """from_seq equal to head_seq is a tailing reader, not a stale one."""
    world.fill("t", 3)
    page = world.engine.diff("t", from_seq=3)
    assert (page.tombstone, page.caught_up, page.lag, page.count) == (None, True, 0, 0)
    world.fill("t", 1)
    assert seqs(world.engine.diff("t", from_seq=3)) == [4]


def test_an_empty_topic_is_caught_up_at_zero(engine: Engine) -> None:
    """A topic never written has head 0 and floor 1."""
    engine.put_topic("t")
    page = engine.diff("t")
    assert (page.head_seq, page.earliest_seq, page.next_from_seq) == (0, 1, 0)
    assert page.caught_up
    assert page.tombstone is None
    state = engine.state("t")
    assert (state.head_seq, state.next_seq, state.earliest_seq, state.count) == (0, 1, 1, 0)


def test_a_diff_creates_no_topic(engine: Engine) -> None:
    """Reading a topic that does not exist is topic_not_found."""
    for read in (engine.diff, engine.state, engine.explain):
        with pytest.raises(TopicNotFound) as missing:
            read("t")
        assert missing.value.detail == {"topic": "t"}
    assert engine.list_topics() == []


@pytest.mark.parametrize("from_seq", [-1, 2**64, True, "1", 1.5, None], ids=repr)
def test_a_malformed_cursor_is_refused(world: World, from_seq: Any) -> None:
    """from_seq is an unsigned 64-bit integer."""
    world.fill("t", 1)
    with pytest.raises(InvalidRequest):
        world.engine.diff("t", from_seq=from_seq)


@pytest.mark.parametrize(
    ("limit", "count"), [(1, 1), (2, 2), (255, 255), (0, 256), (256, 256), (1000, 1000)]
)
def test_a_limit_is_kept(world: World, limit: int, count: int) -> None:
    """At most `limit` records; 0 means the default of 256."""
    world.engine.append("t", [{"data": 0}] * 1200)
    page = world.engine.diff("t", limit=limit)
    assert page.count == len(page.records) == count
    assert page.next_from_seq == count
    assert not page.caught_up
    assert page.lag == 1200 - count


@pytest.mark.parametrize("limit", [1001, 10**9])
def test_a_limit_beyond_the_most_is_clamped(world: World, limit: int) -> None:
    """Too large a limit is not an error."""
    world.engine.append("t", [{"data": 0}] * 1200)
    assert world.engine.diff("t", limit=limit).count == 1000


def test_the_most_a_limit_can_be_is_a_setting() -> None:
    """TOPICS_MAX_LIMIT bounds every read, also the default."""
    world = World(max_limit=10)
    world.engine.append("t", [{"data": 0}] * 20)
    assert world.engine.diff("t").count == 10
    assert world.engine.diff("t", limit=100).count == 10
    assert world.engine.diff("t", limit=5).count == 5


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("batch", [1, 4, 20])
@pytest.mark.parametrize("sealed", [False, True])
def test_paging_sees_everything_once_and_in_order(
    world: World, limit: int, batch: int, sealed: bool
) -> None:
    """next_from_seq of one page is from_seq of the next; nothing is skipped or repeated."""
    for start in range(0, 20, batch):
        world.engine.append("t", [{"data": n} for n in range(start, start + batch)])
    if sealed:
        world.engine.checkpoint()
    got = [v for page in read_all(world.engine, "t", limit=limit) for v in values(page)]
    assert got == list(range(20))


def test_a_byte_budget_stops_at_the_record_that_crosses_it(world: World) -> None:
    """The record that crosses the budget is the last one delivered."""
    world.engine.append("t", [{"data": "x" * 100}] * 10)
    one = world.engine.state("t").bytes // 10
    for budget, count in [(1, 1), (one, 1), (one + 1, 2), (3 * one, 3), (3 * one + 1, 4)]:
        page = world.engine.diff("t", bytes_max=budget)
        assert (page.count, page.next_from_seq) == (count, count)


@pytest.mark.parametrize("sealed", [False, True])
def test_at_least_one_record_is_delivered_whatever_its_size(world: World, sealed: bool) -> None:
    """A budget smaller than a record does not stop a reader."""
    world.engine.append("t", [{"data": "x" * 500_000}] * 3)
    if sealed:
        world.engine.checkpoint()
    pages = list(read_all(world.engine, "t", bytes_max=1))
    assert [page.count for page in pages] == [1, 1, 1]


@pytest.mark.parametrize(("budget", "count"), [(0, 2), (3 * MIB, 4), (9 * MIB, 10), (99 * MIB, 10)])
def test_the_byte_budget_has_a_default_and_a_most(world: World, budget: int, count: int) -> None:
    """1 MiB unless said otherwise, never more than 8 MiB."""
    assert (BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX) == (MIB, 8 * MIB)
    for _ in range(12):
        world.engine.append("t", [{"data": "x" * (900 * 1024)}])
    assert world.engine.diff("t", bytes_max=budget).count == count


def test_the_budget_counts_filtered_records_too(world: World) -> None:
    """A read examines a bounded number of bytes, whoever wrote them."""
    world.engine.append("t", [{"data": "x" * 100, "node": "me"}] * 10)
    page = world.engine.diff("t", node="me", bytes_max=300)
    assert page.count == 0
    assert 1 <= page.next_from_seq < 10


VIEWS: list[tuple[dict[str, bool], dict[str, Any]]] = [
    ({}, {"data": {"d": 1}, "meta": {"m": "1"}, "$node": "n"}),
    ({"include_tags": True}, {"data": {"d": 1}, "meta": {"m": "1"}, "$node": "n", "$tag": "g"}),
    ({"include_meta": False}, {"data": {"d": 1}, "$node": "n"}),
    ({"include_data": False}, {"meta": {"m": "1"}, "$node": "n"}),
    ({"include_data": False, "include_meta": False, "include_tags": True},
     {"$node": "n", "$tag": "g"}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), VIEWS, ids=str)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_reader_gets_the_fields_it_asked_for(
    world: World, options: dict[str, bool], expected: dict[str, Any], sealed: bool
) -> None:
    """Tags only on request, meta and data unless declined; what a record lacks is absent."""
    import json

    world.engine.append(
        "t", [{"data": {"d": 1}, "tag": "g", "node": "n", "meta": {"m": "1"}}, {"data": None}]
    )
    if sealed:
        world.engine.checkpoint()
    full, bare = json.loads(world.engine.diff("t", **options).records_json)
    assert {key: full[key] for key in full if key not in ("$seq", "$ts")} == expected
    rest = bare.keys() - {"$seq", "$ts"}
    assert rest == ({"data"} if options.get("include_data", True) else set())


@pytest.mark.parametrize(
    "data",
    ['{"meta":{"a":1}}', '",\\"meta\\":{"', '[{"data":1,"meta":{"x":{}}}]', '",\\"data\\":"'],
)
@pytest.mark.parametrize("node", ["n", ',"data":', ',"meta":{', '"},'])
def test_content_that_looks_like_framing_is_cut_correctly(
    world: World, data: str, node: str
) -> None:
    """Leaving out data or meta never cuts inside what a client wrote."""
    import json

    body = {"records": [{"data": 0, "tag": '","data":', "node": node, "meta": {"meta": "{"}}]}
    text = json.dumps(body).replace('"data": 0', f'"data": {data}')
    world.engine.append_json("t", text.encode())
    for options in ({}, {"include_meta": False}, {"include_data": False}, {"include_tags": True}):
        (record,) = json.loads(world.engine.diff("t", **options).records_json)
        assert record["$node"] == node
        assert record.get("data", json.loads(data)) == json.loads(data)
        assert record.get("meta", {"meta": "{"}) == {"meta": "{"}
        assert record.get("$tag", '","data":') == '","data":'
        assert ("data" in record) == options.get("include_data", True)
        assert ("meta" in record) == options.get("include_meta", True)


def test_a_read_with_touch_is_remembered_and_one_without_is_not(world: World) -> None:
    """last_read_ts follows reads that count as consumption."""
    world.fill("t", 1)
    assert world.engine.state("t", touch=False).last_read_ts is None
    world.clock.advance(5)
    world.engine.diff("t")
    read_at = world.clock.wall_ms()
    world.clock.advance(5)
    assert world.engine.state("t", touch=False).last_read_ts == read_at
    world.engine.state("t")
    assert world.engine.state("t", touch=False).last_read_ts == world.clock.wall_ms()


def test_last_write_ts_is_the_time_of_the_last_record(world: World) -> None:
    """null before the first write."""
    world.engine.put_topic("t")
    assert world.engine.state("t").last_write_ts is None
    world.clock.advance(7)
    done = world.engine.append("t", [{"data": 0}])
    assert world.engine.state("t").last_write_ts == done.ts == world.clock.wall_ms()


def test_a_write_answers_with_its_seqs(world: World) -> None:
    """Seqs are contiguous in write order, `count` is the number of records of this write."""
    world.fill("t", 2)
    done = world.engine.append("t", [{"data": n} for n in range(5)])
    assert (done.first_seq, done.last_seq, done.head_seq, done.count) == (3, 7, 7, 5)
    assert not done.created
    assert not done.deduped
    assert values(world.engine.diff("t", from_seq=2)) == [0, 1, 2, 3, 4]


def test_topics_have_seqs_of_their_own(world: World) -> None:
    """Each topic counts from 1."""
    for name in ("a", "b", "a", "b", "b"):
        world.fill(name, 1)
    assert world.look("a").seqs == (1, 2)
    assert world.look("b").seqs == (1, 2, 3)


def test_topics_are_listed_in_byte_order(engine: Engine) -> None:
    """Listing pages through names by prefix, in byte order."""
    for name in ("b", "a:2", "a:10", "B", "a", "a.b", "c"):
        engine.put_topic(name)
    everything = ["B", "a", "a.b", "a:10", "a:2", "b", "c"]
    assert engine.list_topics() == everything
    assert engine.list_topics(prefix="a") == ["a", "a.b", "a:10", "a:2"]
    assert engine.list_topics(after="a.b", limit=2) == ["a:10", "a:2"]
    assert engine.list_topics(prefix="nobody") == []


def test_holes_in_what_is_seen_are_always_explained(world: World) -> None:
    """Seqs a reader misses are either in a tombstone or were removed on purpose."""
    world.engine.append("t", tagged(*"abcabcabc"))
    world.engine.delete("t", match="b")
    world.engine.put_topic("t", {"cap_records": 4})
    page = world.engine.diff("t")
    assert gap(page.tombstone) == (1, 3, "cap")
    assert seqs(page) == [4, 6, 7, 9]
