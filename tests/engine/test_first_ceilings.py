"""A topic of class disk begins with a ceiling: its first write waits for no sync, and is told."""

from __future__ import annotations

import pytest

from tests.support.engines import LOSE_ALL, World
from tests.support.late import hold_syncs
from topics.engine.state.write_request import request_of

RECORD = [{"data": 0}]


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_the_first_write_to_a_new_topic_is_acknowledged_at_once(durability: str) -> None:
    """Where it need not be durable itself: its creation was, and the ceiling with it."""
    engine = World().engine
    syncer = hold_syncs(engine)
    put = engine.submit_put("t", {"durability": durability})
    engine.flush()
    assert not put.ticket.done
    syncer.release()
    engine.poll()
    assert put.ticket.done
    written = engine.submit_append("t", request_of(RECORD))
    engine.flush()
    assert written.done is (durability != "fsync")


def test_what_a_crash_takes_of_a_new_topic_is_told() -> None:
    world = World()
    world.engine.put_topic("t", {"durability": "disk"})
    world.fill("t", 3)
    world.restart("crash", LOSE_ALL)
    look = world.look("t")
    assert (look.seqs, look.ranges[0][2]) == ((), "crash")
    assert look.head >= 3
    # And what is written from then on is there.
    world.fill("t", 1)
    assert world.look("t").seqs == (look.head + 1,)


def test_a_topic_that_was_made_and_left_alone_raises_no_alarm() -> None:
    world = World()
    world.engine.put_topic("t", {"durability": "disk"})
    for _ in range(300):
        world.clock.advance(100)
        world.engine.maintain(1.0)
    world.restart("crash", LOSE_ALL)
    look = world.look("t")
    assert (look.head, look.tombstones) == (0, ())


@pytest.mark.parametrize("shards", [1, 2])
def test_a_snapshot_that_is_older_than_the_ceiling_does_not_hide_it(shards: int) -> None:
    """Topics are captured while their creation is on its way, which is before the ceiling holds."""
    world = World(wal_shards=shards)
    engine = world.engine
    world.fill("old", 3)
    syncer = hold_syncs(engine)
    before = engine.core.numbers.snapshot
    assert engine.begin_checkpoint()
    names = []
    for number in range(30):
        if number == 3:
            # The cut is durable, with what was made so far.
            syncer.release()
        names.append(f"t{number}")
        engine.submit_put(names[-1], {"durability": "disk"})
        engine.flush()
        engine.maintain(0.0)
    while engine.core.numbers.snapshot == before:
        # Until all are captured, and the snapshot waits for what they have.
        engine.maintain(1.0)
        syncer.release()
    engine.poll()
    for name in names:
        ticket = engine.submit_append(name, request_of(RECORD * 3))
        engine.flush()
        assert ticket.done
    world.restart("crash", LOSE_ALL)
    assert world.engine.core.numbers.snapshot > before
    for name in names:
        look = world.look(name)
        assert (look.seqs, look.ranges[0][2]) == ((), "crash"), name
        assert look.head >= 3
