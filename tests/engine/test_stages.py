"""Stages: a batch of writes that becomes visible at once or never, and only once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engines import ENDINGS, Ending, World, explained, seqs, values
from topics.engine.engine import Engine
from topics.engine.state.producers import FILTER_BITS, LastBatch, Producers, query_digest
from topics.errors import (
    BatchTooLarge,
    Conflicting,
    DiskFull,
    InvalidRequest,
    PayloadTooLarge,
    RecordTooLarge,
    StageExpired,
    StorageError,
    Throttled,
    TopicFull,
    TopicNotFound,
    TopicsError,
)
from topics.settings import KIB
from topics.testing import FakeDisk, FaultFs
from topics.testing.faultfs import Fault
from topics.types import Committed, CommittedTopic

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
LASTING = ["memory", "disk", "fsync"]


def stage(engine: Engine, topic: str, *data: Any, batch: int = 0, **options: Any) -> str:
    records = [each if isinstance(each, dict) else {"data": each} for each in data]
    given = {"producer": "p", "batch": batch, **options}
    return engine.stage(topic, records, **given).stage


def commit(engine: Engine, *stages: str, batch: int = 0, query: str = "q") -> Committed:
    return engine.commit("p", batch, query=query, stages=stages)


def told(committed: Committed) -> dict[str, tuple[int, int]]:
    return {name: (part.first_seq, part.last_seq) for name, part in committed.topics.items()}


def files(world: World) -> list[str]:
    return world.disk.listdir("/data/stage")


def test_what_is_staged_is_seen_by_nobody(world: World) -> None:
    """No topic, no record, no count of it before the commit; then all of it, in order."""
    engine = world.engine
    world.fill("old", 2)
    first = stage(engine, "old", 10, 11)
    second = stage(engine, "new", 20)
    third = stage(engine, "old", 12, part=1)
    assert engine.list_topics() == ["old"]
    state = engine.state("old")
    assert (state.head_seq, state.next_seq, state.count) == (2, 3, 2)
    assert engine.gauges().staged_records == 4
    done = commit(engine, third, second, first)
    assert done == Committed(
        False, {"old": CommittedTopic(3, 5, 3), "new": CommittedTopic(1, 1, 1)}
    )
    assert values(engine.diff("old", from_seq=2)) == [12, 10, 11]
    assert values(engine.diff("new")) == [20]
    assert (engine.gauges().staged_records, engine.gauges().staged_bytes) == (0, 0)


def test_committed_records_are_ordinary_ones(world: World) -> None:
    """Byte for byte what an append of the same records is, with the time of the commit."""
    records = [
        {"data": {"n": 1, "x": "é\n"}, "tag": "a", "node": "eu-1", "meta": {"k": "v"}},
        {"data": None},
        {"data": [1.50, "two"], "tag": "b"},
    ]
    engine = world.engine
    name = engine.stage("staged", records, producer="p", batch=0).stage
    world.clock.advance(5000)
    commit(engine, name)
    engine.append("plain", records)
    mine, plain = engine.diff("staged", include_tags=True), engine.diff("plain", include_tags=True)
    assert mine.records_json == plain.records_json
    assert engine.state("staged").bytes == engine.state("plain").bytes
    assert engine.state("staged").last_write_ts == world.clock.wall_ms()
    assert explained(engine, "staged") == ((1, 3, "live"),)
    assert engine.delete("staged", match="a").deleted == 1
    assert seqs(engine.diff("staged", node="eu-1")) == [2, 3]


@pytest.mark.parametrize("durability", LASTING)
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_the_same_batch_again_is_the_first_answer(
    world: World, durability: str, how: Ending, checkpoints: int
) -> None:
    """With whatever stages, after any end of the process, with the log or without it."""
    engine = world.engine
    for name in ("a", "b"):
        engine.put_topic(name, {"durability": durability})
    world.fill("a", 3)
    done = commit(engine, stage(engine, "a", 1, 2), stage(engine, "b", 3))
    for _ in range(checkpoints):
        engine.checkpoint()
    engine = world.restart(how)
    for stages in ([], [stage(engine, "a", 9)], ["never was"]):
        again = commit(engine, *stages)
        assert again == Committed(True, done.topics)
    assert told(done) == {"a": (4, 5), "b": (1, 1)}
    assert values(engine.diff("a", from_seq=3)) == [1, 2]
    assert engine.state("a").count == 5
    assert engine.gauges().stages == 0


@pytest.mark.parametrize("how", ENDINGS)
def test_a_stage_is_durable_when_its_id_is_told(world: World, how: Ending) -> None:
    """Whatever ends the process; it is as invisible after it as it was before."""
    name = stage(world.engine, "t", 1, 2)
    engine = world.restart(how)
    assert engine.list_topics() == []
    assert engine.gauges().stages == 1
    assert told(commit(engine, name)) == {"t": (1, 2)}


def test_another_query_or_an_older_batch_is_a_conflict(world: World) -> None:
    """A known batch belongs to the query that committed it; batches only go up, with gaps."""
    engine = world.engine
    commit(engine, stage(engine, "t", 1, batch=5), batch=5)
    with pytest.raises(Conflicting, match="another query"):
        commit(engine, stage(engine, "t", 1, batch=5), batch=5, query="r")
    with pytest.raises(Conflicting, match="only go up"):
        commit(engine, stage(engine, "u", 1, batch=4), batch=4)
    assert told(commit(engine, stage(engine, "t", 2, batch=9), batch=9, query="r")) == {"t": (2, 2)}
    with pytest.raises(Conflicting, match="only go up"):
        commit(engine, batch=5)
    other = engine.commit("other", 0, query="q", stages=[stage(engine, "t", 3, producer="other")])
    assert told(other) == {"t": (3, 3)}


def test_a_stage_that_is_not_there_is_expired(world: World) -> None:
    """Expired, dropped, committed or never there: nothing is committed, and the remedy is one."""
    engine = world.engine
    kept = stage(engine, "t", 1)
    used = stage(engine, "u", 1, producer="x")
    engine.commit("x", 0, query="q", stages=[used])
    for missing in ("", "no such", used, "00000001-00000099", "1-1"):
        with pytest.raises(StageExpired):
            commit(engine, kept, missing)
    assert engine.list_topics() == ["u"]
    world.clock.advance(world.settings.stage_ttl_ms)
    with pytest.raises(StageExpired):
        commit(engine, kept)
    assert told(commit(engine, stage(engine, "t", 2))) == {"t": (1, 1)}


def test_a_stage_of_another_batch_is_a_conflict(world: World) -> None:
    """A commit takes stages of its own producer and batch only."""
    engine = world.engine
    for stranger in (stage(engine, "t", 1, batch=1), stage(engine, "t", 1, producer="x")):
        with pytest.raises(Conflicting, match="another producer or batch"):
            commit(engine, stranger)
    assert engine.list_topics() == []


@pytest.mark.parametrize("how", [None, *ENDINGS])
def test_expired_stages_leave_the_disk(world: World, how: Ending | None) -> None:
    """After their time, by the clock that never jumps, or by the wall clock across a restart."""
    stage(world.engine, "t", 1)
    world.clock.advance(world.settings.stage_ttl_ms - 1000)
    if how is not None:
        world.restart(how)
    kept = stage(world.engine, "t", 2)
    world.engine.maintain()
    assert len(files(world)) == 2
    world.clock.advance(1000)
    world.engine.maintain()
    assert files(world) == [f"{kept}.stage"]
    gauges = world.engine.gauges()
    assert (gauges.stages, gauges.stages_expired, gauges.staged_records) == (1, 1, 1)
    assert world.restart("crash").gauges().stages == 1


def test_dropping_is_durable_and_idempotent(world: World) -> None:
    """All stages of a batch and none of another; a crash brings nothing back."""
    engine = world.engine
    gone = [stage(engine, "t", 1), stage(engine, "u", 2, attempt="b")]
    kept = stage(engine, "t", 3, batch=1)
    assert engine.drop_stages("p", 0) == 2
    assert engine.drop_stages("p", 0) == engine.drop_stages("nobody", 0) == 0
    assert files(world) == [f"{kept}.stage"]
    engine = world.restart("crash")
    assert engine.gauges().stages == 1
    for name in gone:
        with pytest.raises(StageExpired):
            commit(engine, name)
    assert told(commit(engine, kept, batch=1)) == {"t": (1, 1)}


def test_what_a_commit_does_not_name_goes_with_it(world: World) -> None:
    """Stages of dead attempts, and of batches that can not come any more."""
    engine = world.engine
    stage(engine, "t", 0, batch=1)
    stage(engine, "t", 9, batch=2, attempt=1)
    later = stage(engine, "t", 3, batch=3)
    commit(engine, stage(engine, "t", 1, batch=2), batch=2)
    assert engine.gauges().stages == 1
    assert told(commit(engine, later, batch=3)) == {"t": (2, 2)}
    assert values(engine.diff("t")) == [1, 3]


def test_a_batch_without_records_is_nothing(world: World) -> None:
    """It is answered, and remembered nowhere: there is no topic to remember it in."""
    assert commit(world.engine) == Committed(False, {})
    assert commit(world.engine) == Committed(False, {})
    assert world.engine.list_topics() == []


def test_a_stage_named_twice_counts_once(world: World) -> None:
    """Ids are a set with an order."""
    name = stage(world.engine, "t", 1)
    assert told(commit(world.engine, name, name)) == {"t": (1, 1)}


@pytest.mark.parametrize("durability", CLASSES)
def test_every_class_takes_a_batch(world: World, durability: str) -> None:
    """Writes before and after it keep their order; the seqs are contiguous."""
    engine = world.engine
    engine.put_topic("t", {"durability": durability})
    engine.append("t", [{"data": "before"}])
    assert told(commit(engine, stage(engine, "t", *range(50)))) == {"t": (2, 51)}
    engine.append("t", [{"data": "after"}])
    assert values(engine.diff("t")) == ["before", *range(50), "after"]
    assert commit(engine).repeated


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_an_ephemeral_topic_forgets_its_batches_with_its_records(world: World, how: Ending) -> None:
    """Both go with the process: the batch again is new, and readers were told of the loss."""
    engine = world.engine
    engine.put_topic("t", {"durability": "ephemeral"})
    commit(engine, stage(engine, "t", 1))
    assert files(world) == []
    engine = world.restart(how)
    assert not commit(engine, stage(engine, "t", 1)).repeated


def test_a_promoted_topic_remembers_its_batches(world: World) -> None:
    """What becomes durable with the records is who wrote them."""
    engine = world.engine
    engine.put_topic("t", {"durability": "ephemeral"})
    done = commit(engine, stage(engine, "t", 1, 2))
    engine.put_topic("t", {"durability": "fsync"})
    for _ in range(2):
        engine = world.restart("crash")
        assert commit(engine) == Committed(True, done.topics)
        engine.checkpoint()
    assert values(engine.diff("t")) == [1, 2]


def test_a_dropped_topic_takes_its_memory_along(world: World) -> None:
    """The last batch is remembered for as long as the topic lives."""
    engine = world.engine
    commit(engine, stage(engine, "t", 1))
    engine.delete_topic("t")
    for how in (None, "crash"):
        if how is not None:
            engine = world.restart("crash")
        done = commit(engine, stage(engine, "t", 2))
        assert done == Committed(False, {"t": CommittedTopic(1, 1, 1)})
        engine.delete_topic("t")


def test_a_cut_commit_is_healed_by_repeating_it() -> None:
    """A part that is there is not written again; the one that is missing is, from any stages."""
    faults = FaultFs(FakeDisk())
    world = World(disk=faults)  # type: ignore[arg-type]
    engine = world.engine
    for name in ("a", "b"):
        engine.put_topic(name, {})
    names = [stage(engine, "a", 1, 2), stage(engine, "b", 3)]
    shard = engine.core.log.shard_of(engine.core.by_name["b"]).index
    faults.fault = Fault("pwrite", path_contains=f"-{shard:02d}-", errno=28, forever=True)
    with pytest.raises(DiskFull):
        commit(engine, *names)
    faults.fault = None
    assert (engine.state("a").head_seq, engine.state("b").head_seq) == (2, 0)
    with pytest.raises(StageExpired, match='topic "b"'):
        commit(engine, names[0])
    healed = commit(engine, *names)
    assert (healed.repeated, told(healed)) == (False, {"a": (1, 2), "b": (1, 1)})
    assert commit(engine, *names) == Committed(True, healed.topics)


def test_limits_are_those_of_a_write() -> None:
    """Names, records, sizes; nothing is staged by what is refused."""
    world = World(
        max_batch_records=3, max_record_bytes=100, max_body_bytes=1000, max_staged_bytes=9 * KIB
    )
    engine = world.engine
    bad: list[tuple[type[TopicsError], dict[str, Any]]] = [
        (InvalidRequest, {"topic": "no/name"}),
        (InvalidRequest, {"topic": "kv:bucket"}),
        (InvalidRequest, {"records": []}),
        (InvalidRequest, {"records": [{"nodata": 1}]}),
        (InvalidRequest, {"records": [{"data": 1, "tag": "x" * 257}]}),
        (BatchTooLarge, {"records": [{"data": 1}] * 4}),
        (RecordTooLarge, {"records": [{"data": "x" * 100}]}),
        (PayloadTooLarge, {"records": [{"data": "x" * 400}] * 3}),
        (InvalidRequest, {"producer": ""}),
        (InvalidRequest, {"producer": "x" * 257}),
        (InvalidRequest, {"producer": "\ud800"}),
        (InvalidRequest, {"producer": 7}),
        (InvalidRequest, {"batch": -1}),
        (InvalidRequest, {"batch": 2**63}),
        (InvalidRequest, {"batch": True}),
        (InvalidRequest, {"part": -1}),
        (InvalidRequest, {"attempt": ""}),
    ]
    for error, change in bad:
        given = {"topic": "t", "records": [{"data": 1}], "producer": "p", "batch": 0, **change}
        with pytest.raises(error):
            engine.stage(given.pop("topic"), given.pop("records"), **given)
    assert files(world) == []
    stage(engine, "t", 1)
    stage(engine, "t", 2)
    with pytest.raises(Throttled):
        stage(engine, "t", 3)
    engine.drop_stages("p", 0)
    stage(engine, "t", 3)
    for wrong in ({"batch": -1}, {"query": ""}, {"stages": "abc"}, {"stages": [1]}):
        given = {"batch": 0, "query": "q", "stages": [], **wrong}
        with pytest.raises(InvalidRequest):
            engine.commit("p", given.pop("batch"), **given)


def test_staged_bytes_count_towards_the_quota() -> None:
    """A write finds no room that a stage has taken; the commit of that stage does."""
    world = World(max_total_bytes=10 * KIB)
    engine = world.engine
    name = stage(engine, "t", "x" * 6000)
    with pytest.raises(Throttled):
        engine.append("u", [{"data": "x" * 6000}])
    with pytest.raises(Throttled):
        stage(engine, "u", "x" * 6000)
    commit(engine, name)
    assert engine.state("t").count == 1
    engine.append("u", [{"data": "x" * 3000}])


def test_a_commit_that_finds_no_room_changes_nothing() -> None:
    """A full topic, a batch that can never fit, too many topics: no topic has any of it."""
    world = World(max_topics=3)
    engine = world.engine
    engine.put_topic("full", {"cap_records": 2, "discard": "reject"})
    engine.put_topic("open", {})
    engine.append("full", [{"data": 1}])
    names = [stage(engine, "open", 1), stage(engine, "full", 1, 2)]
    with pytest.raises(TopicFull):
        commit(engine, *names)
    with pytest.raises(RecordTooLarge):
        commit(engine, *names, stage(engine, "full", 3))
    with pytest.raises(Throttled):
        commit(engine, *names, stage(engine, "x", 1), stage(engine, "y", 1))
    assert engine.list_topics() == ["full", "open"]
    assert engine.state("open").head_seq == 0
    engine.delete("full", before_seq=2)
    assert told(commit(engine, *names)) == {"open": (1, 1), "full": (2, 3)}


def test_caps_and_ttl_take_committed_records_like_others(world: World) -> None:
    """Evicted by a cap at once, expired by a TTL from the time of the commit."""
    engine = world.engine
    engine.put_topic("t", {"cap_records": 3, "ttl_ms": 1000})
    name = stage(engine, "t", *range(5))
    world.clock.advance(2000)
    commit(engine, name)
    assert seqs(engine.diff("t", from_seq=2)) == [3, 4, 5]
    assert explained(engine, "t") == ((1, 2, "evicted"), (3, 5, "live"))
    world.clock.advance(1001)
    assert explained(engine, "t") == ((1, 2, "evicted"), (3, 5, "expired"))
    before = world.look("t")
    world.restart("kill")
    assert world.look("t") == before


def test_a_full_disk_stages_nothing() -> None:
    """507 with nothing left behind, and room again later."""
    faults = FaultFs(FakeDisk())
    world = World(disk=faults)  # type: ignore[arg-type]
    faults.fault = Fault("pwrite", path_contains=".stage", errno=28)
    with pytest.raises(DiskFull):
        stage(world.engine, "t", 1)
    assert files(world) == []
    assert world.engine.gauges().stages == 0
    assert told(commit(world.engine, stage(world.engine, "t", 1))) == {"t": (1, 1)}


@pytest.mark.parametrize("call", ["sync", "rename", "sync_dir", "create"])
def test_a_stage_that_could_not_be_made_durable_is_none(call: Any) -> None:
    """It is told, the log goes on, and no later start finds the stage."""
    faults = FaultFs(FakeDisk())
    world = World(disk=faults)  # type: ignore[arg-type]
    faults.fault = Fault(call, path_contains="stage")
    with pytest.raises(StorageError):
        stage(world.engine, "t", 1)
    world.engine.append("t", [{"data": 1}])
    assert files(world) == []
    assert world.engine.gauges().stages == 0


def test_routers_and_queues_see_a_batch(world: World) -> None:
    """Copies of it are made, and made again by recovery; jobs of it can be claimed."""
    engine = world.engine
    engine.put_topic("jobs", {"type": "queue"})
    engine.put_topic("source", {})
    engine.put_router("r", {"source": "source", "dest": "jobs"})
    commit(engine, stage(engine, "source", 1, 2), stage(engine, "jobs", 3))
    engine.forward()
    engine.sync()
    for how in ("crash", "kill", "clean"):
        engine = world.restart(how)  # type: ignore[arg-type]
        assert values(engine.diff("jobs")) == [3, 1, 2]
    assert len(engine.claim("jobs", node="w", max=5).jobs) == 3


def test_deleted_and_sealed_like_any_record(world: World) -> None:
    """A checkpoint puts them into segments; after two the files of the stages are gone."""
    engine = world.engine
    commit(engine, stage(engine, "t", *range(20)))
    engine.delete("t", before_seq=5)
    engine.checkpoint()
    assert len(files(world)) == 1
    engine = world.restart("crash")
    engine.checkpoint()
    assert files(world) == []
    engine = world.restart("crash")
    assert values(engine.diff("t", from_seq=4)) == list(range(4, 20))


def test_a_damaged_stage_is_told_and_the_rest_goes_on(world: World) -> None:
    """A commit of it fails with nothing changed; a start sets a damaged one aside."""
    engine = world.engine
    names = [stage(engine, "t", 1), stage(engine, "u", 1, batch=1)]
    _flip(world, names[0], -3)
    with pytest.raises(StorageError):
        commit(engine, names[0])
    assert engine.list_topics() == []
    _flip(world, names[1], 20)
    engine = world.restart("kill")
    with pytest.raises(StageExpired):
        commit(engine, names[1], batch=1)
    assert world.disk.listdir("/data/quarantine") == [f"{names[1]}.stage"]


def _flip(world: World, name: str, at: int) -> None:
    file = world.disk.open(f"/data/stage/{name}.stage")
    at = at if at >= 0 else file.size() + at
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.sync()
    file.close()


def test_too_many_producers_are_forgotten_out_loud() -> None:
    """The oldest of those with one batch; its name is refused, a new one is welcome."""
    world = World(max_producers=3)

    def once(producer: str, batch: int = 0) -> Committed:
        engine = world.engine
        made = engine.stage("t", [{"data": producer}], producer=producer, batch=batch)
        return engine.commit(producer, batch, query="q", stages=[made.stage])

    once("steady", 0)
    once("steady", 1)
    for number in range(10):
        once(f"p{number}")
    for how in (None, "kill", "crash"):
        if how is not None:
            world.restart(how)  # type: ignore[arg-type]
            world.engine.checkpoint()
        assert once("steady", 1).repeated
        assert once("p9").repeated
        for number in range(8):
            with pytest.raises(Conflicting, match="Use another producer"):
                once(f"p{number}")
    assert world.engine.state("t").head_seq == 12
    assert not once("steady", 2).repeated
    assert not once("fresh").repeated


@pytest.mark.slow
def test_the_memory_of_producers_is_bounded() -> None:
    """A hundred thousand that wrote one batch each: few are kept, none is taken for new."""
    held = Producers()
    names = [f"query-{number}" for number in range(100_000)]
    for number, name in enumerate(names):
        held.note(name, LastBatch(0, query_digest(name), 1, number + 1, 1), 1000)
    assert len(held) == 1000
    assert len(held.dump().forgotten) == FILTER_BITS // 8
    assert all(held.last(name) or held.may_be_forgotten(name) for name in names)
    strangers = sum(held.may_be_forgotten(f"new-{number}") for number in range(10_000))
    assert strangers < 100


def test_a_topic_that_may_not_be_made_is_made_by_nobody(world: World) -> None:
    """A write with create=false finds none where only stages are; deleting it drops none."""
    name = stage(world.engine, "t", 1)
    with pytest.raises(TopicNotFound):
        world.engine.append("t", [{"data": 1}], create=False)
    assert not world.engine.delete_topic("t")
    assert told(commit(world.engine, name)) == {"t": (1, 1)}
