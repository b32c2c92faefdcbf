"""Operations that still wait for their sync when something else happens to their topic."""

from __future__ import annotations

import pytest

from tests.support.engines import World
from topics.engine.checkpoint import take
from topics.engine.commit import Syncer
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
