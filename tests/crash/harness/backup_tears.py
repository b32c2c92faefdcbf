"""Backups of directories that a crash of the machine has torn, with routers over two shards.

What stands behind the marks then is readable and proves nothing: a map may be without its source,
and groups may be without those in front of them. The directory starts all the same; so must every
one that is restored from a backup of it, with the same in it.
"""

from __future__ import annotations

import random

from tests.crash.harness.log_harness import deterministic
from tests.support.engines import World, explained
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.engine.offline.restore import restore
from topics.errors import InvalidRequest
from topics.settings import KIB
from topics.storage.tiers import DirectoryStore
from topics.testing import CrashPlan
from topics.testing.modelcheck import require

DEST = "/backups"
TOPICS = "abcd"
ROUTES = ("ab", "ac", "bd")
# Two of them fill a log file.
RECORD_BYTES = 24 * KIB
WRITES = 8


def torn(seed: int, draw: random.Random) -> World:
    """A directory that has started after a crash, of which nobody knows what it took."""
    world = World(wal_shards=2, sync_interval_ms=10_000)
    engine = world.engine
    for name in TOPICS:
        engine.put_topic(name, {"durability": "disk"})
    for source, dest in ROUTES:
        engine.put_router(source + dest, {"source": source, "dest": dest})
    write(engine, 0)
    engine.sync()
    for _ in range(seed % 3):
        engine.checkpoint()
    for n in range(WRITES):
        world.clock.advance(50)
        write(engine, [n, "x" * RECORD_BYTES])
        if draw.random() < 0.1:
            draw.choice(engine.core.log.shards).sync()
    world.end("crash", CrashPlan.random(seed))
    world.engine = world.open()
    return world


def write(engine: Engine, data: object) -> None:
    engine.append("a", [{"data": data}])
    engine.forward()


def data_of(engine: Engine, topic: str, upto: int = 1 << 62) -> list[tuple[int, object]]:
    records = engine.diff(topic, from_seq=0, limit=1000).records
    return [(record.seq, record.value) for record in records if record.seq <= upto]


def restored(world: World, path: str, seq: int | None = None) -> Engine:
    """The directory of the end of the newest backup, or of a head of the first source."""
    store = DirectoryStore(world.disk, DEST)
    manifest, moment = backups.choose(store, **({} if seq is None else {"topic": "a", "seq": seq}))
    restore(world.disk, store, path, manifest, moment=moment, clock=world.clock)
    return Engine.open(path, fs=world.disk, clock=world.clock, settings=world.settings)


def run_tear(seed: int) -> int:
    """One directory and two backups of it; how many restores were like it."""
    draw = random.Random(f"tear {seed}")
    done = 0
    with deterministic(seed):
        world = torn(seed, draw)
        survived = {seq for seq, _ in data_of(world.engine, "a")}
        for turn in range(2):
            world.clock.advance(1)
            world.engine.backup(DEST)
            require(backups.verify(DirectoryStore(world.disk, DEST)).ok, "a backup is damaged")
            engine = restored(world, f"/end{turn}")
            for name in TOPICS:
                require(data_of(engine, name) == data_of(world.engine, name), f"{name} differs")
                found, known = explained(engine, name), explained(world.engine, name)
                require(found == known, f"{name} is {found}, was {known}")
            engine.close()
            # The first was there before any snapshot.
            seq = draw.randrange(2, WRITES + 2)
            try:
                engine = restored(world, f"/head{turn}", seq)
            except InvalidRequest:
                require(seq not in survived, f"no head {seq}")
            else:
                require(seq in survived, f"a head {seq} that nobody has seen")
                require(data_of(engine, "a") == data_of(world.engine, "a", seq), f"not as at {seq}")
                engine.close()
                done += 1
            done += 1
            write(world.engine, "later")
            world.engine.sync()
    return done
