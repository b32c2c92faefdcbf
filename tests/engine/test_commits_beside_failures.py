"""A commit whose neighbours are refused: it is whole, or nothing of it was ever there."""

from __future__ import annotations

import contextlib
import errno

import pytest

from tests.support.engines import World
from topics.engine.ops.cursors import Given
from topics.engine.state.write_request import request_of
from topics.errors import OutcomeUnknown, Poisoned, TopicFull
from topics.testing import FakeDisk, Fault, FaultFs
from topics.testing.lateness import Lateness


def staged(world: World, *topics: str) -> list[str]:
    return [
        world.engine.stage(topic, [{"data": topic}], producer="p", batch=1).stage
        for topic in topics
    ]


def behind_a_cursor(world: World) -> list[str]:
    """Stages for an ephemeral topic and a durable one."""
    world.engine.put_topic("durable", {"durability": "fsync"})
    world.engine.put_topic("ephemeral", {"durability": "ephemeral"})
    for topic in ("durable", "ephemeral"):
        world.engine.append(topic, [{"data": 0}])
    return staged(world, "ephemeral", "durable")


@pytest.mark.parametrize("order", [("new", "full"), ("full", "new")])
def test_a_commit_that_is_refused_leaves_no_topic_behind(order: tuple[str, str]) -> None:
    """The refusal of a topic that expires records writes what is staged."""
    world = World()
    world.engine.put_topic("full", {"discard": "reject", "cap_records": 1, "ttl_ms": 10**9})
    world.fill("full", 1)
    stages = staged(world, *order)
    with pytest.raises(TopicFull):
        world.engine.commit("p", 1, query="q", stages=stages)
    assert world.engine.list_topics() == ["full"]
    world.restart("kill")
    assert world.engine.list_topics() == ["full"]


def test_a_write_that_is_refused_in_front_of_a_commit_leaves_it_its_seqs() -> None:
    """What it gives back the commit takes: in its frame, its answer, its memory of the batch."""
    world = World()
    engine, stages = world.engine, behind_a_cursor(world)
    world.disk.capacity_bytes = world.disk.used_bytes()
    write = engine.submit_append("durable", request_of([{"data": "x" * 30_000}] * 2))
    engine.submit_put_cursor("ephemeral", "reader", Given(seq=1))
    commit = engine.submit_commit("p", 1, "q", stages)
    engine.flush()
    engine.poll()
    assert write.error is not None
    assert commit.result.topics["durable"].first_seq == 2
    assert world.look("durable").seqs == (1, 2)
    world.disk.capacity_bytes = None
    world.restart("kill")
    assert world.look("durable").seqs == (1, 2)


@pytest.mark.parametrize("is_ephemeral_last", [False, True])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_commit_ends_though_the_log_fails_while_it_is_handed_over(
    is_ephemeral_last: bool, nth: int
) -> None:
    """In front of it, or when a part of it that leaves no bytes waits for one that does."""
    faults = FaultFs(FakeDisk())
    world = World(disk=faults, wal_shards=1)
    engine, stages = world.engine, behind_a_cursor(world)
    if is_ephemeral_last:
        stages.reverse()
    late = Lateness(faults)
    late.attach(engine)
    engine.submit_put_cursor("ephemeral", "reader", Given(seq=1))
    faults.fault = Fault("pwrite", nth, errno.EIO, path_contains=".wal", forever=True)
    commit = engine.submit_commit("p", 1, "q", stages)
    for step in (late.drain, engine.poll):
        with contextlib.suppress(Poisoned):
            step()
    assert isinstance(commit.error, Poisoned | OutcomeUnknown)
