"""What a router's map may rely on: whatever becomes of its source, its copies are made again."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import pytest

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, explained, values
from tests.support.late import hold_syncs
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.routing import forwarding
from topics.engine.state.write_request import request_of
from topics.errors import RouterNotFound

SLICES_MAX = 30


def route(engine: Engine, source: str, dest: str, **options: Any) -> None:
    engine.put_router(f"{source}->{dest}", {"source": source, "dest": dest, **options})


def write(engine: Engine, topic: str, *data: Any, **fields: Any) -> None:
    engine.append(topic, [{"data": value, **fields} for value in data])


def settle(engine: Engine) -> None:
    for _ in range(4):
        while engine.forward():
            pass


def data(engine: Engine, topic: str) -> list[Any]:
    return values(engine.diff(topic, limit=1000))


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("order", ["".join(names) for names in permutations("abc")])
def test_every_record_of_a_map_is_found(how: Ending, shards: int, order: str) -> None:
    """One map may be about copies, which come first, and records of the log, in any order."""
    world = World(wal_shards=shards)
    engine = world.engine
    for name in order:
        engine.put_topic(name, {"durability": "fsync"})
    write(engine, "b", "direct 1")
    route(engine, "a", "b")
    write(engine, "a", "copied 1", "copied 2")
    settle(engine)
    write(engine, "b", "direct 2")
    route(engine, "b", "c", from_seq=0)
    settle(engine)
    engine = world.restart(how)
    assert data(engine, "c") == ["direct 1", "copied 1", "copied 2", "direct 2"]


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("between", [0, 1])
def test_a_topic_is_known_by_its_id(how: Ending, shards: int, between: int) -> None:
    """Copies of copies stay when the topic between has its name from another one by now."""
    world = World(wal_shards=shards)
    engine = world.engine
    for name in "sde":
        engine.put_topic(name, {"durability": "fsync"})
    route(engine, "s", "d")
    route(engine, "d", "e")
    write(engine, "s", 1, 2, 3)
    settle(engine)
    engine.delete_topic("d")
    for number in range(between):
        # So that the younger one is in this shard or in that.
        engine.put_topic(f"x{number}", {"durability": "fsync"})
    engine.put_topic("d", {"durability": "fsync"})
    write(engine, "d", "new")
    for _ in range(2):
        engine = world.restart(how)
        assert data(engine, "e") == [1, 2, 3]
        assert data(engine, "d") == ["new"]
        assert not len(engine.core.routers)


def remove(engine: Engine, how: str) -> None:
    """Takes away what a map is about, or who made it, without waiting for anything."""
    if how == "drop":
        engine.submit_drop("s", if_empty=False)
    elif how == "move":
        engine.submit_router("s->d", {"source": "s", "dest": "elsewhere"})
    elif how == "unroute":
        engine.submit_unroute("s->d")
    engine.flush()
    if how != "drop":
        engine.submit_delete("s", before_seq=100, match=None)
        engine.flush()


@pytest.mark.parametrize("how", ["drop", "move", "unroute", "delete"])
@pytest.mark.parametrize("shards", quick_first([2, 1], 1))
@pytest.mark.parametrize("order", quick_first(["xsd", "xds"], 1))
def test_a_checkpoint_passes_over_nothing_that_a_map_is_about(
    how: str, shards: int, order: str
) -> None:
    """In whatever slice of it a record is copied and goes, and however late the syncs end."""
    for slices in range(SLICES_MAX):
        world = World(wal_shards=shards, own_segment_bytes=1)
        engine = world.engine
        for name in order:
            engine.put_topic(name, {"durability": "fsync"})
        write(engine, "x", "x")
        route(engine, "s", "d")
        engine.core.committer.wait(engine.submit_append("s", request_of([{"data": 1}])))
        engine.maintenance.drain()
        assert engine.begin_checkpoint()
        for _ in range(slices):
            engine.maintenance.step()
        syncer = hold_syncs(engine)
        engine.forward_now()
        remove(engine, how)
        for _ in range(SLICES_MAX):
            engine.maintenance.step()
        syncer.release()
        engine.maintenance.drain()
        engine.poll()
        assert data(engine, "d") == [1], slices
        engine = world.restart("kill")
        assert data(engine, "d") == [1], slices


def test_a_dropped_destination_takes_what_is_on_its_way(world: World) -> None:
    """What was written before the drop is answered, behind a map as behind anything else."""
    engine = world.engine
    for name in "adx":
        engine.put_topic(name, {"durability": "fsync", "cap_records": 2})
    route(engine, "a", "d")
    engine.core.committer.wait(engine.submit_append("a", request_of([{"data": 1}, {"data": 2}])))
    syncer = hold_syncs(engine)
    engine.forward_now()
    tickets = [engine.submit_append("d", request_of([{"data": 3}]))]
    tickets.append(engine.submit_drop("d", if_empty=False)[1])
    tickets.append(engine.submit_append("x", request_of([{"data": 4}])))
    engine.flush()
    syncer.release()
    engine.poll()
    assert [(ticket.done, ticket.error) for ticket in tickets] == [(True, None)] * 3
    engine = world.restart("kill")
    assert engine.list_topics() == ["a", "x"]


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_a_guarantee_may_change_while_a_router_catches_up(
    engine: Engine, changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was and becomes, it goes on to its source's head."""
    monkeypatch.setattr(forwarding, "FRESH_RECORDS_MAX", 0)
    for first in range(0, 6000, 1000):
        write(engine, "s", *range(first, first + 1000))
    write(engine, "d", "there before")
    route(engine, "s", "d", guarantee="exactly_once", from_seq=0)
    for guarantee in ("at_least_once", "exactly_once", "at_least_once")[:changes]:
        route(engine, "s", "d", guarantee=guarantee)
        assert engine.router("s->d").lag
    for _ in range(20):
        engine.forward()
    assert engine.router("s->d").lag == 0
    assert engine.state("d").count == 6001
    assert not engine.forward()


def test_a_router_that_becomes_exactly_once_copies_nothing_again(engine: Engine) -> None:
    """What stands in the destination under its key is passed over from then on."""
    write(engine, "s", *range(1500))
    route(engine, "s", "d", guarantee="exactly_once", from_seq=0)
    settle(engine)
    engine.delete_router("s->d")
    engine.submit_router("s->d", {"source": "s", "dest": "d", "from_seq": 0})
    route(engine, "s", "d", guarantee="exactly_once")
    settle(engine)
    assert engine.router("s->d").place.cursor == 1500
    assert engine.state("d").count == 1500


def test_exactly_once_waits_for_maps_of_an_earlier_router(world: World) -> None:
    """They may be on their way while the router is made again, and are not copied a second time."""
    engine = world.engine
    for name in "sd":
        engine.put_topic(name, {"durability": "fsync"})
    given = {"source": "s", "dest": "d", "guarantee": "exactly_once", "from_seq": 0}
    engine.put_router("r", given)
    engine.core.committer.wait(engine.submit_append("s", request_of([{"data": 1}, {"data": 2}])))
    syncer = hold_syncs(engine)
    engine.forward_now()
    engine.submit_unroute("r")
    engine.submit_router("r", given)
    assert not engine.forward_now()
    syncer.release()
    engine.poll()
    settle(engine)
    syncer.release()
    engine.poll()
    assert data(engine, "d") == [1, 2]
    assert engine.router("r").place.cursor == 2


def test_a_new_router_waits_for_no_other(world: World) -> None:
    """Neither for a backlog nor for a checkpoint that is under way."""
    engine = world.engine
    for _ in range(5):
        write(engine, "s", *range(1000))
    engine.submit_router("s->d", {"source": "s", "dest": "d", "from_seq": 0})
    engine.sync()
    before = engine.router("s->d").lag
    assert engine.begin_checkpoint()
    engine.submit_router("x->y", {"source": "x", "dest": "y"})
    assert engine.router("s->d").lag == before == 5000
    assert engine.maintenance.is_running


def test_a_router_that_was_acknowledged_has_its_source(world: World) -> None:
    """Also when that came with it, in another shard."""
    world = World(wal_shards=2)
    engine = world.engine
    engine.put_topic("d", {"durability": "fsync"})
    syncer = hold_syncs(engine)
    shard = engine.core.log.shard_of(engine.core.by_name["d"]).index
    _, _, ticket = engine.submit_router("r", {"source": "s", "dest": "d"})
    engine.flush()
    syncer.release(shard)
    engine.poll()
    assert ticket.done
    engine = world.restart("crash")
    assert engine.router("r").source.name == "s"


def test_an_id_that_the_log_names_is_given_to_no_other_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A router without its source is nobody's, however many starts later."""
    world = World(wal_shards=2)
    engine = world.engine
    engine.put_topic("d", {"durability": "fsync"})
    syncer = hold_syncs(engine)
    shard = engine.core.log.shard_of(engine.core.by_name["d"]).index
    # Two writes that reach the disk in the other order.
    monkeypatch.setattr(engine.core.committer, "sync", lambda: None)
    engine.submit_router("r", {"source": "s", "dest": "d"})
    engine.flush()
    syncer.release(shard)
    engine = world.restart("crash")
    assert engine.list_topics() == ["d"]
    engine.put_topic("s", {"durability": "fsync"})
    for _ in range(2):
        engine = world.restart()
        assert engine.core.routers.by_name == {}


def test_a_repeated_put_is_answered_no_earlier_than_the_first(world: World) -> None:
    """Whoever is told that the router is there has a router after a crash."""
    engine = world.engine
    for name in "sd":
        engine.put_topic(name, {"durability": "fsync"})
    syncer = hold_syncs(engine)
    tickets = [engine.submit_router("r", {"source": "s", "dest": "d"})[2] for _ in range(2)]
    engine.flush()
    assert [ticket.done for ticket in tickets] == [False, False]
    syncer.release()
    engine.poll()
    assert [ticket.done for ticket in tickets] == [True, True]
    assert world.restart("crash").router("r").dest.name == "d"


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("ends", ["unroute", "drop"])
def test_a_router_that_was_moved_and_ended_stays_so(shards: int, ends: str) -> None:
    """Of all that had its name the youngest counts, also where that has ended."""
    world = World(wal_shards=shards)
    engine = world.engine
    for name in "sabx":
        engine.put_topic(name, {"durability": "fsync"})
    for dest in "ab":
        engine.put_router("r", {"source": "s", "dest": dest})
    if ends == "drop":
        engine.delete_topic("b")
    else:
        engine.delete_router("r")
    for how in SURVIVABLE:
        engine = world.restart(how)
        with pytest.raises(RouterNotFound):
            engine.router("r")


@pytest.mark.parametrize("slices", range(16))
def test_a_topic_made_behind_the_cut_of_a_checkpoint_is_there(slices: int) -> None:
    """Also where the snapshot has a router of it, because its destination was captured later."""
    world = World(wal_shards=1)
    engine = world.engine
    for name in "abcd":
        engine.put_topic(name, {"durability": "fsync"})
        write(engine, name, 0)
    world.clock.look_ms = 1
    assert engine.begin_checkpoint()
    for _ in range(slices):
        engine.maintain(0.0)
    engine.delete_topic("a")
    route(engine, "a", "d", from_seq=0)
    write(engine, "a", "new")
    engine.checkpoint() if slices % 2 else engine.maintenance.drain()
    engine = world.restart("clean")
    settle(engine)
    assert data(engine, "a") == ["new"]
    assert data(engine, "d") == [0, "new"]


@pytest.mark.parametrize("slices", range(16))
def test_a_router_that_was_moved_during_a_checkpoint_stays_so(slices: int) -> None:
    """The snapshot may have it where it was, and nothing of where it went."""
    world = World(own_segment_bytes=1)
    engine = world.engine
    for name in "asb":
        engine.put_topic(name, {"durability": "fsync"})
        write(engine, name, name)
    engine.put_router("r", {"source": "s", "dest": "a"})
    engine.maintenance.drain()
    assert engine.begin_checkpoint()
    for _ in range(slices):
        engine.maintenance.step()
    engine.core.committer.wait(engine.submit_router("r", {"source": "s", "dest": "b"})[2])
    engine.core.committer.wait(engine.submit_drop("b", if_empty=False)[1])
    engine.maintenance.drain()
    engine = world.restart("kill")
    with pytest.raises(RouterNotFound):
        engine.router("r")


@pytest.mark.parametrize("written", [3, 8])
def test_a_place_goes_back_with_its_source_for_good(world: World, written: int) -> None:
    """What an ephemeral source had after a kill is told as lost, however many starts later."""
    engine = world.engine
    engine.put_topic("s", {"durability": "ephemeral"})
    engine.put_topic("d", {"durability": "fsync", "cap_records": 5, "discard": "reject"})
    route(engine, "s", "d")
    write(engine, "s", *range(5))
    settle(engine)
    engine = world.restart("kill")
    write(engine, "s", *range(written))
    settle(engine)
    engine = world.restart("clean")
    engine.delete("d", before_seq=100)
    world.clock.advance(5000)
    settle(engine)
    assert explained(engine, "d") == ((1, 5, "deleted"), (6, 5 + written, "source_trim"))


@pytest.mark.parametrize("ring", ["ab", "abc"])
def test_a_loss_is_told_once_in_every_topic_of_a_cycle(world: World, ring: str) -> None:
    """Like a record: it does not go round for ever."""
    engine = world.engine
    engine.put_topic("a", {"cap_records": 2, "durability": "fsync"})
    for source, dest in zip(ring, ring[1:] + ring[0], strict=True):
        route(engine, source, dest, allow_cycle=True)
    first = engine.router("a->b")
    first.retry_s = math.inf
    write(engine, "a", 1)
    write(engine, "a", 2, 3, 4)
    first.retry_s = 0.0
    for _ in range(5):
        settle(engine)
    assert explained(engine, "a") == ((1, 2, "evicted"), (3, 4, "live"))
    for name in ring[1:]:
        assert explained(engine, name) == ((1, 2, "source_trim"), (3, 4, "live"))
    routers = engine.core.routers
    assert not any(routers.hole_hops.get(topic) for topic in routers.sources)


# -- the cold store ------------------------------------------------------------------------------


def cold_world() -> World:
    return World(cold_dir="/cold", hot_bytes=0, resident_bytes=0, block_cache_bytes=0)


def open_without_store(world: World) -> Engine:
    """The next process finds the directory, and a cold store that has nothing to give."""
    world.end("kill")
    for path in world.disk.files():
        if path.startswith("/cold/"):
            world.disk.unlink(path)
    world.engine = world.open()
    return world.engine


def test_a_start_after_copies_from_the_cold_store_needs_none_of_it() -> None:
    """Those are stored in their own right: nothing but cold reads waits for the store."""
    world = cold_world()
    engine = world.engine
    for name in "sd":
        engine.put_topic(name, {"durability": "fsync"})
    write(engine, "s", *range(20))
    engine.checkpoint()
    assert all(held.is_cold for held in engine.core.segments.live.values())
    route(engine, "s", "d", from_seq=0)
    settle(engine)
    engine = open_without_store(world)
    assert data(engine, "d") == list(range(20))


def test_a_start_needs_nothing_that_became_cold_after_it_was_copied() -> None:
    """In whatever slice of a checkpoint that was, until its segments have moved."""
    for slices in range(SLICES_MAX):
        world = cold_world()
        engine = world.engine
        for name in "sd":
            engine.put_topic(name, {"durability": "fsync"})
        route(engine, "s", "d")
        engine.core.committer.wait(engine.submit_append("s", request_of([{"data": 1}])))
        engine.maintenance.drain()
        assert engine.begin_checkpoint()
        for _ in range(slices):
            engine.maintenance.step()
        engine.forward()
        engine.maintenance.drain()
        assert any(held.is_cold for held in engine.core.segments.live.values())
        engine = open_without_store(world)
        assert engine.state("d").head_seq == 1, slices


# -- topics that are brought back after the start ------------------------------------------------


@pytest.mark.parametrize("first", ["checkpoint", "maintain", "route"])
def test_no_checkpoint_comes_before_what_is_still_brought_back(world: World, first: str) -> None:
    """It would take a topic of class memory for what the start had read of it so far."""
    world.set(seal_records=1)
    for name in "abm":
        world.engine.put_topic(name, {"durability": "memory"})
        write(world.engine, name, *range(5))
    world.end("kill")
    steps = Engine.opening("/data", clock=world.clock, fs=world.disk, settings=world.settings)
    while True:
        try:
            next(steps)
        except StopIteration as ready:
            engine: Engine = ready.value
            break
    assert engine.is_recovering
    world.engine = engine
    for number in range(3):
        # A checkpoint is due.
        world.clock.advance(100)
        engine.core.unsealed.add(1, 0)
        if first == "checkpoint":
            engine.checkpoint()
        elif first == "maintain":
            engine.maintain(1.0)
        else:
            engine.put_router(f"r{number}", {"source": "a", "dest": f"x{number}"})
    engine = world.restart("kill")
    for name in "abm":
        assert data(engine, name) == list(range(5))
