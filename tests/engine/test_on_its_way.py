"""Operations that still wait for their sync when something else happens to their topic."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.support.engines import PATH, Ending, World
from tests.support.late import LateSyncer, hold_syncs
from topics.engine.commit.syncing import Syncer
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.ops.cursors import Given
from topics.engine.state.queue_values import Claimant
from topics.engine.state.write_request import request_of
from topics.engine.upkeep.checkpoint import take
from topics.errors import DiskFull
from topics.storage.wal import Shard
from topics.testing import Fault, FaultFs
from topics.testing.lateness import Lateness
from topics.types import Appended


class Lazy(Syncer):
    """Leaves every sync for later."""

    def kick(self, shard: Shard) -> None:
        pass


@pytest.fixture
def world() -> World:
    world = World()
    world.engine.put_topic("t", {"durability": "fsync", "ttl_ms": 60_000})
    world.fill("t", 3)
    return world


def delay_syncs(world: World) -> None:
    world.engine.core.log.syncer = Lazy()


def sync_again(world: World) -> None:
    world.engine.core.log.syncer = Syncer()
    world.engine.sync()


def sync_when_asked(world: World, taking: Iterator[None]) -> None:
    """Takes a checkpoint to its end; what is on its way is durable only when that waits for it."""
    for _ in taking:
        if world.engine.core.background.is_waiting:
            sync_again(world)


def test_a_config_acknowledged_during_a_checkpoint_survives_a_kill(world: World) -> None:
    """The snapshot has the old config with its old version, so the new one is replayed."""
    taking = take(world.engine.core)
    next(taking)
    delay_syncs(world)
    ticket = world.engine.submit_put("t", {"durability": "fsync", "cap_records": 2}).ticket
    world.engine.flush()
    assert not ticket.done
    sync_when_asked(world, taking)
    assert ticket.done
    assert ticket.error is None
    world.restart("kill")
    assert world.engine.state("t").config.cap_records == 2


def waiting_writes(world: World, syncer: LateSyncer, count: int) -> list[Ticket[Appended]]:
    """Writes that are durable and not applied, of which one call applies two."""
    syncer.applied_max = 2
    tickets = []
    for number in range(count):
        tickets.append(world.engine.submit_append("t", request_of([{"data": number}])))
        world.engine.flush()
    syncer.release()
    assert not any(ticket.done for ticket in tickets)
    return tickets


def test_what_a_slow_sync_has_gathered_is_applied_in_order_a_few_at_a_time(world: World) -> None:
    """Nobody else waits for all of it, and who waits for all of it gets it."""
    syncer = hold_syncs(world.engine)
    tickets = waiting_writes(world, syncer, 7)
    ended = []
    while not all(ticket.done for ticket in tickets):
        world.engine.poll()
        ended.append(sum(ticket.done for ticket in tickets))
        assert all(ticket.done for ticket in tickets[: ended[-1]])
        assert world.engine.state("t").head_seq == 3 + ended[-1]
    assert ended == [2, 4, 6, 7]
    tickets = waiting_writes(world, syncer, 7)
    world.engine.sync()
    assert [ticket.result.first_seq for ticket in tickets] == list(range(11, 18))


def test_a_checkpoint_captures_nothing_before_all_in_front_of_it_is_applied(world: World) -> None:
    """A start reads the log from there on: what was not applied would be in nothing it reads."""
    syncer = hold_syncs(world.engine)
    tickets = waiting_writes(world, syncer, 7)
    for _ in take(world.engine.core):
        syncer.release()
    world.engine.sync()
    assert all(ticket.error is None for ticket in tickets)
    world.restart("kill")
    assert world.engine.state("t").head_seq == 10
    page = world.engine.diff("t", from_seq=3)
    assert page.tombstone is None
    assert [bytes(record.data) for record in page.records] == [b"%d" % n for n in range(7)]


def test_a_write_on_its_way_does_not_count_once_its_topic_is_dropped(world: World) -> None:
    """The bytes of the instance are those of the topics there are."""
    delay_syncs(world)
    write = world.engine.submit_append("t", request_of([{"data": 1}]))
    world.engine.flush()
    _, drop = world.engine.submit_drop("t", if_empty=False)
    sync_again(world)
    assert write.done
    assert drop.done
    assert world.engine.core.live_bytes == 0


def test_a_config_on_its_way_does_no_harm_once_its_topic_is_dropped(world: World) -> None:
    """Every ticket ends, and the topic stays gone."""
    delay_syncs(world)
    _, _, put, _ = world.engine.submit_put(
        "t", {"durability": "fsync", "cap_records": 1, "ttl_ms": 5}
    )
    world.engine.flush()
    _, drop = world.engine.submit_drop("t", if_empty=False)
    sync_again(world)
    assert put.done
    assert drop.done
    world.restart("kill")
    assert world.engine.list_topics() == []


def a_queue(world: World) -> None:
    config = {"type": "queue", "durability": "fsync", "leases_durable": True, "lease_ms": 1000}
    world.engine.put_topic("q", config)
    world.fill("q", 4)
    world.engine.claim("q", "a", 2)
    delay_syncs(world)


def test_a_job_whose_ack_is_on_its_way_is_handed_to_nobody(world: World) -> None:
    """Neither when its lease runs out meanwhile nor to who asks to keep or give it back."""
    a_queue(world)
    engine = world.engine
    done = engine.submit_ack("q", "a", [1])
    engine.flush()
    world.clock.advance(1001)
    assert not done.done
    assert engine.submit_ack("q", "a", [1]).result.skipped == [1]
    assert engine.submit_nack("q", "a", [1]).result.skipped == [1]
    claim = engine.submit_claims("q", [Claimant("b", 9)])
    sync_again(world)
    assert done.result.acked == 1
    assert claim.result[0].seqs == [2, 3, 4]
    world.restart("kill")
    assert world.look("q").seqs == (2, 3, 4)


def test_leases_on_their_way_do_no_harm_once_their_queue_is_dropped(world: World) -> None:
    """Every ticket ends, and the queue stays gone."""
    a_queue(world)
    engine = world.engine
    tickets = [
        engine.submit_ack("q", "a", [1]),
        engine.submit_nack("q", "a", [2]),
        engine.submit_claims("q", [Claimant("b", 9)]),
        engine.submit_delete("q", before_seq=4, match=None),
    ]
    engine.flush()
    _, drop = engine.submit_drop("q", if_empty=False)
    sync_again(world)
    assert all(ticket.done for ticket in [*tickets, drop])
    world.restart("kill")
    assert engine.list_topics() == ["t"]


def test_a_lease_on_its_way_during_a_checkpoint_is_kept(world: World) -> None:
    """Whether the snapshot has it already or not, it is there once, with one delivery."""
    a_queue(world)
    engine = world.engine
    early = engine.submit_claims("q", [Claimant("b")])
    sync_again(world)
    taking = take(engine.core)
    next(taking)
    delay_syncs(world)
    late = engine.submit_claims("q", [Claimant("c")])
    engine.flush()
    assert early.done
    assert not late.done
    sync_when_asked(world, taking)
    assert late.done
    world.restart("crash")
    queue = world.engine.core.by_name["q"].queue
    assert queue is not None
    assert {seq: lease[0] for seq, lease in queue.leases.items()} == {
        1: "a",
        2: "a",
        3: "b",
        4: "c",
    }
    assert queue.tries == {}


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_claim_behind_a_config_on_its_way_is_as_durable_as_that_wants(
    world: World, how: Ending
) -> None:
    """Its lease lasts as long as its answer says, and nobody else gets the job meanwhile."""
    config = {"type": "queue", "durability": "fsync", "lease_ms": 1000}
    engine = world.engine
    engine.put_topic("q", config)
    world.fill("q", 2)
    delay_syncs(world)
    engine.submit_put("q", config | {"leases_durable": True, "lease_ms": 9000})
    claim = engine.submit_claims("q", [Claimant("a")])
    engine.flush()
    assert not claim.done
    sync_again(world)
    [claimed] = claim.result
    engine = world.restart(how)
    left_ms = claimed.deadline - world.clock.wall_ms()
    world.clock.advance(left_ms)
    assert engine.claim("q", "b", 9).seqs == [2]
    world.clock.advance(1)
    assert engine.claim("q", "b", 9).seqs == claimed.seqs == [1]


def deleting(engine: Engine, what: str) -> list[Ticket]:
    """Deletes a router and, before that, what takes it along: the ticket of the last one last."""
    tickets = []
    if what in ("topic", "source", "dest"):
        name = {"topic": "t", "source": "s", "dest": "d"}[what]
        tickets.append(engine.submit_drop(name, if_empty=False)[1])
    if what == "topic":
        tickets.append(engine.submit_drop("t", if_empty=False)[1])
    elif what == "router":
        tickets.extend(engine.submit_unroute("r")[1] for _ in range(2))
    else:
        tickets.append(engine.submit_unroute("r")[1])
    return tickets


@pytest.mark.parametrize("what", ["topic", "router", "source", "dest"])
def test_who_asks_for_what_is_on_its_way_out_waits_for_its_end(world: World, what: str) -> None:
    """That it is not there is said when no crash brings it back: the second time as the first."""
    engine = world.engine
    engine.put_router("r", {"source": "s", "dest": "d"})
    syncer = hold_syncs(engine)
    tickets = deleting(engine, what)
    engine.flush()
    assert [ticket.done for ticket in tickets] == [False, False]
    syncer.release()
    engine.poll()
    assert [ticket.error for ticket in tickets if ticket.done] == [None, None]
    assert all(ticket.done for ticket in deleting(engine, what))
    engine = world.restart("crash")
    there = engine.core.by_name if what == "topic" else engine.core.routers.by_name
    assert ("t" if what == "topic" else "r") not in there


def test_a_router_whose_end_was_refused_can_be_deleted_again(world: World) -> None:
    """A full disk keeps it; the second one is told so as well."""
    world.end("clean")
    fs = FaultFs(world.disk)
    with Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings) as engine:
        engine.put_router("r", {"source": "s", "dest": "d"})
        fs.fault = Fault("pwrite", errno=errno.ENOSPC, path_contains=".wal")
        first = engine.submit_unroute("r")[1]
        was_there, second = engine.submit_unroute("r")
        assert isinstance(first.error, DiskFull)
        assert was_there
        engine.sync()
        assert second.done
        assert second.error is None
        assert engine.core.routers.by_name == {}


@pytest.mark.parametrize("between", [0, 1])
def test_a_name_that_was_given_up_twice_is_free(between: int) -> None:
    """Whichever of the two ends reached the disk, and in whichever shards they stand."""
    world = World(wal_shards=2)
    engine = world.engine
    for number in range(between):
        engine.put_topic(f"x{number}", {"durability": "fsync"})
    engine.put_topic("a", {"durability": "fsync"})
    syncer = hold_syncs(engine)
    old = engine.core.by_name["a"]
    engine.submit_drop("a", if_empty=False)
    _, _, made, _ = engine.submit_put("a", {"durability": "fsync"})
    engine.flush()
    _, gone = engine.submit_drop("a", if_empty=False)
    syncer.release(1 - engine.core.log.shard_of(old).index)
    engine.poll()
    assert made.done
    assert gone.done
    for _ in range(2):
        engine = world.restart("crash")
        assert "a" not in engine.list_topics()


def test_what_was_seen_expired_stays_so_when_the_ttl_is_on_its_way_out(world: World) -> None:
    """A crash may leave the new config and nothing of what the old one took meanwhile."""
    engine = world.engine
    syncer = hold_syncs(engine)
    ticket = engine.submit_put("t", {"durability": "fsync"}).ticket
    engine.flush()
    syncer.release()
    world.clock.advance(60_001)
    seen = world.look("t")
    assert not ticket.done
    world.restart("crash")
    assert world.look("t") == seen


def test_a_config_that_was_refused_leaves_the_ttl_as_it_was(world: World) -> None:
    """Records expire as before, behind a full disk too."""
    world.end("clean")
    fs = FaultFs(world.disk)
    with Engine.open(PATH, clock=world.clock, fs=fs, settings=world.settings) as engine:
        fs.fault = Fault("pwrite", errno=errno.ENOSPC, path_contains=".wal")
        with pytest.raises(DiskFull):
            engine.put_topic("t", {"durability": "fsync"})
        world.clock.advance(60_001)
        assert engine.state("t").count == 0


def test_a_write_waits_behind_those_that_wait_for_a_sync_though_a_delete_is_under_way() -> None:
    """Of an ephemeral topic, which is gated only by its cursors."""
    world = World(wal_shards=1)
    engine = world.engine
    engine.put_topic("t", {"durability": "ephemeral"})
    for _ in range(2):
        engine.append("t", [{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1000)])
    late = Lateness()
    late.applied_max = 300
    late.attach(engine)
    engine.submit_put_cursor("t", "one", Given(seq=10))
    engine.flush()
    late.take("begin sync", 0, None)
    delete = engine.submit_delete("t", before_seq=None, match="odd")
    engine.submit_put_cursor("t", "two", Given(seq=20))
    first = engine.submit_append("t", request_of([{"data": "first"}]))
    late.take("end sync", 0, None)
    engine.poll()
    assert engine.core.committer.held
    second = engine.submit_append("t", request_of([{"data": "second"}]))
    while not second.done:
        engine.maintain(0)
        late.drain()
        engine.poll()
    assert delete.result.deleted == 1000
    assert (first.result.first_seq, second.result.first_seq) == (2001, 2002)
