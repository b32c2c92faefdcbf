"""Operations that still wait for their sync when something else happens to their topic."""

from __future__ import annotations

import pytest

from tests.support.engines import World
from topics.engine.checkpoint import take
from topics.engine.queue_values import Claimant
from topics.engine.syncing import Syncer
from topics.engine.write import request_of
from topics.storage.wal import Shard


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
    world.engine.core.committer._syncer = Lazy()


def sync_again(world: World) -> None:
    world.engine.core.committer._syncer = Syncer()
    world.engine.sync()


def test_a_config_acknowledged_during_a_checkpoint_survives_a_kill(world: World) -> None:
    """The snapshot has the old config with its old version, so the new one is replayed."""
    taking = take(world.engine.core)
    next(taking)
    delay_syncs(world)
    _, _, ticket = world.engine.submit_put("t", {"durability": "fsync", "cap_records": 2})
    world.engine.flush()
    assert not ticket.done
    for _ in taking:
        pass
    sync_again(world)
    assert ticket.error is None
    world.restart("kill")
    assert world.engine.state("t").config.cap_records == 2


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
    _, _, put = world.engine.submit_put("t", {"durability": "fsync", "cap_records": 1, "ttl_ms": 5})
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
    for _ in taking:
        pass
    assert early.done
    assert not late.done
    sync_again(world)
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
