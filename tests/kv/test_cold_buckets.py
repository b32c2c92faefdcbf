"""A bucket whose records went to the cold store: its keys are here, whatever becomes of the store.

Promises: a start reads nothing from the cold store for a bucket, whether that can be reached or
not; its keys can be listed, and those whose values are here can be read and written; only a read of
a value that is in the store needs it.
"""

from __future__ import annotations

import pytest

from tests.support.engines import World
from topics.engine.engine import Engine
from topics.errors import StoreUnreachable
from topics.kv.embedded import KeyValue, open_bucket
from topics.testing.faultfs import Fault, FaultFs

COLD = "/cold"


def cold_bucket(world: World) -> KeyValue:
    """Forty keys whose values went to the store, among them what was changed and deleted since."""
    world.engine.put_bucket("kv:b", {"history": 2, "durability": "fsync"})
    kv = open_bucket(world.engine, "b")
    for number in range(40):
        kv.put(f"k{number:02d}", "x" * 40)
    kv.put("k00", "newer")
    kv.delete("k01")
    kv.delete_range("k1")
    world.engine.checkpoint()
    world.engine.checkpoint()
    assert not [name for name in world.disk.files() if name.startswith("/data/seg/") and
                name.endswith(".seg")]  # fmt: skip
    kv.put("hot", 1)
    kv.put("k02", 2)
    kv.delete("k03")
    return kv


def reopened(world: World, fs: FaultFs) -> Engine:
    world.engine.close()
    return Engine.open("/data", clock=world.clock, fs=fs, settings=world.settings)


@pytest.mark.parametrize("is_away", [True, False])
def test_a_start_reads_nothing_of_a_bucket_from_the_cold_store(is_away: bool) -> None:
    """Keys, counts, history and what is hot are as they were; a value that is cold has to wait."""
    world = World(cold_dir=COLD, hot_bytes=0, resident_bytes=0, block_cache_bytes=0,
                  block_bytes=512)  # fmt: skip
    kv = cold_bucket(world)
    keys, size, markers = list(kv.keys()), kv.size, kv.pending_tombstones
    assert (size, markers) == (29, 3)
    # One that never strikes counts what would have been asked for.
    asked = Fault("open", nth=1 if is_away else 1_000_000, forever=True, path_contains=COLD)
    engine = reopened(world, FaultFs(world.disk, asked))
    again = open_bucket(engine, "b")
    assert list(again.keys()) == keys
    assert (again.size, again.pending_tombstones) == (size, markers)
    assert [again.get("hot"), again.get("k02"), again.get("k03"), again.get("k11")] == [
        1, 2, None, None,
    ]  # fmt: skip
    assert again.put("k05", "new") > 0
    assert again.delete("k06") is True
    assert asked.matched == 0
    if is_away:
        with pytest.raises(StoreUnreachable):
            again.get("k07")
    else:
        assert again.get("k07") == "x" * 40
    assert asked.matched == 1
    engine.close()
