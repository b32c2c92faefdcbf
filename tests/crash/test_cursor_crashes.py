"""Crash before every mutating call of a history of cursors and holds, and recover.

Promises: a cursor is as it was before the call or as the call left it, never another; what a hold
keeps in an fsync topic is there, what it let go of stays gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.support.engines import PATH, Look, World
from topics.engine.engine import Engine
from topics.testing import CrashPlan, FakeClock, FakeDisk
from topics.types import Hold

NAMES = ("lose-all", "keep-all", "prefix", "odd-sectors", "dirs-lost-data-kept", "last-write-only")
PLANS = [plan for plan in CrashPlan.standard() if plan.name in NAMES]

Places = list[tuple[str, int, int, int, Hold | None]]
Step = Callable[[Engine], object]


def places(engine: Engine, topic: str) -> Places:
    if topic not in engine.list_topics():
        return []
    return [(c.cursor, c.seq, c.epoch, c.updated_ts, c.hold) for c in engine.cursors(topic)]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What must not change by itself: all of the fsync topic, the cursors of the other."""

    look: Look
    cursors: Places
    others: Places

    @classmethod
    def of(cls, engine: Engine) -> Seen:
        return cls(Look.at(engine, "t"), places(engine, "t"), places(engine, "u"))


def steps() -> list[Step]:
    history: list[Step] = [
        lambda e: e.append("t", [{"data": n} for n in range(3)]),
        lambda e: e.append("u", [{"data": n} for n in range(3)]),
        lambda e: e.put_cursor("t", "a", seq=0, hold=Hold(max_bytes=400)),
        lambda e: e.put_cursor("u", "a", seq=2),
        lambda e: e.append("t", [{"data": "x" * 20} for _ in range(4)]),
        lambda e: e.put_cursor("t", "b", seq=4, hold=Hold(max_age_ms=1000)),
        lambda e: e.checkpoint(),
        lambda e: e.put_cursor("t", "a", seq=5),
        lambda e: e.append("t", [{"data": "y" * 30} for _ in range(5)]),
        lambda e: e.put_cursor("u", "b", seq=1),
        lambda e: e.delete_cursor("u", "a"),
        lambda e: e.state("t"),
        lambda e: e.put_cursor("t", "b", seq=6, hold=None),
        lambda e: e.delete("t", before_seq=8),
        lambda e: e.checkpoint(),
        lambda e: e.put_cursor("t", "a", seq=1, reset=True),
        lambda e: e.delete_cursor("t", "a"),
        lambda e: e.append("t", [{"data": 1}]),
        lambda e: e.checkpoint(),
        lambda e: e.delete_topic("u"),
        lambda e: e.append("u", [{"data": 1}]),
    ]
    return history


def recovered(image: FakeDisk, world: World) -> Engine:
    clock = FakeClock(world.clock.wall_ms())
    return Engine.open(PATH, clock=clock, fs=image, settings=world.settings)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["ephemeral", "memory", "disk"])
@pytest.mark.parametrize("passing_ms", [0, 300])
def test_a_crash_anywhere_leaves_each_cursor_before_or_after(other: str, passing_ms: int) -> None:
    world = World(block_bytes=256)
    engine = world.engine
    engine.put_topic("t", {"durability": "fsync", "cap_records": 2, "ttl_ms": 700})
    engine.put_topic("u", {"durability": other})
    checks = 0
    for number, step in enumerate(steps()):
        before = Seen.of(engine)
        images: list[tuple[str, FakeDisk]] = []

        def cut(
            _index: int, call: str, path: str, images: list[tuple[str, FakeDisk]] = images
        ) -> None:
            for plan in PLANS:
                images.append((f"{plan.name} before {call} of {path}", world.disk.crashed(plan)))
            images.append((f"kill before {call} of {path}", world.disk.clone().kill()))

        world.disk.on_mutation = cut
        step(engine)
        world.disk.on_mutation = None
        cut(0, "the next step", "")
        after = Seen.of(engine)
        for where, image in images:
            checks += 1
            found = recovered(image, world)
            seen = Seen.of(found)
            assert seen.look in (before.look, after.look), (number, where)
            assert seen.cursors in (before.cursors, after.cursors), (number, where)
            assert seen.others in (before.others, after.others), (number, where)
            found.close()
        world.clock.advance(passing_ms)
    assert checks > 500
