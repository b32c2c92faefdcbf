"""A copy is there as soon as its source's record is, and goes with it when a crash takes that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.engines import World, explained, values
from tests.support.late import hold_syncs
from topics.engine.engine import Engine
from topics.engine.routing import forwarding
from topics.engine.state.write_request import request_of
from topics.testing.lateness import Lateness

EARLY = ("disk", "memory", "ephemeral")


def chain(engine: Engine, names: str, durability: str) -> None:
    for name in names:
        engine.put_topic(name, {"durability": durability})
    for source, dest in pairwise(names):
        engine.put_router(f"{source}->{dest}", {"source": source, "dest": dest})


def write(engine: Engine, topic: str, *data: Any) -> None:
    engine.append(topic, [{"data": value} for value in data])


def data(engine: Engine, topic: str) -> list[Any]:
    return values(engine.diff(topic, limit=1000))


@pytest.mark.parametrize("durability", EARLY)
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_who_writes_and_then_reads_finds_the_copy(durability: str, shards: int) -> None:
    """Whoever has the answer to a write finds its copies, through a chain, synced or not."""
    engine = World(wal_shards=shards).engine
    chain(engine, "abcde", durability)
    hold_syncs(engine)
    for number in range(40):
        write(engine, "a", number)
        for name in "abcde":
            assert data(engine, name) == list(range(number + 1))


@pytest.mark.parametrize("source", EARLY)
@pytest.mark.parametrize("dest", EARLY)
def test_classes_may_differ(source: str, dest: str) -> None:
    """Whatever the classes of source and destination are, fsync excepted."""
    engine = World(wal_shards=2).engine
    engine.put_topic("a", {"durability": source})
    engine.put_topic("b", {"durability": dest})
    engine.put_router("r", {"source": "a", "dest": "b"})
    hold_syncs(engine)
    write(engine, "a", 1)
    assert data(engine, "b") == [1]


def test_a_destination_of_class_fsync_waits_for_its_source() -> None:
    """It waits for its source's sync, then for its own."""
    engine = World(wal_shards=2).engine
    engine.put_topic("a", {"durability": "disk"})
    engine.put_topic("b", {"durability": "fsync"})
    engine.put_router("r", {"source": "a", "dest": "b"})
    syncer = hold_syncs(engine)
    write(engine, "a", 1)
    seen = [data(engine, "b")]
    for _ in range(2):
        syncer.release()
        engine.poll()
        engine.forward_now()
        seen.append(data(engine, "b"))
    syncer.release()
    engine.poll()
    assert seen[:2] == [[], []]
    assert data(engine, "b") == [1]


def lost_source(names: str = "ab") -> World:
    """Everything but the source's shard has reached the disk when the machine crashes."""
    world = World(wal_shards=len(names))
    engine = world.engine
    chain(engine, names, "disk")
    write(engine, "a", "kept")
    engine.sync()
    hold_syncs(engine)
    write(engine, "a", "lost 1", "lost 2")
    assert data(engine, names[-1]) == ["kept", "lost 1", "lost 2"]
    write(engine, names[-1], "direct")
    for name in names[1:]:
        engine.core.log.shard_of(engine.core.by_name[name]).sync()
    return world


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_what_a_crash_takes_from_the_source_it_takes_from_its_copies(names: str) -> None:
    """What a crash takes from the source it takes from its copies, after every start alike."""
    world = lost_source(names)
    for how in ("crash", "crash", "kill", "clean"):
        engine = world.restart(how)
        assert data(engine, "a") == ["kept"]
        assert explained(engine, "a")[1][2] == "crash"
        for name in names[1:]:
            first, hole = explained(engine, name)[:2]
            assert first == (1, 1, "live")
            assert (hole[0], hole[2]) == (2, "crash")
        assert explained(engine, names[-1])[1:3] == ((2, 3, "crash"), (4, 4, "live"))
    write(engine, "a", "later")
    head = engine.state(names[-1]).head_seq
    assert values(engine.diff(names[-1], from_seq=head - 1)) == ["later"]


def test_the_hole_is_told_to_readers_of_both() -> None:
    """A reader of either topic is told of the loss, as a crash."""
    engine = lost_source().restart("crash")
    for name in "ab":
        page = engine.diff(name, from_seq=1)
        assert page.tombstone is not None
        assert page.tombstone.reason == "crash"


def test_a_delete_of_a_copy_is_durable_no_earlier_than_its_source() -> None:
    """The delete of a copy is acknowledged when its source is durable too."""
    engine = World(wal_shards=2).engine
    chain(engine, "ab", "disk")
    syncer = hold_syncs(engine)
    write(engine, "a", 1, 2)
    ticket = engine.submit_delete("b", before_seq=2, match=None)
    engine.flush()
    shard = engine.core.log.shard_of(engine.core.by_name["b"])
    syncer.release(shard.index)
    engine.poll()
    assert not ticket.done
    syncer.release()
    engine.poll()
    assert ticket.done


def test_a_deleted_copy_stays_silent_when_the_machine_crashes() -> None:
    """What was deleted is never told as lost, whatever the crash takes."""
    world = World(wal_shards=2)
    chain(world.engine, "ab", "disk")
    hold_syncs(world.engine)
    write(world.engine, "a", 1, 2)
    world.engine.delete("b", before_seq=2)
    engine = world.restart("crash")
    assert explained(engine, "b")[:2] == ((1, 1, "deleted"), (2, 2, "live"))
    assert engine.diff("b", from_seq=0).tombstone is None


def test_what_is_forwarded_while_a_checkpoint_is_under_way_is_durable_before() -> None:
    """During a checkpoint copies are durable after their source, as they are logged themselves."""
    engine = World(wal_shards=2).engine
    chain(engine, "ab", "disk")
    write(engine, "a", 1)
    engine.begin_checkpoint()
    engine.maintenance.step()
    syncer = hold_syncs(engine)
    engine.submit_append("a", request_of([{"data": 2}]))
    engine.flush()
    engine.forward_now()
    assert data(engine, "b") == [1]
    syncer.release()
    engine.poll()
    engine.forward_now()
    assert data(engine, "b") == [1, 2]


def test_a_flood_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call forwards a bounded number of pieces, and who had none comes first in the next."""
    monkeypatch.setattr(forwarding, "PIECES_MAX", 3)
    engine = World().engine
    for number in range(7):
        engine.put_router(f"r{number}", {"source": "a", "dest": f"b{number}"})
    served = []
    for turn in range(7):
        engine.submit_append("a", request_of([{"data": turn}]))
        engine.flush()
        engine.forward_now()
        served.append([len(data(engine, f"b{number}")) for number in range(7)])
    assert max(map(sum, served)) <= 7 * 7
    assert [sum(counts) for counts in served[:1]] == [3]
    assert min(served[-1]) >= 2


def test_a_backlog_is_forwarded_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router takes a piece of its backlog at a time; nobody waits for all of it."""
    monkeypatch.setattr(forwarding, "FRESH_RECORDS_MAX", 0)
    engine = World().engine
    for first in range(0, 4000, 1000):
        write(engine, "a", *range(first, first + 1000))
    engine.put_router("r", {"source": "a", "dest": "b", "from_seq": 0})
    behind = engine.router("r").lag
    assert behind == 3000
    assert engine.forward_now()
    assert engine.router("r").lag == 2000


@pytest.mark.parametrize("source", ["disk", "fsync"])
@pytest.mark.parametrize("count", [1, 100, 3000, 10_000])
def test_whoever_was_answered_finds_all_copies_behind_one_call(count: int, source: str) -> None:
    """Through a chain, of whatever class but fsync, from the first write on."""
    world = World()
    engine = world.engine
    engine.put_topic("a", {"durability": source})
    for name, durability in (("b", "disk"), ("c", "memory"), ("d", "disk")):
        engine.put_topic(name, {"durability": durability})
    for edge in ("ab", "bc", "cd"):
        engine.put_router(edge, {"source": edge[0], "dest": edge[1]})
    late = Lateness()
    late.applied_max = 512
    late.attach(engine)
    for _ in range(3):
        ticket = engine.submit_append("a", request_of([{"data": 1}] * count))
        engine.flush()
        while not ticket.done:
            late.drain()
            engine.poll()
        engine.forward_now()
        head = engine.state("a").head_seq
        assert [engine.state(name).head_seq for name in "bcd"] == [head] * 3
