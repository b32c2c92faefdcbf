"""Tiers: where a segment lies changes nothing but how long a read may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import ENDINGS, PATH, Ending, World, explained, gap, tagged
from tests.support.s3 import S3Server
from topics.engine.offline.check import check
from topics.engine.offline.repair import repair
from topics.engine.state.queue_values import Claimant
from topics.engine.state.segments import ColdMiss
from topics.errors import StorageError
from topics.storage.tiers import open_store
from topics.testing import FakeClock, FakeDisk, Lateness
from topics.testing.faultfs import Fault, FaultFs, Operation

COLD = "/cold"


def cold_world(**settings: Any) -> World:
    """Everything that is sealed goes to the cold store, and nothing sealed stays in memory."""
    defaults = {"cold_dir": COLD, "hot_bytes": 0, "resident_bytes": 0, "block_cache_bytes": 0}
    return World(**{**defaults, **settings})


def objects(world: World) -> list[str]:
    return sorted(n for n in world.disk.files() if n.startswith(COLD) and n.endswith(".seg"))


def hot(world: World) -> list[str]:
    return sorted(n for n in world.disk.files() if n.startswith("/data") and n.endswith(".seg"))


def history(world: World) -> None:
    """Three segments of two topics, with deletes, caps and a tail that is not sealed."""
    world.engine.put_topic("t", {"durability": "fsync"})
    world.engine.put_topic("u", {"durability": "fsync", "cap_records": 6})
    for n in range(3):
        world.engine.append("t", tagged("x", f"k{n}", None, "x"))
        world.engine.append("u", tagged("y", None, None))
        world.engine.checkpoint()
    world.engine.append("t", tagged("x", None))


def test_nothing_moves_without_a_cold_tier(world: World) -> None:
    """Segments stay where they were sealed."""
    history(world)
    assert objects(world) == []
    assert len(hot(world)) >= 2


def test_segments_move_when_the_hot_tier_is_full() -> None:
    """The hot file goes once the object is there, and reads come from the object."""
    world = cold_world()
    history(world)
    assert len(objects(world)) == 3
    assert hot(world) == []
    assert world.look("t").seqs == tuple(range(1, 15))


def test_the_newest_segments_stay_hot() -> None:
    """Only what does not fit moves, oldest first."""
    world = cold_world(hot_bytes=1800)
    history(world)
    assert objects(world)
    assert hot(world)
    assert {name[-16:] for name in objects(world)} < {
        name[-16:] for name in [*objects(world), *hot(world)]
    }
    assert max(name[-16:] for name in objects(world)) < min(name[-16:] for name in hot(world))


@pytest.mark.parametrize("how", ENDINGS)
def test_a_cold_topic_looks_like_a_hot_one(how: Ending) -> None:
    """Reads, counts, floors and the account are the same in both tiers, restarts included."""
    looks = []
    for world in (World(), cold_world()):
        history(world)
        world.engine.delete("t", match="x", before_seq=9)
        world.engine.delete("u", before_seq=5)
        looks.append([world.look("t"), world.look("u")])
        world.restart(how)
        looks.append([world.look("t"), world.look("u")])
    assert looks[0] == looks[1] == looks[2] == looks[3]


def test_a_read_that_may_not_wait_says_that_it_would() -> None:
    """diff_now raises instead of blocking; diff fetches and answers."""
    world = cold_world(block_cache_bytes=1 << 20)
    history(world)
    with pytest.raises(ColdMiss):
        world.engine.diff_now("t")
    assert world.look("t").seqs == tuple(range(1, 15))
    assert world.engine.diff_now("t").count > 0


def test_the_tail_is_never_cold() -> None:
    """Writing and tailing touch no object."""
    world = cold_world()
    history(world)
    world.engine.append("t", [{"data": 1}])
    page = world.engine.diff_now("t", from_seq=12)
    assert page.count == 3


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_delete_reaches_cold_records(how: Ending, checkpoint: bool) -> None:
    """A delete of records in the cold store is durable without touching the object."""
    world = cold_world()
    history(world)
    before = {name: world.disk.files()[name] for name in objects(world)}
    assert world.engine.delete("t", match="x", before_seq=10).deleted == 5
    assert {name: world.disk.files()[name] for name in objects(world)} == before
    if checkpoint:
        for _ in range(3):
            world.engine.checkpoint()
    world.restart(how)
    assert world.look("t").seqs == (2, 3, 6, 7, 10, 11, 12, 13, 14)
    assert world.engine.delete("t", match=["tag", "Glob", "k*"]).deleted == 3


def test_a_delete_by_tag_waits_for_cold_tags_beside_everything_else() -> None:
    """After a restart the tags of cold records have to be fetched; nothing is staged until then."""
    world = cold_world(block_cache_bytes=1 << 20)
    history(world)
    world.restart()
    late = Lateness()
    late.attach(world.engine)
    ticket = world.engine.submit_delete("t", before_seq=None, match="x")
    for _ in range(3):
        world.engine.maintain()
        world.engine.flush()
    assert not ticket.done
    assert world.engine.state("t").count == 14
    for _ in range(20):
        late.drain()
        world.engine.maintain()
        world.engine.poll()
    assert ticket.result.deleted == 7


def test_a_router_that_is_behind_forwards_what_is_cold_by_now() -> None:
    """It says what it waits for, makes headway with any cache, and copies everything in order."""
    world = cold_world()
    world.engine.put_topic("t", {"durability": "fsync"})
    for n in range(3):
        world.engine.append("t", [{"data": [n, m]} for m in range(5)])
        world.engine.checkpoint()
    world.engine.submit_router("r", {"source": "t", "dest": "u", "from_seq": 0})
    world.engine.sync()
    with pytest.raises(ColdMiss):
        world.engine.forward_now()
    while world.engine.maintain(1.0) or world.engine.router("r").place.cursor < 15:
        world.engine.sync()
    expected = [[n, m] for n in range(3) for m in range(5)]
    assert [record.value for record in world.engine.diff("u").records] == expected


def test_a_cold_segment_without_live_records_is_removed() -> None:
    """Reclaim drops whole segments in either tier."""
    world = cold_world()
    history(world)
    world.engine.delete("t", before_seq=9)
    world.engine.delete("u", before_seq=7)
    for _ in range(3):
        world.engine.checkpoint()
    assert len(objects(world)) == 2
    world.restart("kill")
    assert world.look("t").seqs == (9, 10, 11, 12, 13, 14)
    assert explained(world.engine, "t")[0] == (1, 8, "deleted")


@pytest.mark.parametrize("config", [{"cap_records": 5}, {"cap_bytes": 220}, {"ttl_ms": 1000}])
@pytest.mark.parametrize("how", ENDINGS)
def test_retention_reaches_cold_records(config: dict[str, int], how: Ending) -> None:
    """Caps and TTL evict and expire what is in the cold store, and floors do not regress."""
    world = cold_world()
    world.engine.put_topic("t", {"durability": "fsync"})
    for _ in range(4):
        world.engine.append("t", tagged(None, "x", None))
        world.clock.advance(400)
        world.engine.checkpoint()
    world.engine.delete("t", match="x", before_seq=9)
    world.engine.put_topic("t", {**config, "durability": "fsync"})
    before = world.engine.state("t")
    told = world.engine.diff("t").tombstone
    assert told is not None
    assert told.gap_from == 1
    world.restart(how)
    after = world.engine.state("t")
    assert after.earliest_seq == before.earliest_seq
    assert after.evict_floor == before.evict_floor
    assert after.count == before.count
    assert gap(world.engine.diff("t").tombstone) == gap(told)


@pytest.mark.parametrize("kept", range(1, 9))
def test_a_byte_cap_over_cold_records_keeps_what_fits(kept: int) -> None:
    """A cap evicts from the cold store exactly what it evicts from a hot block."""
    worlds = [World(), cold_world()]
    for world in worlds:
        world.engine.put_topic("t", {"durability": "fsync"})
        for n in range(10):
            world.engine.append("t", [{"data": "x" * (n * 7 % 30)}])
        world.engine.checkpoint()
        one = world.engine.state("t").bytes // 10
        world.engine.put_topic("t", {"durability": "fsync", "cap_bytes": one * kept})
    plain, cold = worlds
    assert plain.look("t") == cold.look("t")
    cold.restart("kill")
    assert plain.look("t") == cold.look("t")
    for world in worlds:
        world.fill("t", 1)
    assert plain.look("t") == cold.look("t")


def test_a_topic_deleted_with_its_cold_segments_is_gone() -> None:
    """Its objects are removed when nothing names them any more."""
    world = cold_world()
    history(world)
    world.engine.delete_topic("t")
    world.engine.delete_topic("u")
    for _ in range(3):
        world.engine.checkpoint()
    assert objects(world) == []


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server, server.environment():
        yield server


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_a_bucket_is_a_cold_tier_like_a_directory(s3: S3Server, how: Ending) -> None:
    """The same history through a real S3 endpoint."""
    plain = World()
    history(plain)
    world = cold_world(cold_dir=s3.url(f"bucket-{how}"))
    history(world)
    assert hot(world) == []
    for each in (plain, world):
        each.engine.delete("t", match="x", before_seq=9)
    expected = [plain.look("t"), plain.look("u")]
    assert [world.look("t"), world.look("u")] == expected
    world.restart(how)
    assert [world.look("t"), world.look("u")] == expected


@pytest.mark.slow
def test_an_outage_of_the_store_stops_nothing_but_cold_reads(tmp_path: Path, s3: S3Server) -> None:
    """Writes and hot reads go on; the same cold read works when the store is back."""
    world = cold_world(cold_dir=s3.url("outage"))
    world.clock = FakeClock()
    history(world)
    s3.stop()
    try:
        assert world.engine.append("t", [{"data": 1}]).first_seq == 15
        assert world.engine.diff_now("t", from_seq=12).count == 3
        with pytest.raises(Exception, match=r"(?s).+"):
            world.engine.diff("t")
    finally:
        assert s3.start()
    assert world.look("t").seqs == tuple(range(1, 16))


def faulty_world(fault: Fault | None) -> World:
    return cold_world(disk=FaultFs(FakeDisk(), fault))


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize(
    "operation",
    ["mkdir", "create", "pwrite", "sync", "rename", "sync_dir", "open", "pread", "unlink"],
)
def test_a_store_that_fails_at_any_call_costs_nothing_but_itself(
    operation: Operation, forever: bool
) -> None:
    """Writes, deletes, caps, checkpoints and restarts go on; when it is back, so is everything."""
    plain = World()
    history(plain)
    plain.engine.delete("t", before_seq=7)
    plain.engine.checkpoint()
    expected = [plain.look("t"), plain.look("u")]
    for nth in range(1, 40):
        fault = Fault(operation, path_contains=COLD, nth=nth, forever=forever)
        world = faulty_world(fault)
        history(world)
        world.engine.delete("t", before_seq=7)
        world.engine.checkpoint()
        world.clock.advance(61_000)
        world.restart()
        for _ in range(3):
            world.engine.maintain()
        assert not world.disk.exists("/data/POISONED")
        assert world.engine.append("v", [{"data": 1}]).first_seq == 1
        world.disk.fault = None  # type: ignore[attr-defined]
        assert [world.look("t"), world.look("u")] == expected
        world.engine.checkpoint()
        assert [world.look("t"), world.look("u")] == expected
        assert world.disk.listdir("/data/quarantine") == []
        world.engine.close()
        if not fault.fired:
            break
    assert nth > 1


def test_a_slow_store_holds_up_no_checkpoint() -> None:
    """A copy that takes long goes on beside the next checkpoints, and switches with one of them."""
    world = World(cold_dir=COLD, hot_bytes=0, threads=True, resident_bytes=0)
    segments = world.engine.core.segments
    let_go = threading.Event()
    put = segments.store.put  # type: ignore[union-attr]

    def slow(name: str, parts: Iterable[bytes]) -> None:
        assert let_go.wait(60)
        put(name, parts)

    segments.store.put = slow  # type: ignore[method-assign, union-attr]
    world.fill("t", 3)
    timer = threading.Timer(0.2, lambda: world.clock.advance(10_000))
    timer.start()
    world.engine.checkpoint()
    timer.join()
    assert len(hot(world)) == 1
    assert world.engine.append("t", [{"data": 1}]).first_seq == 4
    let_go.set()
    deadline = time.monotonic() + 30
    while hot(world) and time.monotonic() < deadline:
        world.clock.advance(60)
        world.engine.maintain()
    assert hot(world) == []
    assert world.look("t").seqs == (1, 2, 3, 4)
    world.engine.close()


def test_damaged_sizes_of_cold_records_are_found_and_made_anew() -> None:
    """They are in the object as well: nothing is lost, and a repair with the store mends them."""
    world = cold_world()
    history(world)
    world.engine.delete("t", match="x", before_seq=4)
    expected = [world.look("t"), world.look("u")]
    world.engine.close()
    name = min(n for n in world.disk.files() if n.endswith(".cold"))
    file = world.disk.open(name)
    at = file.size() - 3
    (byte,) = file.pread(1, at)
    file.pwrite(bytes([byte ^ 8]), at)
    file.sync()
    file.close()
    found = check(world.disk, PATH, store=open_store(COLD, world.disk), clock=world.clock)
    assert {item["problem"] for item in found.problems} == {"cold_table_damaged"}
    world.engine = world.open()
    assert [world.look("t"), world.look("u")] == expected
    world.engine.close()
    with pytest.raises(StorageError, match="cold-dir"):
        repair(world.disk, PATH, accept_loss=True, clock=world.clock)
    store = open_store(COLD, world.disk)
    done = repair(
        world.disk, PATH, accept_loss=True, store=store, clock=world.clock,
        settings=world.settings,
    )  # fmt: skip
    assert (done.lost, done.remaining, done.frames_lost) == ([], [], 0)
    world.engine = world.open()
    assert [world.look("t"), world.look("u")] == expected


def test_an_expired_cold_record_is_not_delivered() -> None:
    """A read that reaches into a cold block of many times looks at each of them."""
    world = cold_world()
    world.engine.put_topic("t", {"durability": "fsync", "ttl_ms": 1000})
    for n in range(6):
        world.engine.append("t", [{"data": n}])
        world.clock.advance(100)
    world.engine.checkpoint()
    world.engine.append("t", [{"data": 6}])
    world.clock.advance(750)
    assert hot(world) == []
    page = world.engine.diff("t")
    assert gap(page.tombstone) == (1, 4, "ttl")
    assert world.look("t").seqs == (5, 6, 7)
    assert world.engine.state("t").earliest_seq == 5


def test_cold_jobs_are_claimed_like_hot_ones() -> None:
    """A claim fetches what it hands out; one that may not wait leases nothing."""
    world = cold_world()
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq", "lease_ms": 100}
    world.engine.put_topic("q", queue)
    for _ in range(3):
        world.engine.append("q", [{"data": "x" * 50, "tag": "t"}] * 4)
        world.engine.checkpoint()
    with pytest.raises(ColdMiss):
        world.engine.submit_claims("q", [Claimant("a", 9)])
    assert world.engine.queue_state("q").in_flight == 0
    assert world.engine.claim("q", "a", 1).seqs == [1]
    got = [seq for _ in range(12) for seq in world.engine.claim("q", "a", 2).seqs]
    assert got == list(range(2, 13))
    world.engine.ack("q", "a", [3, 4])
    world.clock.advance(101)
    for _ in range(12):
        assert world.engine.claim("q", "b", 9).seqs == []
    assert world.engine.queue_state("q").dead_lettered == 10
    assert world.look("dlq").count == 10


@pytest.mark.parametrize("waits", [False, True], ids=["in slices", "at once"])
def test_a_write_in_more_cold_blocks_than_the_cache_holds_is_promoted(waits: bool) -> None:
    """A write that had a key is logged as one, so all of its blocks are needed together."""
    world = cold_world(block_bytes=1000)
    engine = world.engine
    engine.put_topic("t", {"durability": "fsync"})
    engine.append("t", [{"data": "x" * 900} for _ in range(4)], idempotency_key="k")
    engine.checkpoint()
    engine.put_topic("t", {"durability": "ephemeral"})
    ticket = engine.submit_put("t", {"durability": "fsync"}).ticket
    if waits:
        engine.core.preparing.finish_for(ticket)
    for _ in range(40):
        engine.maintain(0)
    engine.sync()
    assert ticket.done
    assert ticket.error is None
    engine = world.restart("kill")
    assert world.look("t").seqs == (1, 2, 3, 4)
    assert engine.append("t", [{"data": 0}], idempotency_key="k").deduped
