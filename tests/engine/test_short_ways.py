"""Short ways: where there is one beside the general way, both come to the same bytes.

docs/architecture.md has the list of them. Each pair is driven through the same history here, or in
the test that the list names beside it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import Ending, World, explained
from tests.support.tiers import quick_first
from topics.engine.state.write_request import request_of
from topics.types import Appended

PLAIN: list[dict[str, Any]] = [{"data": n} for n in range(12)]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "plain": PLAIN,
    "large": [{"data": "x" * 3000 * n} for n in range(6)],
    "tagged": [{"data": n, "tag": "ab"[n % 2]} for n in range(6)],
    "noded": [{"data": n, "node": "n"} for n in range(6)],
    "with meta": [{"data": n, "meta": {"k": str(n)}} for n in range(6)],
    "mixed": [PLAIN[0], {"data": 1, "tag": "a", "node": "n"}, PLAIN[2], {"data": 3, "meta": {}}],
}
CLASSES = ("fsync", "disk", "memory", "ephemeral")


def alone(world: World, records: list[dict[str, Any]]) -> list[Appended]:
    """Each in a call of its own, all of them in one turn."""
    tickets = [world.engine.submit_append("t", request_of([record])) for record in records]
    world.engine.sync()
    return [ticket.result for ticket in tickets]


def together(world: World, records: list[dict[str, Any]]) -> Appended:
    """All in one call, which is the general way."""
    return world.engine.append("t", records)


def seen(world: World) -> tuple[object, ...]:
    state, page = world.engine.state("t"), world.engine.diff("t", include_tags=True)
    counts = (state.head_seq, state.earliest_seq, state.count, state.bytes)
    return (bytes(page.records_json), *counts, explained(world.engine, "t"))


@pytest.mark.parametrize("how", quick_first(["kill", "clean", None], 1))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("durability", CLASSES)
def test_records_written_alone_are_those_of_a_batch(
    durability: str, shape: str, how: Ending | None
) -> None:
    """The same bytes, counts and answers, before and after an end of the process."""
    worlds = [World(), World()]
    for world in worlds:
        world.engine.put_topic("t", {"durability": durability})
    answers, whole = alone(worlds[0], SHAPES[shape]), together(worlds[1], SHAPES[shape])
    worlds[1].engine.sync()
    assert [answer.first_seq for answer in answers] == list(range(1, whole.last_seq + 1))
    assert {(answer.epoch, answer.ts) for answer in answers} == {(whole.epoch, whole.ts)}
    if how is not None:
        for world in worlds:
            world.restart(how)
    assert seen(worlds[0]) == seen(worlds[1])


@pytest.mark.parametrize("cap", [{"cap_records": 4}, {"cap_bytes": 150}], ids=str)
def test_a_cap_takes_the_same_of_records_written_alone(cap: dict[str, int]) -> None:
    """Records that come one by one are evicted as those of a batch are."""
    worlds = [World(), World()]
    for world in worlds:
        world.engine.put_topic("t", {"durability": "disk", **cap})
    alone(worlds[0], PLAIN)
    together(worlds[1], PLAIN)
    assert seen(worlds[0])[1:4] == seen(worlds[1])[1:4]
    assert worlds[0].engine.diff("t").records_json == worlds[1].engine.diff("t").records_json


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sealed", [False, True])
def test_records_cut_one_by_one_are_those_of_a_slice(shape: str, sealed: bool) -> None:
    """A reader whose filter leaves nothing out gets what one without a filter gets."""
    world = World(resident_bytes=0)
    together(world, SHAPES[shape])
    if sealed:
        world.engine.checkpoint()
    slices = world.engine.diff("t").records_json
    assert world.engine.diff("t", node="nobody").records_json == slices
