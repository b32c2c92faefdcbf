"""Random histories of a queue, with restarts of every kind."""

from __future__ import annotations

import random

import msgspec

from tests.crash.harness.log_harness import SETTINGS
from tests.crash.harness.queue_harness import NODES, QueueRun
from topics.engine.state.queue_values import Claimant
from topics.testing import CrashPlan
from topics.testing.modelcheck import Ending


def random_history(seed: int, length: int) -> None:
    """A queue through anything that can happen to it, with restarts of every kind."""
    drawn = random.Random(seed)
    durability = drawn.choice(("fsync", "fsync", "disk"))
    endings: tuple[Ending, ...] = ("clean", "kill", "crash")
    if durability == "disk":
        # What a machine crash takes of it is told elsewhere; a kill takes nothing.
        endings = ("clean", "kill")
    settings = msgspec.structs.replace(SETTINGS, wal_shards=1 + seed % 2, seal_records=40)
    run = QueueRun(
        seed=seed, settings=settings, durability=durability, is_durable=drawn.random() < 0.6,
        max_deliveries=drawn.choice((0, 1, 2, 3)), lease_ms=drawn.choice((100, 400, 900)),
        dest=drawn.choice(("fsync", "disk")),
    )  # fmt: skip
    for _ in range(length):
        _step(run, drawn, endings)
    run.verify()
    run.drain()


def _step(run: QueueRun, drawn: random.Random, endings: tuple[Ending, ...]) -> None:
    kind = drawn.choices(
        ("produce", "claim", "ack", "nack", "extend", "release", "advance", "delete", "checkpoint",
         "restart", "configure", "jump"),
        (18, 22, 14, 10, 6, 4, 16, 2, 3, 4, 2, 4),
    )[0]  # fmt: skip
    some = drawn.sample(run.tokens, min(len(run.tokens), drawn.randint(1, 6)))
    # Somebody may claim to be another.
    named = [(n if drawn.random() < 0.9 else drawn.choice(NODES), s, t) for n, s, t in some]
    fenced = drawn.random() < 0.5
    if kind == "produce":
        run.produce(drawn.randint(1, 6))
    elif kind == "claim":
        run.claim(
            [
                Claimant(drawn.choice(NODES), drawn.randint(1, 5), drawn.choice((None, 200, 700)))
                for _ in range(drawn.choice((1, 1, 3)))
            ]
        )
    elif kind == "ack":
        run.ack(named, fenced=fenced)
    elif kind == "nack":
        run.nack(named, drawn.choice((0, 0, 50, 600)), fenced=fenced)
    elif kind == "extend":
        run.extend(named, drawn.choice((100, 500, 2000)), fenced=fenced)
    elif kind == "release":
        run.release(list(dict.fromkeys(some)))
    elif kind == "advance":
        run.clock.advance(drawn.choice((1, 20, 100, 400, 1000)))
        run.engine.maintain(drawn.choice((0, 0.01)))
    elif kind == "delete":
        head = run.engine.state("q").head_seq
        what = drawn.choice(({"match": "t1"}, {"before_seq": max(head - 12, 0)}))
        run.delete(**what)
    elif kind == "checkpoint":
        run.engine.checkpoint()
    elif kind == "restart":
        run.restart(drawn.choice(endings), drawn.choice(CrashPlan.standard()))
    elif kind == "configure":
        run.model.is_durable = drawn.random() < 0.6
        run.model.max_deliveries = drawn.choice((0, 2, 4))
        run.configure()
    else:
        hour_ms = drawn.choice((-3_600_000, 3_600_000))
        run.clock.jump_wall(hour_ms)
        run.verify()
        run.clock.jump_wall(-hour_ms)
