"""A bucket's life, cut before every mutating call of its disk, and recovered from there."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.kv.kv_world import KvWorld
from topics.testing import CrashPlan, FakeDisk

PLANS = {plan.name: plan for plan in CrashPlan.standard()}

Step = Callable[[KvWorld], object]


def steps() -> list[Step]:
    """Each kind of removal: versions, a marker, a range marker, with and without a checkpoint."""
    history: list[Step] = [
        lambda w: w.append(["a", "b", "a:1", "a:2"]),
        lambda w: w.put("a"),
        lambda w: w.forward(),
        lambda w: w.delete("b"),
        lambda w: w.forward(),
        lambda w: w.compact(0),
        lambda w: w.put("b"),
        lambda w: w.engine.checkpoint(),
        lambda w: w.delete_range("a:"),
        lambda w: w.delete("b"),
        lambda w: w.compact(0),
        lambda w: w.forward(),
        lambda w: w.unroute(),
        lambda w: w.put("a:1"),
        lambda w: w.route(0),
        lambda w: w.forward(),
        lambda w: w.compact(0),
        lambda w: w.engine.checkpoint(),
        lambda w: w.delete("a"),
        lambda w: w.compact(0),
    ]
    return history


def sweep(durability: str, names: tuple[str, ...]) -> int:
    run = KvWorld(durability, history=1, wal_shards=2)
    checks = 0
    for number, step in enumerate(steps()):
        images: list[tuple[str, FakeDisk]] = []

        def cut(
            _index: int, call: str, path: str, images: list[tuple[str, FakeDisk]] = images
        ) -> None:
            for name in names:
                image = run.world.disk.crashed(PLANS[name])
                images.append((f"{name} before {call} of {path}", image))
            images.append((f"kill before {call} of {path}", run.world.disk.clone().kill()))

        run.world.disk.on_mutation = cut
        before = dict(run.changes)
        step(run)
        run.world.disk.on_mutation = None
        cut(0, "the next step", "")
        for where, image in images:
            checks += 1
            found = run.recovered(image)
            try:
                assert durability != "fsync" or not set(before) - set(found.changes)
                found.check()
                found.check_past(random.Random(checks))
                found.check_replica()
            except AssertionError as error:
                raise AssertionError(f"step {number}, {where}") from error
            found.engine.close()
    return checks
