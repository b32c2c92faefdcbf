"""What a topic knows besides its records, through a change of class and the starts after it.

Its batches and its keys say which call has been there before, and what compaction left says which
past can be told. A topic that becomes durable keeps what it knows; what it knew of records that
went with their process is over, and does not come back with the class.
"""

from __future__ import annotations

import pytest

from tests.support.engines import ENDINGS, Ending, World, explained
from topics.configs import BucketInput
from topics.engine.ops import catalog, promotion
from topics.errors import Compacted
from topics.kv.embedded import open_bucket
from topics.types import BUCKET_TOPIC, Appended, Committed

BUCKET = BUCKET_TOPIC + "b"


def put(world: World, durability: str, **config: object) -> None:
    world.engine.put_topic("t", {"durability": durability, **config})


def come_to_rest(world: World) -> None:
    while world.engine.maintain(0):
        pass


def commit(world: World, topic: str = "t") -> Committed:
    """The first batch of a producer, with a stage of its own each time."""
    stage = world.engine.stage(topic, [{"data": "batch"}], producer="p", batch=1).stage
    return world.engine.commit("p", 1, query="q", stages=[stage])


def charge(world: World) -> Appended:
    return world.engine.append("t", [{"data": 1}, {"data": 2}], idempotency_key="charge")


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which one block is logged at once and the rest of a promotion is left."""
    monkeypatch.setattr(promotion, "AT_ONCE_BLOCKS", 1)
    monkeypatch.setattr(promotion, "GROUP_BLOCKS", 1)
    return World(block_bytes=128)


# -- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("sealed", ["never", "ephemeral", "durable"])
@pytest.mark.parametrize("is_fed", [False, True])
def test_batches_that_went_with_an_ephemeral_time_are_not_repeated(
    world: World, how: Ending, sealed: str, is_fed: bool
) -> None:
    """After the topic became durable and one more start their records are still to be written."""
    put(world, "fsync")
    if is_fed:
        world.engine.put_topic("source", {"durability": "fsync"})
        world.engine.put_router("r", {"source": "source", "dest": "t"})
    assert not commit(world).repeated
    put(world, "ephemeral")
    if sealed == "ephemeral":
        world.engine.checkpoint()
    world.restart(how)
    put(world, "fsync")
    if sealed == "durable":
        world.engine.checkpoint()
    world.restart(how)
    again = commit(world)
    assert not again.repeated
    assert world.look("t").seqs == (again.topics["t"].first_seq,)
    world.restart(how)
    assert commit(world).repeated


@pytest.mark.parametrize("how", ENDINGS)
def test_batches_of_other_topics_stay_when_those_of_one_go(world: World, how: Ending) -> None:
    """Only what stood in the topic that lost its records can be committed again."""
    for name in ("t", "other"):
        world.engine.put_topic(name, {"durability": "fsync"})
    commit(world, "other")
    stage = world.engine.stage("t", [{"data": 0}], producer="p", batch=2).stage
    world.engine.commit("p", 2, query="q", stages=[stage])
    put(world, "ephemeral")
    world.restart(how)
    put(world, "fsync")
    world.restart(how)
    assert commit(world, "other").repeated


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_batches_of_a_topic_that_became_durable_are_repeated(
    world: World, how: Ending, is_sealed: bool
) -> None:
    """Where their records were kept, so is that they are there."""
    put(world, "ephemeral")
    first = commit(world)
    put(world, "fsync")
    if is_sealed:
        world.engine.checkpoint()
    world.restart(how)
    again = commit(world)
    assert (again.repeated, again.topics) == (True, first.topics)


# -- keys ----------------------------------------------------------------------------------------


def a_job_of_two_done(world: World) -> None:
    """A write with a key of which the first job is done, in an ephemeral queue."""
    put(world, "ephemeral", type="queue")
    charge(world)
    claim = world.engine.claim("t", "worker", 1)
    world.engine.ack("t", "worker", claim.seqs)


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_the_key_of_a_write_that_is_partly_gone_is_remembered(
    world: World, how: Ending, is_sealed: bool
) -> None:
    """No frame can carry it any more: a retry is answered with the first seq all the same."""
    a_job_of_two_done(world)
    put(world, "fsync", type="queue")
    for _ in range(2):
        if is_sealed:
            world.engine.checkpoint()
        world.restart(how)
        again = charge(world)
        assert (again.deduped, again.first_seq, again.count) == (True, 1, 2)
    assert world.look("t").seqs == (2,)


@pytest.mark.parametrize("how", ENDINGS)
def test_the_key_of_a_write_that_is_gone_is_remembered(world: World, how: Ending) -> None:
    """Deleting records in an ephemeral time does not make a late retry append them again."""
    put(world, "ephemeral")
    charge(world)
    world.engine.delete("t", before_seq=3)
    put(world, "fsync")
    world.restart(how)
    assert charge(world).deduped
    assert world.look("t").seqs == ()


@pytest.mark.parametrize("how", ENDINGS)
def test_such_a_key_is_forgotten_after_its_window(world: World, how: Ending) -> None:
    """It is counted from the write, not from the change of class or the start."""
    a_job_of_two_done(world)
    put(world, "ephemeral", type="queue", idempotency_window_ms=1000)
    world.clock.advance(600)
    put(world, "fsync", type="queue", idempotency_window_ms=1000)
    world.clock.advance(400)
    world.restart(how)
    assert charge(world).deduped
    world.clock.advance(1)
    again = charge(world)
    assert (again.deduped, again.first_seq) == (False, 3)
    world.restart(how)
    again = charge(world)
    assert (again.deduped, again.first_seq) == (True, 3)


@pytest.mark.parametrize("how", ENDINGS)
def test_keys_are_remembered_whatever_goes_while_they_are_logged(
    in_slices: World, how: Ending
) -> None:
    """Some stand in groups that were logged whole, some in parts that went before."""
    world = in_slices
    put(world, "ephemeral")
    for n in range(8):
        world.engine.append("t", [{"data": "x" * 40}] * 2, idempotency_key=f"k{n}")
    ticket = world.engine.submit_put("t", {"durability": "fsync"}).ticket
    assert not ticket.done
    world.engine.delete("t", before_seq=14)
    world.engine.append("t", [{"data": 0}] * 2, idempotency_key="late")
    world.engine.delete("t", before_seq=18)
    come_to_rest(world)
    assert ticket.done
    world.restart(how)
    answers = [
        world.engine.append("t", [{"data": 0}], idempotency_key=key)
        for key in (*(f"k{n}" for n in range(8)), "late")
    ]
    assert [(each.deduped, each.first_seq) for each in answers] == [
        (True, 1 + 2 * n) for n in range(9)
    ]


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("sealed", ["never", "ephemeral", "durable"])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_keys_that_went_with_an_ephemeral_time_are_not_known_again(
    world: World, how: Ending, sealed: str, is_deleted: bool
) -> None:
    """Whether there were records left then or none: what a start forgot no later one knows."""
    put(world, "fsync")
    charge(world)
    if is_deleted:
        world.engine.delete("t", before_seq=3)
    put(world, "ephemeral")
    if sealed == "ephemeral":
        world.engine.checkpoint()
    world.restart(how)
    put(world, "fsync")
    if sealed == "durable":
        world.engine.checkpoint()
    account = explained(world.engine, "t")
    world.restart(how)
    assert explained(world.engine, "t") == account
    assert not charge(world).deduped


# -- dead letters --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("count", [1, 8])
def test_the_dead_letters_of_an_ephemeral_time_are_counted_on(
    in_slices: World, how: Ending, count: int
) -> None:
    """They count over the life of the queue, whether it is logged in one group or in several."""
    world = in_slices
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
    put(world, "ephemeral", **config)
    world.engine.append("t", [{"data": "x" * 40}] * count)
    world.engine.nack("t", "worker", world.engine.claim("t", "worker", 1).seqs)
    world.engine.claim("t", "worker", 1)
    put(world, "fsync", **config)
    for _ in range(2):
        state = world.engine.state("t")
        assert (state.count, state.queue and state.queue.dead_lettered) == (count - 1, 1)
        world.restart(how)


# -- what compaction left ------------------------------------------------------------------------


def past(world: World) -> list[object]:
    """What can be told of two keys as of every seq."""
    bucket = open_bucket(world.engine, "b")
    found: list[object] = []
    for seq in range(1, world.engine.state(BUCKET).head_seq + 1):
        for key in "ab":
            try:
                entry = bucket.get(key, at_seq=seq)
            except Compacted:
                entry = "compacted"
            found.append(entry)
    return found


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("count", [1, 12])
def test_what_compaction_took_in_an_ephemeral_time_is_said_to_be_gone(
    in_slices: World, how: Ending, is_sealed: bool, count: int
) -> None:
    """Of a bucket that is logged in one group, or in several: never a past that was not."""
    world = in_slices
    world.engine.put_bucket(BUCKET, {"durability": "ephemeral"})
    bucket = open_bucket(world.engine, "b")
    for n in range(count):
        bucket.put("a", n)
        bucket.put("b", n)
        bucket.put("a", f"x{n}")
    bucket.compaction(0)
    for n in range(count - 1):
        bucket.put(f"other{n}", "x" * 40)
    before = past(world)
    assert "compacted" in before
    ticket = catalog.put(world.engine.core, BUCKET, BucketInput(durability="fsync")).ticket
    world.engine.flush()
    assert ticket.done == (count == 1)
    come_to_rest(world)
    assert (ticket.done, ticket.error) == (True, None)
    assert past(world) == before
    if is_sealed:
        world.engine.checkpoint()
    for _ in range(2):
        world.restart(how)
        assert past(world) == before
