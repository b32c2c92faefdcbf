"""Holds: a cursor keeps what its reader has not passed, within its bounds, and then lets go."""

from __future__ import annotations

import random

import pytest

from tests.support.engines import ENDINGS, Ending, World, explained, gap, seqs
from tests.support.tiers import quick_first
from topics.engine.upkeep.checkpoint import take
from topics.errors import InvalidRequest, TopicFull
from topics.types import Hold

LONG = Hold(max_age_ms=1_000_000)


def size_of(world: World, topic: str = "t") -> int:
    """Bytes of one record, all of them being equal."""
    state = world.engine.state(topic)
    return state.bytes // state.count


def test_a_cap_waits_for_the_cursor(world: World) -> None:
    """What the reader has not passed stays over the cap; what it passes goes, with reason cap."""
    world.engine.put_topic("t", {"cap_records": 3})
    world.fill("t", 3)
    world.engine.put_cursor("t", "c", seq=1, hold=LONG)
    world.fill("t", 5)
    assert world.look("t").seqs == (2, 3, 4, 5, 6, 7, 8)
    assert gap(world.engine.diff("t").tombstone) == (1, 1, "cap")
    world.engine.put_cursor("t", "c", seq=4)
    assert world.look("t").seqs == (5, 6, 7, 8)
    world.engine.put_cursor("t", "c", seq=8)
    assert world.look("t").seqs == (6, 7, 8)
    assert explained(world.engine, "t") == ((1, 5, "evicted"), (6, 8, "live"))


def test_a_byte_cap_waits_for_the_cursor(world: World) -> None:
    """The same for cap_bytes."""
    world.fill("u", 1)
    each = world.engine.state("u").bytes
    world.engine.put_topic("t", {"cap_bytes": 3 * each})
    world.engine.put_cursor("t", "c", seq=0, hold=LONG)
    world.fill("t", 8)
    assert world.engine.state("t").count == 8
    world.engine.put_cursor("t", "c", seq=4)
    assert world.engine.state("t").earliest_seq == 5
    world.engine.delete_cursor("t", "c")
    assert world.engine.state("t").earliest_seq == 6


def test_a_ttl_waits_for_the_cursor(world: World) -> None:
    """What the reader has not passed is readable beyond its TTL; what it passes has expired."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.fill("t", 4)
    world.engine.put_cursor("t", "c", seq=1, hold=LONG)
    world.clock.advance(101)
    page = world.engine.diff("t")
    assert (gap(page.tombstone), seqs(page)) == ((1, 1, "ttl"), [2, 3, 4])
    world.engine.put_cursor("t", "c", seq=3)
    assert explained(world.engine, "t") == ((1, 3, "expired"), (4, 4, "live"))


def test_a_hold_is_no_longer_than_its_age(world: World) -> None:
    """Records older than max_age_ms go without a write, each by its own time, reason as ever."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.engine.put_cursor("t", "c", seq=0, hold=Hold(max_age_ms=1000))
    for _ in range(5):
        world.fill("t", 1)
        world.clock.advance(100)
    world.clock.advance(500)
    assert world.engine.state("t").earliest_seq == 1
    world.clock.advance(1)
    assert gap(world.engine.diff("t").tombstone) == (1, 1, "cap")
    world.clock.advance(200)
    assert world.engine.state("t").earliest_seq == 4
    world.clock.advance(10_000)
    assert world.look("t").seqs == (4, 5)


def test_a_hold_is_no_larger_than_its_bytes(world: World) -> None:
    """At most max_bytes of the newest records are held; what they push out is told as cap."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.fill("t", 1)
    each = size_of(world)
    world.engine.put_cursor("t", "c", seq=0, hold=Hold(max_bytes=5 * each))
    world.fill("t", 8)
    look = world.look("t")
    assert look.seqs == (5, 6, 7, 8, 9)
    assert gap(look.tombstones[0]) == (1, 4, "cap")


def test_a_hold_that_ran_out_lets_the_ttl_have_its_way(world: World) -> None:
    """The reason is then the ordinary one, ttl."""
    world.engine.put_topic("t", {"ttl_ms": 100})
    world.engine.put_cursor("t", "c", seq=0, hold=Hold(max_age_ms=500))
    world.fill("t", 2)
    world.clock.advance(500)
    assert world.engine.state("t").count == 2
    world.clock.advance(1)
    assert gap(world.engine.diff("t").tombstone) == (1, 2, "ttl")


def test_the_weakest_hold_does_not_weaken_the_others(world: World) -> None:
    """A record goes when every hold has let go of it."""
    world.engine.put_topic("t", {"cap_records": 1})
    world.engine.put_cursor("t", "near", seq=0, hold=LONG)
    world.fill("t", 6)
    world.engine.put_cursor("t", "far", seq=2, hold=LONG)
    world.engine.put_cursor("t", "free", seq=0)
    world.engine.put_cursor("t", "near", seq=5)
    assert world.engine.state("t").earliest_seq == 3
    world.engine.delete_cursor("t", "far")
    assert world.engine.state("t").earliest_seq == 6


def test_a_hold_never_blocks_a_delete(world: World) -> None:
    """Deletes remove held records as any others, in silence."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.engine.put_cursor("t", "c", seq=0, hold=LONG)
    world.fill("t", 6, tag="x")
    assert world.engine.delete("t", before_seq=4).deleted == 3
    assert world.engine.delete("t", match="x").deleted == 3
    assert world.look("t").tombstones == ()


def test_held_records_count_as_live_where_a_cap_rejects(world: World) -> None:
    """A full topic that rejects stays full of what is held beyond its TTL."""
    world.engine.put_topic("t", {"cap_records": 2, "discard": "reject", "ttl_ms": 100})
    world.engine.put_cursor("t", "c", seq=0, hold=LONG)
    world.fill("t", 2)
    world.clock.advance(101)
    with pytest.raises(TopicFull):
        world.fill("t", 1)
    world.engine.put_cursor("t", "c", seq=1)
    world.fill("t", 1)
    assert world.look("t").seqs == (2, 3)


@pytest.mark.parametrize(
    "hold", [Hold(), Hold(max_bytes=0), Hold(max_age_ms=-1), Hold(max_bytes=2**64)]
)
def test_a_hold_is_bounded(world: World, hold: Hold) -> None:
    """A hold without a bound, or with one that is none, is refused."""
    world.fill("t", 1)
    with pytest.raises(InvalidRequest):
        world.engine.put_cursor("t", "c", seq=0, hold=hold)
    assert world.engine.cursors("t") == []


def test_a_hold_brings_nothing_back(world: World) -> None:
    """A cursor that is set back, or a hold that comes late, finds what was lost still lost."""
    world.engine.put_topic("t", {"cap_records": 2})
    world.fill("t", 5)
    world.engine.put_cursor("t", "c", seq=5, hold=LONG)
    world.engine.put_cursor("t", "c", seq=0, reset=True)
    world.fill("t", 2)
    assert world.look("t").seqs == (4, 5, 6, 7)


def test_a_lowered_cap_waits_too(world: World) -> None:
    """A changed config evicts and expires only what no hold keeps."""
    world.fill("t", 6)
    world.engine.put_cursor("t", "c", seq=2, hold=LONG)
    world.clock.advance(1000)
    world.engine.put_topic("t", {"cap_records": 1, "ttl_ms": 10})
    assert world.look("t").seqs == (3, 4, 5, 6)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_holds_work_in_every_durability_class(world: World, durability: str) -> None:
    """What is held does not depend on where it is kept."""
    world.engine.put_topic("t", {"cap_records": 1, "durability": durability})
    world.engine.put_cursor("t", "c", seq=0, hold=LONG)
    world.fill("t", 4)
    assert world.look("t").seqs == (1, 2, 3, 4)
    world.engine.put_cursor("t", "c", seq=2)
    assert world.look("t").seqs == (3, 4)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("was_read", [False, True])
def test_what_is_held_and_what_was_let_go_survive_restarts(
    world: World, how: Ending, checkpoint: bool, was_read: bool
) -> None:
    """The floor of a held topic is the same after a restart, even when the clock went back."""
    world.engine.put_topic("t", {"cap_records": 2, "durability": "fsync"})
    world.engine.put_cursor("t", "c", seq=0, hold=Hold(max_age_ms=1000))
    for _ in range(6):
        world.fill("t", 1)
        world.clock.advance(100)
    if checkpoint:
        world.engine.checkpoint()
    if was_read:
        world.clock.advance(601)
        assert world.look("t").seqs == (4, 5, 6)
        # Of the same group as something durable, or the machine may forget it.
        world.engine.sync()
        world.clock.jump_wall(-601)
    before = world.look("t")
    world.restart(how)
    assert world.look("t") == before
    world.fill("t", 1)
    assert world.engine.state("t").earliest_seq == before.earliest


@pytest.mark.parametrize("sealed", [False, True])
def test_a_hold_lets_go_of_the_exact_record(world: World, sealed: bool) -> None:
    """By age and by bytes, whatever block or segment the edge is in."""
    world.engine.put_topic("t", {"cap_records": 1})
    world.engine.put_cursor("t", "c", seq=0, hold=Hold(max_age_ms=1000))
    for n in range(6):
        world.engine.append("t", [{"data": n}] * 3)
        world.clock.advance(100)
        if sealed and n in (1, 3):
            world.engine.checkpoint()
    world.clock.advance(500)
    assert world.engine.state("t").earliest_seq == 4
    newest = len(world.engine.range("t", from_seq=11).records_json) - len("[]") + len(",")
    world.engine.put_cursor("t", "c", hold=Hold(max_bytes=newest))
    assert world.engine.state("t").earliest_seq == 12


def test_an_append_costs_the_holds_and_not_what_they_hold(world: World) -> None:
    """The rule looks at the first block alone while nothing can go."""
    world.engine.put_topic("t", {"cap_records": 1})
    for n in range(4):
        world.engine.put_cursor("t", f"c{n}", seq=0, hold=LONG)
    world.fill("t", 2)
    topic = world.engine.core.by_name["t"]

    class Counted(list):  # type: ignore[type-arg]
        looked = 0

        def __getitem__(self, index: object) -> object:
            Counted.looked += 1
            return super().__getitem__(index)  # type: ignore[call-overload]

    costs = []
    for backlog in (100, 1000):
        world.engine.append("t", [{"data": 0}] * backlog)
        topic.blocks = Counted(topic.blocks)
        Counted.looked = 0
        world.fill("t", 1)
        costs.append(Counted.looked)
    assert costs[0] == costs[1]


@pytest.mark.parametrize("how", ENDINGS)
def test_what_a_snapshot_has_seen_lets_go_of_nothing_again(world: World, how: Ending) -> None:
    """The end of an earlier hold, replayed, does not reach what a later one keeps."""
    world.fill("first", 3)
    world.engine.put_topic("t", {"cap_records": 2, "durability": "fsync"})
    world.engine.put_cursor("t", "c", seq=0, hold=LONG)
    world.fill("t", 6)
    taking = take(world.engine.core)
    next(taking)
    world.engine.delete_cursor("t", "c")
    world.engine.put_cursor("t", "c", seq=4, hold=LONG)
    world.fill("t", 6)
    for _ in taking:
        pass
    before = world.look("t")
    assert before.seqs == tuple(range(5, 13))
    world.restart(how)
    assert world.look("t") == before


@pytest.mark.parametrize("seed", quick_first(range(12), 5))
def test_random_histories_keep_their_floors(seed: int) -> None:
    """After any mix of writes, holds, moves, deletes, time and endings, the floor stays put."""
    world, chance = World(block_bytes=512), random.Random(seed)
    durability = chance.choice(["fsync", "disk", "memory"])
    config = chance.choice(
        [{"cap_records": 4}, {"cap_bytes": 300}, {"ttl_ms": 300}, {"cap_records": 6, "ttl_ms": 500}]
    )
    world.engine.put_topic("t", {**config, "durability": durability})
    for _ in range(120):
        head = world.engine.state("t").head_seq
        name = chance.choice("abc")
        what = chance.randrange(10)
        if what < 4:
            records = [{"data": "x" * chance.randrange(40)}] * chance.randrange(1, 5)
            world.engine.append("t", records)
        elif what < 6:
            hold = chance.choice(
                [
                    None,
                    Hold(max_bytes=600),
                    Hold(max_age_ms=700),
                    Hold(max_bytes=400, max_age_ms=200),
                ]
            )
            seq = chance.randrange(max(head - 6, 0), head + 1)
            world.engine.put_cursor("t", name, seq=seq, reset=True, hold=hold)
        elif what == 6:
            world.engine.delete_cursor("t", name)
        elif what == 7:
            world.clock.advance(chance.randrange(300))
        elif what == 8 and head:
            world.engine.delete("t", before_seq=chance.randrange(max(head - 8, 1), head + 1))
        else:
            chance.choice([world.engine.checkpoint, world.engine.sync])()
        if chance.random() < 0.15:
            before, cursors = world.look("t"), world.engine.cursors("t")
            endings: list[Ending] = ["clean", "kill"]
            world.restart(chance.choice([*endings, "crash"] if durability == "fsync" else endings))
            assert world.look("t") == before
            assert world.engine.cursors("t") == cursors
