"""Idempotency keys: a retried write is answered, not repeated, while its window lasts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, seqs
from topics.engine.state.idempotency import PART_KEYS
from topics.engine.state.write_request import request_of
from topics.engine.upkeep.checkpoint import take
from topics.errors import DiskFull, InvalidRequest, Throttled
from topics.testing import FakeDisk


def write(world: World, topic: str = "t", key: str | None = "k", count: int = 2) -> Any:
    return world.engine.append(topic, [{"data": 0}] * count, idempotency_key=key)


def test_a_retry_gets_the_first_answer_and_appends_nothing(world: World) -> None:
    """The same key answers with the original seqs, deduped true, whatever the body is now."""
    first = write(world)
    world.fill("t", 3)
    again = world.engine.append("t", [{"data": "other"}] * 5, idempotency_key="k")
    assert (again.first_seq, again.last_seq, again.count) == (1, 2, 2)
    assert (again.deduped, first.deduped, again.created) == (True, False, False)
    assert again.ts == first.ts
    assert again.head_seq == 5
    assert world.engine.state("t").head_seq == 5


def test_writes_without_a_key_are_never_deduped(world: World) -> None:
    """Only a key makes two writes one."""
    assert [write(world, key=None).first_seq for _ in range(3)] == [1, 3, 5]


def test_keys_are_per_topic(world: World) -> None:
    """The same key in another topic is another write."""
    write(world, "a")
    assert not write(world, "b").deduped
    assert write(world, "a").deduped


@pytest.mark.parametrize("other", ["K", "k ", "k\u0301", "kk", "\x00"])
def test_keys_are_compared_exactly(world: World, other: str) -> None:
    """Case, spaces and marks make another key."""
    write(world)
    assert not write(world, key=other).deduped


@pytest.mark.parametrize(("age_ms", "is_known"), [(0, True), (120_000, True), (120_001, False)])
def test_a_key_is_known_for_its_window(world: World, age_ms: int, is_known: bool) -> None:
    """120 seconds unless the topic says otherwise; after that it is a new write."""
    write(world)
    world.clock.advance(age_ms)
    assert write(world).deduped == is_known


@pytest.mark.parametrize("window_ms", [0, 1, 50, 10**9])
def test_the_window_is_a_config_of_the_topic(world: World, window_ms: int) -> None:
    """idempotency_window_ms is obeyed, also after it was changed."""
    world.engine.put_topic("t", {"idempotency_window_ms": window_ms})
    write(world)
    world.clock.advance(window_ms)
    assert write(world).deduped
    world.clock.advance(1)
    assert not write(world).deduped


def test_a_reused_key_is_remembered_from_its_last_write(world: World) -> None:
    """After its window a key can be used again, with a window of its own."""
    write(world)
    world.clock.advance(120_001)
    assert write(world).first_seq == 3
    world.clock.advance(60_000)
    assert write(world).first_seq == 3


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoints", [0, 1, 2, 3])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_key_survives_with_its_records(
    world: World, how: Ending, checkpoints: int, durability: str
) -> None:
    """After any restart the retry of a write that is there is answered, not repeated."""
    world.engine.put_topic("t", {"durability": durability})
    write(world)
    world.engine.sync()
    for _ in range(checkpoints):
        world.engine.checkpoint()
    world.restart(how)
    again = write(world)
    assert (again.deduped, again.first_seq, again.last_seq) == (True, 1, 2)
    assert world.look("t").seqs[:2] == (1, 2)
    world.clock.advance(120_001)
    assert not write(world).deduped


@pytest.mark.parametrize("plan", ["lose", "keep"])
def test_a_key_is_not_remembered_without_its_records(world: World, plan: str) -> None:
    """A write lost with the machine is forgotten whole: its retry is appended."""
    from topics.testing import CrashPlan

    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 1)
    world.engine.sync()
    write(world)
    world.restart("crash", CrashPlan(plan, plan, plan))
    again = write(world)
    page = world.engine.diff("t", from_seq=again.first_seq - 1)
    assert again.first_seq in seqs(page)
    assert again.deduped == (plan == "keep")


def test_a_key_does_not_outlive_the_records_of_an_ephemeral_topic(world: World) -> None:
    """Records that went with the process take their keys along: a retry is a write."""
    for how in SURVIVABLE:
        world.engine.put_topic("t", {"durability": "ephemeral"})
        write(world)
        world.engine.checkpoint()
        world.restart(how)
        again = write(world)
        assert not again.deduped
        assert again.first_seq in world.look("t").seqs


def test_a_deleted_record_keeps_its_key(world: World) -> None:
    """Deleting records does not make a late retry append them again."""
    write(world)
    world.engine.delete("t", before_seq=3)
    assert write(world).deduped
    world.restart("kill")
    assert write(world).deduped
    assert world.engine.state("t").count == 0


def test_a_recreated_topic_knows_no_old_keys(world: World) -> None:
    """Keys go with their topic."""
    write(world)
    world.engine.delete_topic("t")
    assert not write(world).deduped
    world.restart("kill")
    assert write(world).deduped


@pytest.mark.parametrize("key", ["", "x" * 257, 5, True, b"k", ["k"], "\ud800"], ids=repr)
def test_a_key_has_1_to_256_characters(world: World, key: Any) -> None:
    """Anything else is invalid_request, and neither the write nor its topic happens."""
    with pytest.raises(InvalidRequest):
        write(world, key=key)
    assert world.engine.list_topics() == []


@pytest.mark.parametrize("key", ["x", "x" * 256, "é" * 256, "\U0001f600" * 256])
def test_the_limit_of_a_key_is_in_characters(world: World, key: str) -> None:
    """256 of them, whatever they take in bytes."""
    assert not write(world, key=key).deduped
    assert write(world, key=key).deduped


def test_at_the_bound_a_new_key_is_refused_and_an_old_one_still_answered() -> None:
    """No key is forgotten early: at the most that is kept, a write with a new one is throttled."""
    world = World(max_idempotency_keys=3)
    for n in range(3):
        write(world, f"t{n}", "k")
    with pytest.raises(Throttled) as refused:
        write(world, "t0", "new")
    assert (refused.value.code, refused.value.status) == ("throttled", 429)
    assert refused.value.detail == {"limit": "max_idempotency_keys", "max": 3}
    assert world.engine.state("t0").head_seq == 2
    assert write(world, "t0", "k").deduped
    assert not write(world, "t0", None).deduped


@pytest.mark.parametrize("how", [None, *SURVIVABLE])
def test_keys_that_left_their_window_make_room_for_others(how: Ending | None) -> None:
    """The bound counts keys in their window, also those of topics that nobody writes any more."""
    world = World(max_idempotency_keys=2)
    write(world, "a", "k1")
    write(world, "a", "k2")
    if how is not None:
        world.restart(how)
    with pytest.raises(Throttled):
        write(world, "b", "k3")
    world.clock.advance(120_001)
    assert not write(world, "b", "k3").deduped


def test_a_deleted_topic_gives_its_keys_back() -> None:
    """Keys of a topic that is gone do not count."""
    world = World(max_idempotency_keys=1)
    write(world, "a")
    world.engine.delete_topic("a")
    assert not write(world, "b").deduped


def test_a_retry_waits_for_the_write_it_repeats(world: World) -> None:
    """A retry submitted while the first is on its way ends with it, once."""
    world.engine.put_topic("t", {"durable": True})
    tickets = [
        world.engine.submit_append("t", request_of([{"data": 0}], idempotency_key="k"))
        for _ in range(3)
    ]
    world.engine.sync()
    assert [ticket.result.first_seq for ticket in tickets] == [1, 1, 1]
    assert [ticket.result.deduped for ticket in tickets] == [False, True, True]
    assert world.engine.state("t").head_seq == 1


def test_a_retry_is_not_answered_with_a_write_that_failed() -> None:
    """When the disk refused the first write, its repetition in the same breath is refused too."""
    world = World(disk=FakeDisk())
    world.engine.put_topic("t")
    world.fill("t", 1)
    world.disk.capacity_bytes = world.disk.used_bytes()
    body = [{"data": "x" * 60_000}]
    tickets = [
        world.engine.submit_append("t", request_of(body, idempotency_key="k")) for _ in range(2)
    ]
    world.engine.flush()
    assert all(isinstance(ticket.error, DiskFull) for ticket in tickets)
    world.disk.capacity_bytes = None
    assert not world.engine.append("t", body, idempotency_key="k").deduped
    assert world.look("t").seqs == (1, 2)


@pytest.mark.parametrize("how", ENDINGS)
def test_keys_are_sealed_some_at_a_time_while_others_come_and_go(how: Ending) -> None:
    """However many there are, no slice of a checkpoint takes them all; each is kept that stands."""
    world = World()
    world.engine.put_topic("t", {"durability": "fsync", "idempotency_window_ms": 1000})
    for n in range(50):
        write(world, key=f"old {n}", count=1)
    world.clock.advance(500)
    for n in range(3 * PART_KEYS):
        world.engine.submit_append("t", request_of([{"data": n}], idempotency_key=f"key {n}"))
    world.engine.sync()
    world.clock.advance(501)
    taking = take(world.engine.core)
    for step, _ in enumerate(taking):
        # The oldest leave their window, and new ones arrive, between any two slices.
        assert not write(world, key=f"new {step}", count=1).deduped
    assert step >= 3
    world.restart(how)
    keys = [f"key {n}" for n in (0, 1, PART_KEYS, 3 * PART_KEYS - 1)]
    keys += [f"new {n}" for n in range(step)]
    assert all(write(world, key=key, count=1).deduped for key in keys)
    assert not write(world, key="old 7", count=1).deduped
