"""Histories from a seed: every kind of operation, restarts and jumps of the clock among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tests.crash.harness.log_harness import COLD, SETTINGS, Run
from topics.settings import Settings
from topics.testing import CrashPlan
from topics.testing.model import Operation

KINDS = (
    "append", "delete", "put", "drop", "checkpoint", "slice", "time", "submit", "restart",
    "rewrite", "tidy",
)  # fmt: skip


class Habits(NamedTuple):
    """How often each kind of step is taken, and what classes are asked for."""

    weights: tuple[int, ...]
    classes: tuple[str, ...]


ORDINARY = Habits(
    (40, 12, 6, 3, 8, 10, 8, 8, 5, 0, 0), ("fsync", "fsync", "disk", "disk", "memory", "ephemeral")
)
# Topics that change their class all the time, as histories from this seed on have them.
RESTLESS_FROM = 1_000_000
RESTLESS = Habits(
    (40, 12, 20, 2, 8, 10, 8, 8, 8, 0, 0),
    ("fsync", "disk", "memory", "ephemeral", "ephemeral", "ephemeral"),
)
# Much is deleted and leaves the disk, as histories from this seed on have it.
REWRITING_FROM = 5_000_000
REWRITING = Habits(
    (40, 25, 8, 3, 6, 10, 6, 8, 8, 8, 3), ("fsync", "fsync", "disk", "disk", "memory", "ephemeral")
)


def settings_of(seed: int) -> Settings:
    """Small bounds, some of them drawn: blocks, segments, shards, tiers."""
    draw = random.Random(f"settings {seed}")
    return msgspec.structs.replace(
        SETTINGS,
        wal_shards=draw.choice((1, 2, 3)),
        block_bytes=draw.choice((128, 512, 4096)),
        segment_bytes=draw.choice((512, 2048)),
        own_segment_bytes=draw.choice((256, 1024, 100_000)),
        seal_records=draw.choice((5, 20, 1_000_000)),
        resident_bytes=draw.choice((0, 2048)),
        cold_dir=draw.choice(("", "", COLD)),
        hot_bytes=draw.choice((0, 2000)),
    )


def config_of(draw: random.Random, settings: Settings, habits: Habits) -> dict[str, object]:
    config: dict[str, object] = {"durability": draw.choice(habits.classes)}
    if draw.random() < 0.3:
        config["cap_records"] = draw.choice((1, 4, 9))
    if draw.random() < 0.15:
        config["cap_bytes"] = draw.choice((200, 900))
    if draw.random() < 0.25:
        config["ttl_ms"] = draw.choice((500, 5000))
    if draw.random() < 0.15:
        config["discard"] = "reject"
    if settings.cold_dir:
        # Inside a block that is out of reach these are kept by share, which no model predicts.
        config.pop("cap_bytes", None)
        config.pop("ttl_ms", None)
    return config


def random_workflow(seed: int, length: int) -> Callable[[Run], None]:
    def workflow(run: Run) -> None:
        draw = random.Random(f"workload {seed}")
        habits = RESTLESS if seed >= RESTLESS_FROM else ORDINARY
        habits = REWRITING if seed >= REWRITING_FROM else habits
        for _ in range(length):
            step(run, draw, habits)

    return workflow


def step(run: Run, draw: random.Random, habits: Habits) -> None:
    """One thing that a user, an operator or fate may do."""
    kind = draw.choices(KINDS, habits.weights)[0]
    topic = draw.choice("abcd")
    if kind == "append":
        key = draw.choice((None, None, f"k{draw.randrange(6)}"))
        count = draw.choice((1, 1, 2, 3, 8))
        run.append(topic, count, key=key, size=draw.choice((0, 0, 0, 100, 900)))
    elif kind == "delete" and topic in run.model.topics:
        head = run.model.topics[topic].head
        before = draw.choice((None, draw.randrange(head + 2)))
        match = draw.choice(("x", "y:1", "y:*", "*")) if before is None else None
        run.delete(topic, before=before, match=match)
    elif kind == "put":
        run.put(topic, **config_of(draw, run.settings, habits))
    elif kind == "drop":
        run.drop(topic)
    elif kind == "checkpoint":
        run.checkpoint()
    elif kind == "slice":
        run.clock.advance(draw.choice((0, 60)))
        for _ in range(draw.randrange(1, 6)):
            run.engine.maintain(0)
    elif kind == "time":
        run.advance(draw.choice((10, 400, 3000, 12_000)))
    elif kind == "submit":
        run.submit(
            [
                Operation("append", draw.choice("abcd"), run.records(draw.choice((1, 2))), key)
                for key in draw.sample((None, None, "p1", "p2", "k1"), 3)
            ]
        )
    elif kind == "rewrite":
        run.rewrite(topic)
    elif kind == "tidy":
        run.tidy(draw.choice((1, 3)))
    elif kind == "restart":
        ending = draw.choice(("clean", "kill", "crash"))
        run.reopen(ending, draw.choice(CrashPlan.standard()))  # type: ignore[arg-type]
    if draw.random() < 0.2:
        run.verify([draw.randrange(12)])
