"""Caps: what a full topic evicts, what it refuses, and that neither is ever undone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, explained, gap, seqs, tagged
from topics.engine.engine import Engine
from topics.engine.state.write_request import request_of
from topics.errors import RecordTooLarge, TopicFull, TopicsError
from topics.testing.lateness import Lateness
from topics.types import ConfigPatch, Hold


def bytes_of(engine: Engine, records: list[dict[str, Any]]) -> int:
    """What these records count for, measured on a topic of their own."""
    engine.append("measure", records)
    size = engine.state("measure").bytes
    engine.delete_topic("measure")
    return size


def test_caps_are_off_by_default(world: World) -> None:
    """A topic without a config keeps everything."""
    world.fill("t", 300)
    state = world.engine.state("t")
    assert (state.count, state.earliest_seq, state.evict_floor) == (300, 1, 1)


@pytest.mark.parametrize("cap", [1, 2, 5, 9])
def test_a_record_cap_keeps_the_newest(world: World, cap: int) -> None:
    """Under discard old the write succeeds and the oldest live records go."""
    world.engine.put_topic("t", {"cap_records": cap})
    world.fill("t", 10)
    look = world.look("t")
    assert look.seqs == tuple(range(11 - cap, 11))
    assert (look.count, look.earliest, look.evict_floor) == (cap, 11 - cap, 11 - cap)


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_a_byte_cap_keeps_the_newest_that_fit(world: World, kept: int) -> None:
    """cap_bytes evicts the oldest until the rest fits."""
    one = bytes_of(world.engine, [{"data": "x" * 50}])
    world.engine.put_topic("t", {"cap_bytes": one * kept + one // 2})
    for _ in range(9):
        world.engine.append("t", [{"data": "x" * 50}])
    state = world.engine.state("t")
    assert state.count == kept
    assert state.bytes == one * kept
    assert state.earliest_seq == 10 - kept


@pytest.mark.parametrize(("cap_records", "cap_byte_records", "kept"), [(2, 5, 2), (5, 2, 2)])
def test_whichever_cap_is_hit_first_evicts(
    world: World, cap_records: int, cap_byte_records: int, kept: int
) -> None:
    """With both caps set, the tighter one decides."""
    one = bytes_of(world.engine, [{"data": 0}])
    world.engine.put_topic("t", {"cap_records": cap_records, "cap_bytes": one * cap_byte_records})
    world.fill("t", 8)
    assert world.engine.state("t").count == kept


@pytest.mark.parametrize("batch", [4, 5, 50])
def test_a_write_larger_than_the_cap_keeps_its_newest_part(world: World, batch: int) -> None:
    """Under discard old, what does not fit of one write is evicted from its front."""
    world.engine.put_topic("t", {"cap_records": 3})
    world.fill("t", 2)
    done = world.engine.append("t", [{"data": n} for n in range(batch)])
    assert (done.first_seq, done.last_seq, done.count) == (3, batch + 2, batch)
    assert world.look("t").seqs == (batch, batch + 1, batch + 2)
    assert gap(world.engine.diff("t").tombstone) == (1, batch - 1, "cap")


def test_a_record_larger_than_the_byte_cap_is_evicted_at_once(world: World) -> None:
    """Under discard old a record that can never fit is accepted, counted and told as lost."""
    world.engine.put_topic("t", {"cap_bytes": 60})
    world.engine.append("t", [{"data": "x" * 100}])
    state = world.engine.state("t")
    assert (state.head_seq, state.count, state.bytes, state.earliest_seq) == (1, 0, 0, 2)
    assert gap(world.engine.diff("t").tombstone) == (1, 1, "cap")


def test_a_deleted_record_no_longer_counts(world: World) -> None:
    """Caps are computed from the live records that remain after deletion."""
    world.engine.put_topic("t", {"cap_records": 3})
    world.engine.append("t", tagged("x", None, None))
    world.engine.delete("t", match="x")
    world.fill("t", 1)
    assert world.look("t").seqs == (2, 3, 4)
    assert world.engine.diff("t").tombstone is None


def test_an_expired_record_no_longer_counts(world: World) -> None:
    """What has expired is not evicted again: its reason stays ttl."""
    world.engine.put_topic("t", {"cap_records": 3, "ttl_ms": 100})
    world.fill("t", 3)
    world.clock.advance(101)
    world.fill("t", 3)
    assert world.look("t").seqs == (4, 5, 6)
    assert gap(world.engine.diff("t").tombstone) == (1, 3, "ttl")


@pytest.mark.parametrize("config", [{"cap_records": 3}, {"cap_bytes": 120}])
def test_reject_refuses_before_any_seq_is_assigned(world: World, config: dict[str, int]) -> None:
    """A full topic that rejects raises topic_full and appends nothing."""
    world.engine.put_topic("t", {**config, "discard": "reject"})
    with pytest.raises(TopicFull) as refused:
        world.fill("t", 10)
    before = world.engine.state("t")
    assert before.count == before.head_seq
    with pytest.raises(TopicFull):
        world.fill("t", 1)
    assert world.engine.state("t").head_seq == before.head_seq
    assert (refused.value.code, refused.value.status) == ("topic_full", 422)
    detail = refused.value.detail
    assert {"cap_records", "cap_bytes", "head_seq", "earliest_seq"} <= detail.keys()
    assert detail["head_seq"] == before.head_seq
    assert detail["earliest_seq"] == 1


def test_a_rejected_batch_leaves_nothing_behind(world: World) -> None:
    """A batch that does not fit as a whole is refused as a whole."""
    world.engine.put_topic("t", {"cap_records": 3, "discard": "reject"})
    world.fill("t", 2)
    with pytest.raises(TopicFull):
        world.engine.append("t", tagged(None, None))
    assert world.look("t").seqs == (1, 2)
    world.fill("t", 1)
    assert world.engine.state("t").head_seq == 3


@pytest.mark.parametrize(("config", "count"), [({"cap_records": 3}, 4), ({"cap_bytes": 100}, 5)])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_write_that_can_never_fit_is_too_large_rather_than_full(
    world: World, config: dict[str, int], count: int, is_full: bool
) -> None:
    """Under reject, larger than the whole cap is a permanent 400, also on a full topic."""
    world.engine.put_topic("t", {**config, "discard": "reject"})
    if is_full:
        world.fill("t", 2)
    with pytest.raises(RecordTooLarge) as refused:
        world.engine.append("t", [{"data": 0}] * count)
    assert (refused.value.code, refused.value.status) == ("record_too_large", 400)
    assert world.engine.state("t").head_seq == (2 if is_full else 0)


@pytest.mark.parametrize("room", ["delete", "ttl", "config"])
def test_a_full_topic_takes_writes_again_when_there_is_room(world: World, room: str) -> None:
    """topic_full is retryable: deleting, expiring or a larger cap make room."""
    world.engine.put_topic("t", {"cap_records": 2, "discard": "reject", "ttl_ms": 1000})
    world.fill("t", 2)
    if room == "delete":
        world.engine.delete("t", before_seq=2)
    elif room == "ttl":
        world.clock.advance(1001)
    else:
        world.engine.put_topic("t", {"cap_records": 3, "discard": "reject"})
    world.fill("t", 1)
    assert world.engine.state("t").head_seq == 3


def test_reject_counts_what_is_still_on_its_way(world: World) -> None:
    """Writes that wait for their sync already take their place under the cap."""
    from topics.engine.state.write_request import request_of

    world.engine.put_topic("t", {"cap_records": 2, "discard": "reject", "durable": True})
    for _ in range(2):
        world.engine.submit_append("t", request_of([{"data": 0}]))
    with pytest.raises(TopicFull):
        world.engine.submit_append("t", request_of([{"data": 0}]))
    world.engine.sync()
    assert world.engine.state("t").count == 2


def test_reject_without_caps_refuses_nothing(world: World) -> None:
    """With both caps off, discard has no effect."""
    world.engine.put_topic("t", {"discard": "reject"})
    world.fill("t", 20)
    assert world.engine.state("t").count == 20


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_tightened_cap_evicts_what_is_there(world: World, discard: str) -> None:
    """Lowering a cap makes existing records leave, with the reason cap."""
    world.fill("t", 10)
    world.engine.put_topic("t", {"cap_records": 4, "discard": discard})
    assert world.look("t").seqs == (7, 8, 9, 10)
    assert gap(world.engine.diff("t").tombstone) == (1, 6, "cap")


@pytest.mark.parametrize("how", [None, *ENDINGS])
@pytest.mark.parametrize("relaxed", [{}, {"cap_records": 100}, {"cap_bytes": 10_000}])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_relaxing_a_cap_brings_nothing_back(
    world: World, how: Ending | None, relaxed: dict[str, int], durability: str
) -> None:
    """What was evicted stays evicted when the cap is raised or removed, restarts included."""
    world.engine.put_topic("t", {"cap_records": 3, "durability": durability})
    world.fill("t", 8)
    world.engine.put_topic("t", {**relaxed, "durability": durability})
    assert world.look("t").seqs == (6, 7, 8)
    if how is not None:
        world.restart(how)
    look = world.look("t")
    assert look.seqs == (6, 7, 8)
    assert (look.earliest, look.evict_floor) == (6, 6)
    world.fill("t", 2)
    assert world.look("t").count == 5


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("checkpoint_at", [None, 3, 9, 12])
@pytest.mark.parametrize("config", [{"cap_records": 4}, {"cap_bytes": 170}])
def test_the_floor_of_a_capped_topic_survives_restarts(
    world: World, how: Ending, checkpoint_at: int | None, config: dict[str, int]
) -> None:
    """The same records are evicted after a restart as before, wherever a checkpoint fell."""
    world.engine.put_topic("t", config)
    for n in range(12):
        world.engine.append("t", tagged("even" if n % 2 else None))
        if n == 7:
            world.engine.delete("t", match="even")
        if n + 1 == checkpoint_at:
            world.engine.checkpoint()
    before = world.look("t")
    world.restart(how)
    assert world.look("t") == before
    world.fill("t", 1)
    assert world.look("t").earliest >= before.earliest


def test_only_live_records_are_accounted_as_evicted(world: World) -> None:
    """The account keeps deleted and evicted seqs apart inside one gap."""
    world.engine.append("t", tagged("x", None, "x", None, None))
    world.engine.delete("t", match="x")
    world.engine.put_topic("t", {"cap_records": 1})
    assert explained(world.engine, "t") == (
        (1, 1, "deleted"),
        (2, 2, "evicted"),
        (3, 3, "deleted"),
        (4, 4, "evicted"),
        (5, 5, "live"),
    )


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_caps_hold_in_every_durability_class(world: World, durability: str) -> None:
    """Retention does not depend on where records are kept."""
    world.engine.put_topic("t", {"cap_records": 2, "durability": durability})
    world.fill("t", 5)
    assert world.look("t").seqs == (4, 5)
    world.engine.put_topic("t", {"cap_records": 2, "discard": "reject", "durability": durability})
    with pytest.raises(TopicFull):
        world.fill("t", 1)


def test_a_rejected_write_does_not_use_up_its_idempotency_key(world: World) -> None:
    """The retry of a refused write, once there is room, is a write and not a repetition."""
    world.engine.put_topic("t", {"cap_records": 1, "discard": "reject"})
    world.fill("t", 1)
    with pytest.raises(TopicFull):
        world.engine.append("t", [{"data": 1}], idempotency_key="k")
    world.engine.delete("t", before_seq=2)
    assert not world.engine.append("t", [{"data": 1}], idempotency_key="k").deduped


@pytest.mark.parametrize(
    ("config", "records"),
    [({"cap_records": 1, "discard": "reject"}, 2), ({"cap_bytes": 5, "discard": "reject"}, 1)],
)
def test_a_write_that_is_refused_does_not_create_its_topic(
    engine: Engine, config: dict[str, object], records: int
) -> None:
    """A lazy create and its write happen together or not at all."""
    with pytest.raises(TopicsError):
        engine.append("t", [{"data": 0}] * records, config=config)
    assert engine.list_topics() == []
    engine.append("t", [{"data": 0}])
    assert seqs(engine.diff("t")) == [1]


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_only_a_tighter_cap_makes_a_topic_give_up_what_it_may_not_evict(
    world: World, how: Ending
) -> None:
    """Over its cap by a hold that is gone, it keeps that over any other change."""
    world.engine.put_topic("t", {"discard": "reject", "cap_records": 20, "cap_bytes": 10_000})
    world.fill("t", 10)
    world.engine.put_cursor("t", "reader", seq=0, hold=Hold(max_bytes=1 << 40))
    world.engine.patch_topic("t", cap_records=3)
    world.engine.delete_cursor("t", "reader")
    for change in (
        {"lease_ms": 60_000}, {"cap_records": 3}, {"cap_records": 5}, {"cap_bytes": 20_000},
    ):  # fmt: skip
        world.engine.patch_topic("t", **change)
        world.restart(how)
        assert len(world.look("t").seqs) == 10, change
    world.engine.patch_topic("t", cap_records=4)
    world.restart(how)
    assert world.look("t").seqs == (7, 8, 9, 10)


def test_a_cap_takes_nothing_back_that_was_accepted_before_it_was_in_force() -> None:
    """Writes behind a config that is on its way count against the one that was."""
    world = World(wal_shards=1)
    engine = world.engine
    engine.put_topic("t", {"durability": "fsync"})
    world.fill("t", 2)
    late = Lateness()
    late.attach(engine)
    engine.submit_put("t", {"durability": "fsync", "discard": "reject", "cap_records": 4})
    writes = [engine.submit_append("t", request_of([{"data": n}])) for n in range(6)]
    engine.flush()
    while not writes[-1].done:
        late.drain()
        engine.poll()
    accepted = engine.state("t").count
    change = engine.submit_patch("t", ConfigPatch(lease_ms=60_000))
    while not change.ticket.done:
        engine.flush()
        late.drain()
        engine.poll()
    assert engine.state("t").count == accepted == 2 + len([w for w in writes if w.error is None])
