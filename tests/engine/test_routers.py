"""Routers: what is appended to a source arrives once and in order, or its loss is told."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.engines import ENDINGS, SURVIVABLE, Ending, World, explained, values
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.state.write_request import request_of
from topics.errors import (
    Incompatible,
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicNotFound,
)
from topics.storage import frames
from topics.storage.wal import Shard
from topics.types import Record

NAME = "a->b"


def route(engine: Engine, source: str = "a", dest: str = "b", **options: Any) -> bool:
    name = f"{source}->{dest}"
    return engine.put_router(name, {"source": source, "dest": dest, **options})[1]


def write(engine: Engine, topic: str, *data: Any, **fields: Any) -> None:
    engine.append(topic, [{"data": value, **fields} for value in data])


def settle(engine: Engine) -> None:
    while engine.forward():
        pass


@contextlib.contextmanager
def held(engine: Engine, topic: str) -> Iterator[None]:
    """Nothing is forwarded from the topic meanwhile."""
    routers = list(engine.core.routers.from_topic(engine.core.by_name[topic]))
    for router in routers:
        router.retry_s = math.inf
    yield
    for router in routers:
        router.retry_s = 0.0


def read(engine: Engine, topic: str) -> list[Record]:
    return engine.diff(topic, limit=1000, include_tags=True).records


def data(engine: Engine, topic: str) -> list[Any]:
    settle(engine)
    return values(engine.diff(topic, limit=1000))


def test_what_is_appended_to_the_source_arrives_in_order(engine: Engine) -> None:
    """Every record committed to the source is appended to the destination, in source order."""
    route(engine)
    write(engine, "a", *range(2500))
    write(engine, "a", "last")
    settle(engine)
    seen: list[Any] = []
    while len(seen) < 2501:
        seen += values(engine.diff("b", from_seq=len(seen), limit=1000))
    assert seen == [*range(2500), "last"]
    assert engine.router(NAME).place.forwarded_total == 2501


def test_a_copy_keeps_everything_but_seq_and_time(world: World) -> None:
    """Node, tag, meta and data carry through verbatim; seq and time are the destination's."""
    engine = world.engine
    write(engine, "b", "before")
    route(engine)
    body = b'{"records":[{"data":{"x":1.0,"x":1e400},"tag":"t","node":"n","meta":{"k":"\\u00e9"}}]}'
    with held(engine, "a"):
        engine.append_json("a", body)
        world.clock.advance(50)
    settle(engine)
    original, copy = read(engine, "a")[0], read(engine, "b")[1]
    assert (copy.node, copy.tag, copy.meta) == ("n", "t", {"k": "é"})
    assert bytes(copy.data) == bytes(original.data) == b'{"x":1.0,"x":1e400}'
    assert (copy.seq, copy.ts) == (2, original.ts + 50)


def test_node_and_tag_can_be_left_out(engine: Engine) -> None:
    """preserve_node and preserve_tag false clear them on the copy."""
    route(engine, preserve_node=False, preserve_tag=False)
    write(engine, "a", {"data": 1}, node=',"data":', tag="t", meta={"k": "v"})
    settle(engine)
    [copy] = read(engine, "b")
    assert (copy.node, copy.tag, copy.meta, copy.value) == (None, None, {"k": "v"}, {"data": 1})
    assert engine.delete("b", match="t").deleted == 0


def test_a_filter_lets_only_its_tags_through(engine: Engine) -> None:
    """A router with a filter forwards what matches and passes over the rest."""
    route(engine, "a", "b", filter=["tag", "Glob", "public:*"])
    route(engine, "a", "c", filter=["tag", "Eq", "x"])
    for tag in ("public:1", "x", None, "public:2"):
        write(engine, "a", tag, **({} if tag is None else {"tag": tag}))
    assert data(engine, "b") == ["public:1", "public:2"]
    assert data(engine, "c") == ["x"]
    assert engine.router(NAME).place.cursor == 4


def test_the_ack_of_the_source_does_not_wait(engine: Engine) -> None:
    """Forwarding is off the write path: a write is acknowledged before its copy exists."""
    route(engine)
    ticket = engine.submit_append("a", request_of([{"data": 1}]))
    engine.flush()
    ticket_done, heads = ticket.done, engine.core.by_name["b"].head
    engine.sync()
    assert (ticket_done or ticket.done, heads) == (True, 0)


def test_one_source_append_is_one_record_frame(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many routers: one append frame, and at most one map for each router and group."""
    for dest in "bcde":
        route(engine, "a", dest)
    write(engine, "a", "warm up")
    settle(engine)
    seen: list[tuple[int, int]] = []
    plain = Shard.write

    def spy(shard: Shard, entries: list[bytes], *rest: Any, **more: Any) -> Any:
        fields = [frames.ENTRY.unpack(entry) for entry in entries]
        seen.extend((kind, topic) for topic, kind, *_ in fields)
        return plain(shard, entries, *rest, **more)

    monkeypatch.setattr(Shard, "write", spy)
    write(engine, "a", *range(100))
    settle(engine)
    kinds = [kind for kind, _ in seen]
    assert kinds.count(frames.APPEND) == 1
    assert kinds.count(frames.MAP) == 4
    assert len({topic for kind, topic in seen if kind == frames.MAP}) == 4


def test_a_new_router_starts_at_the_head(engine: Engine) -> None:
    """What was there before the router is not forwarded, unless from_seq says so."""
    write(engine, "a", 1, 2, 3)
    route(engine, "a", "b")
    route(engine, "a", "c", from_seq=1)
    write(engine, "a", 4)
    assert data(engine, "b") == [4]
    assert data(engine, "c") == [2, 3, 4]


def test_a_changed_router_neither_replays_nor_skips(world: World) -> None:
    """A repeated put is no change; a changed one goes on where the router stood."""
    engine = world.engine
    assert route(engine)
    write(engine, "a", 1)
    settle(engine)
    assert not route(engine)
    write(engine, "a", 2, node="n")
    assert not route(engine, preserve_node=False)
    write(engine, "a", 3, node="n")
    settle(engine)
    assert values(engine.diff("b")) == [1, 2, 3]
    engine = world.restart("kill")
    assert not engine.router(NAME).options.preserve_node
    write(engine, "a", 4)
    assert data(engine, "b") == [1, 2, 3, 4]


def test_a_deleted_router_stops_and_its_copies_stay(world: World) -> None:
    """Deleting a router stops forwarding at once, leaves the copies, and is permanent."""
    engine = world.engine
    route(engine)
    write(engine, "a", 1)
    settle(engine)
    engine.submit_append("a", request_of([{"data": 2}]))
    assert engine.delete_router(NAME)
    assert not engine.delete_router(NAME)
    assert data(engine, "b") == [1]
    engine = world.restart("crash")
    with pytest.raises(RouterNotFound):
        engine.router(NAME)
    assert data(engine, "b") == [1]


def test_a_destination_has_one_source(engine: Engine) -> None:
    """A second router from another source into one destination is refused with its reason."""
    route(engine, "a", "b")
    with pytest.raises(Incompatible) as refused:
        route(engine, "c", "b")
    assert refused.value.detail["reason"] == "router_dest_fan_in"
    assert "c" not in engine.list_topics()
    engine.put_router("second", {"source": "a", "dest": "b", "filter": "x"})


def test_a_cycle_is_refused_with_its_path(engine: Engine) -> None:
    """A router that would close a cycle is refused, and the cycle is named."""
    route(engine, "a", "b")
    route(engine, "b", "c")
    with pytest.raises(RouterCycle) as refused:
        route(engine, "c", "a")
    assert refused.value.detail["cycle"] == ["a", "b", "c", "a"]
    with pytest.raises(InvalidRequest):
        route(engine, "a", "a")


def test_a_router_in_an_allowed_cycle_can_be_changed(engine: Engine) -> None:
    """A change that closes no cycle is none, also where another router has closed one."""
    route(engine, "a", "b")
    engine.put_router("back", {"source": "b", "dest": "a", "allow_cycle": True})
    route(engine, "a", "b", filter="x")
    assert engine.router("a->b").options.filter == ("x", False)
    with pytest.raises(RouterCycle):
        engine.put_router("back", {"source": "b", "dest": "a", "allow_cycle": False})
    with pytest.raises(RouterCycle):
        engine.put_router("another", {"source": "a", "dest": "b"})


@pytest.mark.parametrize("ring", ["ab", "abc"])
def test_an_allowed_cycle_ends(engine: Engine, ring: str) -> None:
    """In a cycle a record reaches every other topic once and does not come back."""
    for source, dest in zip(ring, ring[1:] + ring[0], strict=True):
        route(engine, source, dest, allow_cycle=True)
    route(engine, "b", "tail")
    for name in ring:
        write(engine, name, name)
    for _ in range(10):
        settle(engine)
    for name in (*ring, "tail"):
        assert sorted(data(engine, name)) == sorted(ring)
    assert not any(engine.core.routers.hops.get(topic) for topic in engine.core.routers.sources)


def test_a_full_destination_holds_the_router_back(world: World) -> None:
    """Under reject the router keeps its place, retries later, and forwards what fits."""
    engine = world.engine
    engine.put_topic("b", {"cap_records": 3, "discard": "reject"})
    route(engine)
    write(engine, "a", *range(8))
    assert data(engine, "b") == [0, 1, 2]
    assert engine.router(NAME).place.cursor == 3
    engine.delete("b", before_seq=3)
    world.clock.advance(2000)
    assert data(engine, "b") == [2, 3, 4]
    for _ in range(4):
        engine.delete("b", before_seq=100)
        world.clock.advance(2000)
        settle(engine)
    assert engine.router(NAME).place.cursor == 8


def test_what_the_source_lost_before_is_told_in_the_destination(world: World) -> None:
    """Seqs that could not be forwarded take seqs in the destination, under source_trim."""
    engine = world.engine
    engine.put_topic("a", {"cap_records": 2})
    engine.put_topic("b", {"cap_records": 2, "discard": "reject"})
    route(engine)
    write(engine, "a", 1, 2)
    settle(engine)
    write(engine, "a", 3, 4, 5, 6)
    engine.delete("b", before_seq=3)
    world.clock.advance(5000)
    settle(engine)
    assert explained(engine, "b")[1:] == ((3, 4, "source_trim"), (5, 6, "live"))
    engine = world.restart("kill")
    tombstone = engine.diff("b", from_seq=2).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (3, 4, "source_trim")
    assert data(engine, "b") == [5, 6]


def test_what_was_deleted_before_is_passed_silently(engine: Engine) -> None:
    """A record deleted from the source before it was forwarded leaves no trace in the dest."""
    route(engine)
    with held(engine, "a"):
        write(engine, "a", 1, tag="x")
        write(engine, "a", 2)
        engine.delete("a", match="x")
    assert data(engine, "b") == [2]
    assert engine.state("b").head_seq == 1


@pytest.mark.parametrize("how", SURVIVABLE)
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_copies_are_the_same_after_a_restart(world: World, durability: str, how: Ending) -> None:
    """Recovery makes the same records again, with the same seqs, times and bytes."""
    engine = world.engine
    engine.put_topic("b", {"durability": durability})
    route(engine, guarantee="exactly_once")
    route(engine, "b", "c")
    for turn in range(3):
        write(engine, "a", turn, tag=f"t{turn}", node="n", meta={"k": "v"})
        write(engine, "b", f"direct {turn}")
        world.clock.advance(7)
        settle(engine)
    engine.delete("a", before_seq=3)
    before = [engine.diff(name).records_json for name in "bc"]
    for _ in range(2):
        engine = world.restart(how)
        assert [engine.diff(name).records_json for name in "bc"] == before
    write(engine, "a", 9)
    assert data(engine, "c")[-1] == 9
    assert len(data(engine, "b")) == 7


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_an_fsync_copy_survives_everything(world: World, checkpoints: int, how: Ending) -> None:
    """A copy in an fsync destination survives any crash, whatever became of its source."""
    engine = world.engine
    engine.put_topic("a", {"cap_records": 4})
    engine.put_topic("b", {"durability": "fsync"})
    route(engine)
    for turn in range(12):
        write(engine, "a", turn, tag="x")
        settle(engine)
        if turn % 4 < checkpoints:
            engine.checkpoint()
        if turn % 3 == 0:
            engine.delete("a", match="x")
    engine.delete_topic("a")
    assert not len(engine.core.routers)
    engine = world.restart(how)
    assert data(engine, "b") == list(range(12))
    report = check(world.disk, "/data", clock=world.clock)
    assert report.ok


def test_copies_of_an_ephemeral_source_are_stored_in_their_own_right(world: World) -> None:
    """The destination's class decides what becomes of a copy, not the source's."""
    engine = world.engine
    engine.put_topic("a", {"durability": "ephemeral"})
    engine.put_topic("b", {"durability": "fsync"})
    route(engine)
    write(engine, "a", 1, 2, meta={"k": "v"})
    settle(engine)
    engine.put_topic("a", {"durability": "disk"})
    write(engine, "a", 3)
    settle(engine)
    engine = world.restart("crash")
    assert data(engine, "b")[:3] == [1, 2, 3]


def test_copies_in_an_ephemeral_destination_are_resident(world: World) -> None:
    """They are gone after a restart, and the router goes on where it stood."""
    engine = world.engine
    engine.put_topic("b", {"durability": "ephemeral"})
    route(engine)
    write(engine, "a", 1, 2)
    assert data(engine, "b") == [1, 2]
    engine = world.restart("clean")
    write(engine, "a", 3)
    assert data(engine, "b") == [3]


def test_a_copy_that_exactly_once_made_names_its_source(engine: Engine) -> None:
    """meta._topics_router has the router, the source's topic, epoch and seq, and a stable key."""
    route(engine, guarantee="exactly_once")
    write(engine, "a", 1, meta={"k": "v"})
    write(engine, "a", 2)
    settle(engine)
    copies = read(engine, "b")
    marks = [(copy.meta or {})["_topics_router"] for copy in copies]
    assert [mark["source_seq"] for mark in marks] == [1, 2]
    epoch = engine.state("a").epoch
    assert marks[0]["router"] == NAME
    assert (marks[0]["source_topic"], marks[0]["source_epoch"]) == ("a", str(epoch))
    assert len({mark["idempotency_key"] for mark in marks}) == 2
    assert (copies[0].meta or {})["k"] == "v"


def test_exactly_once_does_not_copy_again_what_is_still_there(world: World) -> None:
    """A router that starts over passes over copies whose key is still in the destination."""
    engine = world.engine
    route(engine, guarantee="exactly_once")
    write(engine, "a", 1, 2, 3)
    settle(engine)
    engine.delete("b", before_seq=2)
    engine.delete_router(NAME)
    write(engine, "a", 4)
    route(engine, guarantee="exactly_once", from_seq=0)
    assert data(engine, "b") == [2, 3, 1, 4]
    engine = world.restart("kill")
    write(engine, "a", 5)
    assert data(engine, "b") == [2, 3, 1, 4, 5]


def test_dropping_a_topic_removes_its_routers(world: World) -> None:
    """Routers with the topic as source or destination go with it; copies stay."""
    engine = world.engine
    route(engine, "a", "b")
    route(engine, "b", "c")
    route(engine, "a", "d")
    write(engine, "a", 1)
    settle(engine)
    settle(engine)
    engine.delete_topic("b")
    assert list(engine.core.routers.by_name) == ["a->d"]
    engine = world.restart("crash")
    assert list(engine.core.routers.by_name) == ["a->d"]
    assert data(engine, "c") == [1]
    write(engine, "b", 2)
    assert data(engine, "c") == [1]


def test_a_router_can_be_moved(world: World) -> None:
    """A put under the same name with other topics ends the old route and begins the new one."""
    engine = world.engine
    engine.put_router("r", {"source": "a", "dest": "b"})
    write(engine, "a", 1)
    settle(engine)
    engine.put_router("r", {"source": "a", "dest": "c"})
    write(engine, "a", 2)
    settle(engine)
    engine = world.restart("kill")
    write(engine, "a", 3)
    assert (data(engine, "b"), data(engine, "c")) == ([1], [2, 3])


def test_the_number_of_routers_is_bounded() -> None:
    """At max_routers a new one is 429 before any topic is made; a repeated put succeeds."""
    engine = World(max_routers=1).engine
    route(engine, "a", "b")
    with pytest.raises(Throttled) as refused:
        route(engine, "c", "d")
    assert refused.value.detail == {"limit": "max_routers", "max": 1}
    assert engine.list_topics() == ["a", "b"]
    assert not route(engine, "a", "b", preserve_tag=False)


def test_a_missing_destination_is_made_only_if_wanted(engine: Engine) -> None:
    """create_dest false and no such topic is topic_not_found; nothing is made."""
    with pytest.raises(TopicNotFound):
        route(engine, create_dest=False)
    assert engine.list_topics() == []
    route(engine)
    assert engine.list_topics() == ["a", "b"]


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 256, "a/b"])
def test_a_router_has_a_name_like_a_topic(engine: Engine, name: str) -> None:
    """Names of routers are those of topics, with > besides."""
    with pytest.raises(InvalidRequest):
        engine.put_router(name, {"source": "a", "dest": "b"})


def test_a_router_may_come_while_a_checkpoint_is_under_way(world: World) -> None:
    """Its copies are there after a crash, though their source was deleted before it ended."""
    engine = world.engine
    write(engine, "b", 0)
    write(engine, "a", 1, tag="x")
    assert engine.begin_checkpoint()
    engine.maintain(0)
    route(engine, from_seq=0)
    settle(engine)
    engine.delete("a", match="x")
    engine.checkpoint()
    engine = world.restart("crash")
    assert data(engine, "b") == [0, 1]


def test_a_sliced_checkpoint_loses_no_copy(world: World) -> None:
    """Copies made while a checkpoint runs are there after a crash, once each."""
    engine = world.engine
    engine.put_topic("b", {"durability": "fsync"})
    engine.put_topic("a", {"cap_records": 3})
    route(engine)
    for turn in range(40):
        if turn % 10 == 0:
            engine.maintenance.drain()
            assert engine.begin_checkpoint()
        write(engine, "a", turn)
        engine.maintain(0)
    settle(engine)
    engine = world.restart("crash")
    assert data(engine, "b") == list(range(40))


@pytest.mark.parametrize("slices", range(12))
def test_copies_stay_in_whatever_slice_their_source_goes(world: World, slices: int) -> None:
    """Whatever slice of a checkpoint a record is forwarded and deleted in, its copy stays."""
    engine = world.engine
    for name in "bac":
        engine.put_topic(name, {"durability": "fsync"})
    route(engine, "a", "b")
    route(engine, "b", "c")
    with held(engine, "a"):
        write(engine, "a", 1, 2)
        assert engine.begin_checkpoint()
        for _ in range(slices):
            engine.maintenance.step()
    settle(engine)
    settle(engine)
    for name in "ab":
        # Without going on with the checkpoint.
        engine.submit_delete(name, before_seq=3, match=None)
    engine.sync()
    engine.maintenance.drain()
    engine = world.restart("crash")
    assert (data(engine, "b"), data(engine, "c")) == ([], [1, 2])
