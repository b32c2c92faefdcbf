"""When a marker is old enough, and which bucket comes first."""

from __future__ import annotations

from tests.support.engines import World
from topics.kv.embedded import buckets_of, open_bucket


def test_a_marker_goes_only_when_its_age_exceeds_the_grace_strictly() -> None:
    """At exactly its grace it stays; a millisecond later it goes."""
    world = World()
    world.engine.put_bucket("kv:b", {"grace_ms": 1000})
    kv = open_bucket(world.engine, "b")
    kv.put("k", 1)
    kv.delete("k")
    world.clock.advance(1000)
    kept = kv.compaction()
    assert (kept.removed_tombstones, kept.young) == (0, 1)
    world.clock.advance(1)
    assert kv.compaction().removed_tombstones == 1
    kv.put("k", 1)
    kv.delete("k")
    assert kv.compaction(0).young == 1
    world.clock.advance(1)
    assert kv.compaction(0).removed_tombstones == 1


def test_marker_heavy_buckets_come_first() -> None:
    """By how many they carry, whoever was there before."""
    world = World()
    counts = {"few": 2, "most": 9, "some": 5}
    for name, count in counts.items():
        world.engine.put_bucket(f"kv:{name}", {"grace_ms": 10})
        kv = open_bucket(world.engine, name)
        for number in range(count):
            kv.put(f"k{number}", 1)
            kv.delete(f"k{number}")
        assert kv.pending_tombstones == count
    world.clock.advance(1000)
    buckets, order = buckets_of(world.engine), list[str]()
    for _ in range(200):
        buckets.compactor.step()
        world.engine.maintain()
        world.engine.poll()
        for name in counts:
            if name not in order and not buckets.get(name).index.markers:
                order.append(name)
    assert order == ["most", "some", "few"]
