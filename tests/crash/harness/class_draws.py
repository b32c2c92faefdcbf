"""What the histories of changes of class are like: sizes, classes, configs, records, all drawn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from topics.engine.commit import core
from topics.engine.ops import deletes, deleting, promotion
from topics.engine.state import tags
from topics.settings import Settings
from topics.testing.modelcheck import Ending
from topics.types import BUCKET_TOPIC, Hold

BUCKET = BUCKET_TOPIC + "b"
KEYS = ("x", "y", "z")
TAGS = ("x", "y:1", "y:2")
HOLDS = (None, Hold(max_bytes=400), Hold(max_age_ms=1000), Hold(max_bytes=10**6))
MATCHES: tuple[Any, ...] = ("x", "y:1", ["tag", "Glob", "y:*"])
# A key that has left a short window is forgotten in memory, and known again to a start under a
# longer one: no topic has its window changed.
WINDOWS_MS = (3000, 120_000)
CLASSES = (
    ("ephemeral", "fsync"), ("ephemeral", "fsync"), ("ephemeral", "disk"),
    ("fsync", "disk", "memory", "ephemeral"), ("fsync", "disk"), ("memory", "fsync"),
)  # fmt: skip
# Steps, each with how often it comes.
KINDS = {
    "append": 24, "put": 5, "patch": 5, "change_class": 12, "drop": 1.5, "delete": 6, "stage": 7,
    "commit": 6, "drop_stages": 1, "put_cursor": 8, "drop_cursor": 1, "claim": 6, "end_lease": 6,
    "route": 2, "unroute": 1, "write_key": 6, "compact": 2, "forward": 6, "checkpoint": 2.5,
    "rewrite": 1, "time": 4, "slices": 6,
}  # fmt: skip
PIECES = (
    (deleting, "AT_ONCE_PIECES", 1), (tags, "STRETCH_BITS", 2), (deletes, "PIECE_COST", 2),
    (deletes, "PACKED_MIN", 4), (deletes, "PACKED_PIECE", 2), (tags, "FRESH_PIECE", 2),
    (tags, "SORTED_PIECE", 2), (tags, "SEQS_PIECE", 3), (tags, "CHECKED_PIECE", 2),
    (core, "TIDY_AT_ONCE_PIECES", 1),
)  # fmt: skip


class Mood:
    """The mixture that a seed stands for, in half of the seeds with a theme."""

    def __init__(self, rng: random.Random) -> None:
        self._draw(rng)
        self.theme = rng.choice(("", *THEMES)) if rng.random() < 0.6 else ""
        if self.theme:
            THEMES[self.theme](self)

    def often(self, factor: float, *kinds: str) -> None:
        self.weights.update(dict.fromkeys(kinds, factor))

    def _draw(self, rng: random.Random) -> None:
        self.names = rng.choice(("a", "ab", "abc")) + "d"
        self.classes = rng.choice(CLASSES)
        self.types = {name: rng.choice(("log", "log", "queue")) for name in self.names}
        self.windows_ms = {name: rng.choice(WINDOWS_MS) for name in self.names}
        # Log blocks that a promotion writes at once and in a slice; deletes are cut as small.
        self.at_once, self.group = rng.choice(((1, 1), (2, 1), (2, 1), (8, 4)))
        self.is_cut_small = rng.random() < 0.4
        self.has_bucket = rng.random() < 0.6
        # How often a batch is for a topic that its commit has to make.
        self.making = 0.1
        # How many records a topic begins with: many make its promotion a long one.
        self.begun = rng.choice((0, 3, 30, 60))
        self.capped = rng.choice((0, 0.1, 0.4))
        self.rejecting = rng.choice((0.2, 0.8))
        self.expiring = rng.choice((0, 0.2, 0.6))
        # How often each kind of step comes, beside how often it mostly does.
        self.weights = {kind: rng.choice((0.2, 1, 1, 4)) for kind in KINDS}
        # How often threads get on between two steps; slow ones leave much on its way.
        self.turns = rng.choice(((0, 0, 1, 2, 5), (0, 0, 0, 1), (0, 2), (5,)))
        # How often the disk fills up or has room again; how often a step of a thread fails.
        self.fills = rng.choice((0, 0, 0.1, 0.3))
        self.fails = rng.choice((0, 0, 0, 0, 0.03))
        # How often a process ends, and how.
        self.ends = rng.choice((0.02, 0.06, 0.06, 0.2))
        self.endings: tuple[Ending, ...] = rng.choice(
            (("clean",), ("kill",), ("crash",), ("clean", "kill"), ("clean", "kill", "crash"))
        )
        self.settings = Settings(
            threads=False, gc_freeze=False, wal_reserve_bytes=4096,
            wal_file_bytes=rng.choice((16384, 65536)),
            wal_shards=rng.choice((1, 2, 3)),
            block_bytes=rng.choice((128, 512)),
            segment_bytes=rng.choice((512, 2048)),
            own_segment_bytes=rng.choice((1, 256, 100_000)),
            resident_bytes=rng.choice((0, 2048)),
            block_cache_bytes=rng.choice((0, 1000, 32768)),
            seal_records=rng.choice((5, 20, 10**6)),
            seal_age_ms=rng.choice((1000, 600_000)),
            idle_close_ms=rng.choice((50, 10_000)),
            rewrite_age_ms=rng.choice((1000, 86_400_000)),
            max_producers=rng.choice((2, 1000)),
            cold_dir=rng.choice(("", "/cold")),
            hot_bytes=rng.choice((0, 2000)),
        )  # fmt: skip

    @contextlib.contextmanager
    def bounds(self) -> Iterator[None]:
        """Slices are small enough for a short history to have many of them."""
        wanted: list[tuple[Any, str, int]] = [
            (promotion, "AT_ONCE_BLOCKS", self.at_once), (promotion, "GROUP_BLOCKS", self.group),
            *(PIECES if self.is_cut_small else ()),
        ]  # fmt: skip
        before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
        try:
            for module, name, value in wanted:
                setattr(module, name, value)
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)


# -- themes --------------------------------------------------------------------------------------


def _slices(mood: Mood) -> None:
    """Long promotions, with something waiting behind a cursor most of the time."""
    mood.classes, mood.begun, mood.capped, mood.expiring = ("ephemeral", "fsync"), 60, 0, 0
    mood.at_once, mood.group, mood.is_cut_small, mood.turns = 1, 1, True, (0, 0, 0, 1)
    mood.often(3, "change_class", "put_cursor", "delete")


def _machines(mood: Mood) -> None:
    """Machines that crash soon after they came back, with nothing that is renewed by it."""
    mood.has_bucket, mood.classes, mood.turns = False, ("fsync", "disk"), (0, 0, 0, 1)
    mood.endings, mood.ends = ("crash",), 0.3
    mood.often(5, "put", "drop")
    mood.often(0, "change_class", "patch")


def _buckets(mood: Mood) -> None:
    """A bucket above all, compacted in one class and read in the next."""
    mood.has_bucket, mood.endings, mood.ends = True, ("clean", "kill"), 0.06
    mood.classes, mood.fills, mood.fails = ("ephemeral", "fsync"), 0, 0
    mood.often(6, "write_key", "compact")
    mood.often(3, "change_class")
    mood.often(0.2, "append", "stage", "claim", "end_lease", "delete")


def _refusals(mood: Mood) -> None:
    """Batches for topics that are full, on a disk that is full as often."""
    mood.rejecting, mood.capped, mood.expiring, mood.fills = 0.9, 0.6, 0.6, 0.3
    mood.ends, mood.endings, mood.making = 0.1, ("clean", "kill"), 0.4
    mood.often(5, "stage", "commit")
    mood.often(3, "put_cursor")


def _failures(mood: Mood) -> None:
    """A log that fails while much is on its way."""
    mood.fails, mood.classes, mood.turns = 0.1, ("ephemeral", "fsync"), (0, 2)
    mood.often(4, "stage", "commit", "put_cursor")


THEMES: dict[str, Callable[[Mood], None]] = {
    "slices": _slices, "machines": _machines, "buckets": _buckets, "refusals": _refusals,
    "failures": _failures,
}  # fmt: skip


def config_of(rng: random.Random, mood: Mood, name: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "type": mood.types[name],
        "durability": rng.choice(mood.classes),
        "idempotency_window_ms": mood.windows_ms[name],
    }
    if rng.random() < mood.capped:
        config["cap_records"] = rng.choice((2, 5, 20))
    if rng.random() < mood.capped / 2:
        config["cap_bytes"] = rng.choice((300, 3000))
    if rng.random() < mood.rejecting:
        config["discard"] = "reject"
    if rng.random() < mood.expiring:
        config["ttl_ms"] = rng.choice((500, 5000))
    if config["type"] == "queue":
        config["leases_durable"] = rng.random() < 0.6
        config["lease_ms"] = rng.choice((100, 2000))
        if rng.random() < 0.5:
            config["max_deliveries"] = 2
            config["dead_letter"] = rng.choice([*sorted(set(mood.names) - {name}), "dead"])
    return config


def patch_of(rng: random.Random, mood: Mood) -> dict[str, Any]:
    return rng.choice(
        (
            {"durability": rng.choice(("ephemeral", *mood.classes))},
            {"durability": rng.choice(mood.classes)},
            {"ttl_ms": rng.choice((0, 700))},
            {"cap_records": rng.choice((0, 3, 6))},
            {"priority": rng.randrange(9)},
        )
    )


def records_of(rng: random.Random, values: list[int]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for value in values:
        record: dict[str, Any] = {"data": {"n": value, "p": "z" * rng.choice((0, 50, 50, 300))}}
        if rng.random() < 0.4:
            record["tag"] = rng.choice(TAGS)
        if rng.random() < 0.2:
            record["meta"] = {"k": "v"}
        records.append(record)
    return records
