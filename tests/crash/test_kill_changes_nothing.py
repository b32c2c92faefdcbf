"""What was written is with the kernel, so a killed process leaves every topic as it was: every seq
with the same fate, every floor where it stood. Whatever maintenance was in the middle of."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from tests.support.engines import Look, World
from tests.support.tiers import quick_first
from topics.errors import TopicFull, TopicsError
from topics.types import Hold

TOPICS = {
    "capped": {"durability": "fsync", "cap_records": 6},
    "small": {"durability": "disk", "cap_bytes": 500},
    "held": {"durability": "disk", "cap_records": 5},
    "refusing": {"durability": "fsync", "cap_records": 6, "discard": "reject"},
    "passing": {"durability": "disk", "ttl_ms": 400, "cap_records": 9},
}
TAGS = "abcdef"
HOLD = Hold(max_bytes=1500)


def world(seed: int) -> World:
    tiers = {"cold_dir": "/cold", "hot_bytes": 0} if seed % 3 else {}
    made = World(
        wal_shards=1 + seed % 2, seal_records=8, own_segment_bytes=600, segment_bytes=1200,
        block_bytes=400, resident_bytes=0, block_cache_bytes=300, **tiers,
    )  # fmt: skip
    made.clock.look_ms = 1
    for name, config in TOPICS.items():
        made.engine.put_topic(name, config)
    made.engine.put_cursor("held", "reader", seq=0, hold=HOLD)
    return made


def act(made: World, rng: random.Random) -> None:
    engine = made.engine
    name = rng.choice(list(TOPICS))
    choice = rng.random()
    if choice < 0.55:
        records = [
            {"data": "x" * rng.choice((1, 30, 90)), "tag": rng.choice(TAGS)}
            for _ in range(rng.randint(1, 5))
        ]
        with contextlib.suppress(TopicFull):
            engine.append(name, records)
    elif choice < 0.68:
        engine.delete(name, match=rng.choice(TAGS))
    elif choice < 0.73:
        state = engine.state(name)
        engine.delete(name, before_seq=state.earliest_seq + rng.randint(0, 3))
    elif choice < 0.78:
        seq = engine.state("held").head_seq - rng.randint(0, 6)
        with contextlib.suppress(TopicsError):
            engine.put_cursor("held", "reader", seq=max(seq, 0), hold=HOLD)
    elif choice < 0.79:
        engine.checkpoint()
    else:
        made.clock.advance(rng.choice((10, 60, 200)))
        for _ in range(rng.randint(1, 4)):
            engine.maintain(0.0)


def looks(made: World) -> dict[str, Look]:
    for name in TOPICS:
        # A time inside a block of the cold store is known once it was read.
        made.look(name)
    return {name: made.look(name) for name in TOPICS}


def run(seed: int, kills: int) -> None:
    rng = random.Random(seed)
    made = world(seed)
    for _ in range(kills):
        for _ in range(rng.randint(3, 40)):
            act(made, rng)
        before = looks(made)
        made.restart("kill")
        after = looks(made)
        assert after == before, seed


@pytest.mark.parametrize("seed", quick_first(range(60), 5))
def test_a_killed_process_leaves_every_topic_as_it_was(
    seed: int, tally: Callable[..., None]
) -> None:
    run(seed, kills=8)
    tally(kill_histories=1)
