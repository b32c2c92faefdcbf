"""Node loop-prevention: a reader never gets back what it wrote, and is not alarmed about it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import ENDINGS, Ending, World, seqs


@pytest.fixture
def nodes(world: World) -> World:
    """Seqs 1-6 by a, b, a, nobody, A and the empty node."""
    records = [{"data": 0, "node": n} if n is not None else {"data": 0} for n in "ab"]
    records += [{"data": 0, "node": "a"}, {"data": 0}, {"data": 0, "node": "A"}]
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.append("t", [*records, {"data": 0, "node": ""}])
    return world


@pytest.mark.parametrize(
    ("node", "left"),
    [
        ((), [1, 2, 3, 4, 5, 6]),
        ("a", [2, 4, 5, 6]),
        (["a"], [2, 4, 5, 6]),
        (["a", "b"], [4, 5, 6]),
        (("a", "A"), [2, 4, 6]),
        ("", [1, 2, 3, 4, 5]),
        ("c", [1, 2, 3, 4, 5, 6]),
        ("aa", [1, 2, 3, 4, 5, 6]),
        (["a", "b", "A", ""], [4]),
    ],
    ids=str,
)
def test_records_of_the_readers_own_nodes_are_left_out(
    nodes: World, node: Any, left: list[int]
) -> None:
    """Equality is byte-exact, several ids may be given, records without a node always pass."""
    page = nodes.engine.diff("t", node=node)
    assert seqs(page) == left
    assert page.tombstone is None
    assert (page.next_from_seq, page.caught_up) == (6, True)


def test_the_cursor_passes_filtered_records_without_delivering_any(world: World) -> None:
    """A topic full of the reader's own records is caught up, not stuck."""
    world.engine.append("t", [{"data": 0, "node": "me"}] * 5)
    page = world.engine.diff("t", node="me")
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 5, True)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_the_limit_bounds_what_is_examined(world: World, limit: int) -> None:
    """Filtering comes after the batch is chosen: a page may be short, even empty, and moves on."""
    world.engine.append("t", [{"data": n, "node": "me" if n % 3 else "you"} for n in range(9)])
    got, cursor, pages = [], 0, 0
    while True:
        page = world.engine.diff("t", from_seq=cursor, node="me", limit=limit)
        assert page.next_from_seq == min(cursor + limit, 9)
        assert page.records_scanned <= limit
        got += seqs(page)
        cursor = page.next_from_seq
        pages += 1
        if page.caught_up:
            break
    assert got == [1, 4, 7]
    assert pages == -(-9 // limit)


def test_a_record_node_wins_over_the_node_of_its_batch(world: World) -> None:
    """The batch-level node is a default for records that name none."""
    world.engine.append("t", [{"data": 0}, {"data": 0, "node": "own"}], node="batch")
    assert [r.node for r in world.engine.diff("t").records] == ["batch", "own"]


def test_a_node_is_absent_when_nobody_set_it(world: World) -> None:
    """$node appears only on records that have one."""
    world.engine.append("t", [{"data": 0}, {"data": 0, "node": "n"}])
    raw = world.engine.diff("t").records_json
    assert raw.count(b'"$node"') == 1


def test_a_topic_can_opt_out_of_filtering(nodes: World) -> None:
    """With dedupe_node false every reader gets everything."""
    nodes.engine.put_topic("t", {"dedupe_node": False})
    assert seqs(nodes.engine.diff("t", node=["a", "b"])) == [1, 2, 3, 4, 5, 6]
    nodes.engine.put_topic("t", {"dedupe_node": True})
    assert seqs(nodes.engine.diff("t", node=["a", "b"])) == [4, 5, 6]


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_nodes_survive_restarts(nodes: World, how: Ending, checkpoint: bool) -> None:
    """The origin of a record is kept with it, sealed or not."""
    before = nodes.engine.diff("t").records_json
    if checkpoint:
        nodes.engine.checkpoint()
    nodes.restart(how)
    assert nodes.engine.diff("t").records_json == before
    assert seqs(nodes.engine.diff("t", node="a")) == [2, 4, 5, 6]


def test_filtering_does_not_hide_a_loss(world: World) -> None:
    """A tombstone is told to a reader even if all that was lost was its own."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.engine.append("t", [{"data": 0, "node": "me"}] * 4)
    page = world.engine.diff("t", node="me")
    assert page.tombstone is not None
    assert (page.count, page.next_from_seq) == (0, 4)


@pytest.mark.parametrize("length", [127, 128])
def test_a_node_may_have_128_bytes(world: World, length: int) -> None:
    """The limit of a node is in UTF-8 bytes."""
    world.engine.append("t", [{"data": 0, "node": "n" * length}])
    world.engine.append("t", [{"data": 0, "node": "é" * (length // 2)}])
    assert world.engine.state("t").count == 2
