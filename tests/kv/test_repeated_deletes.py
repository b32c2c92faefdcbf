"""A delete that found nothing is remembered under its idempotency key like any other call."""

from __future__ import annotations

import pytest

from tests.support.engines import ENDINGS, Ending, World
from topics.kv.embedded import KeyValue, open_bucket


def bucket(world: World) -> KeyValue:
    return open_bucket(world.engine, "b")


def again(world: World) -> bool:
    return bucket(world).delete("k", idempotency_key="once")


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_it_finds_nothing_again_after_a_start(how: Ending, is_sealed: bool) -> None:
    """From the log, or from a snapshot."""
    world = World()
    world.engine.put_bucket("kv:b", {"durability": "fsync"})
    assert again(world) is False
    if is_sealed:
        world.engine.checkpoint()
    world.restart(how)
    bucket(world).put("k", 1)
    assert again(world) is False
    assert bucket(world).get("k") == 1
    assert bucket(world).delete("k", idempotency_key="another") is True


def test_it_is_forgotten_after_its_window() -> None:
    """As any key is: then it is a call like another."""
    world = World()
    world.engine.put_bucket("kv:b", {"idempotency_window_ms": 1000})
    assert again(world) is False
    bucket(world).put("k", 1)
    world.clock.advance(2000)
    assert again(world) is True


def test_it_is_remembered_by_a_bucket_that_becomes_durable() -> None:
    """An ephemeral one has it in memory alone; with its records its keys go into the log."""
    world = World()
    world.engine.put_bucket("kv:b", {"durability": "ephemeral"})
    bucket(world).put("first", 1)
    assert again(world) is False
    bucket(world).put("k", 1)
    assert again(world) is False
    world.engine.put_bucket("kv:b", {"durability": "fsync"})
    world.restart("kill")
    assert bucket(world).get("k") == 1
    assert again(world) is False
