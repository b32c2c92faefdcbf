"""What kind of history a seed stands for: its bounds, its topics, its routers, its bad luck.

Every history leaves something out: kinds of steps, classes, caps, faults. What is always drawn
together hides what only happens alone, and what is rare everywhere is never met.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from topics.settings import Settings

NAMES = "abcde"
COLD = "/cold"
KINDS: dict[str, int] = {
    "append": 30, "burst": 14, "put": 8, "delete": 10, "drop": 3, "recreate": 3, "route": 8,
    "reroute": 4, "unroute": 2, "claim": 6, "ack": 6, "nack": 2, "cursor": 4, "uncursor": 1,
    "read": 6, "checkpoint": 8, "slices": 10, "forward": 6, "time": 8, "quiesce": 4, "retry": 3,
    "fault": 5, "memory": 3, "cold": 4, "restart": 9, "spoil": 1, "stall": 3,
}  # fmt: skip
# From this seed on, topics are rewritten too, because somebody asks or because it is time.
REWRITING_FROM = 5_000_000
BAD_LUCK = ("fault", "memory", "cold", "spoil")
LENGTHS = (8, 15, 25, 40)


@dataclass
class Mood:
    theme: str
    settings: Settings
    weights: dict[str, float]
    length: int
    # Names and the routers that may stand between them: from each to any other one path at most.
    edges: list[tuple[str, str]]
    names: str
    classes: tuple[str, ...]
    queues: str
    capped: float
    rejecting: float
    expiring: float
    sizes: tuple[int, ...]
    caps: tuple[int, ...]
    # How likely a sync or a job fails, how many turns follow a step, how steps end.
    fails: float
    turns: tuple[int, ...]
    endings: tuple[str, ...]
    looks: float
    # How often a thread gets on between two turns of the loop: at 0 the disk stalls.
    threads: float
    # What the bad luck is like: what fails, where, and how.
    operations: tuple[str, ...]
    paths: tuple[str, ...]
    # How many calls go well before the one that fails, at most.
    nth_max: int
    # How much of a write that finds no room is there all the same.
    shorts: tuple[int, ...]
    # How likely a read that goes wrong gives other bytes than were written, and says nothing.
    flips: float
    bounds: dict[str, int] = field(default_factory=dict)


def mood_of(seed: int) -> Mood:
    """Any mixture, or one in which a few things that seldom meet are all there at once."""
    draw = random.Random(f"mood {seed}")
    mood = _mixture(draw)
    if draw.random() < 0.5:
        mood.theme = draw.choice(sorted(THEMES))
        THEMES[mood.theme](mood, draw)
    if seed >= REWRITING_FROM:
        _rewriting(mood, draw)
    some = draw.sample(mood.names, min(draw.choice((1, 2, 5, 5)), len(mood.names)))
    mood.names = "".join(sorted({*some, *(name for edge in mood.edges for name in edge)}))
    return mood


def _mixture(draw: random.Random) -> Mood:
    weights = {kind: weight * draw.choice((0, 1, 1, 1, 3)) for kind, weight in KINDS.items()}
    weights["append"] = max(weights["append"], 20)
    weights["restart"] = max(weights["restart"], 5)
    if draw.random() < 0.6:
        weights.update(dict.fromkeys(BAD_LUCK, 0.0))
    every = ("fsync", "disk", "memory", "ephemeral")
    return Mood(
        theme="",
        settings=_settings(draw),
        weights=weights,
        length=draw.choice(LENGTHS),
        edges=_edges(draw),
        names=NAMES,
        classes=draw.choice(
            (("fsync",), ("disk",), ("fsync", "disk"), ("fsync", "disk"), every,
             ("ephemeral", "fsync"), ("memory", "disk"))
        ),
        queues=draw.choice(("", "", "a", "e", "ce", NAMES)),
        capped=draw.choice((0, 0.2, 0.7)),
        rejecting=draw.choice((0, 0.2, 0.8)),
        expiring=draw.choice((0, 0, 0.2, 0.7)),
        sizes=draw.choice(((0,), (0, 0, 0, 150), (0, 100, 700), (0, 0, 0, 0, 5000))),
        caps=(200, 900, 3000),
        fails=draw.choice((0, 0, 0, 0.05)) if sum(weights[k] for k in BAD_LUCK) else 0,
        turns=draw.choice(((0, 1), (0, 1, 3), (2, 6), (12,))),
        endings=draw.choice(
            (("clean",), ("kill",), ("crash",), ("clean", "kill", "crash"), ("clean", "crash"))
        ),
        looks=draw.choice((0.1, 0.5)),
        threads=draw.choice((0.3, 5, 5, 15)),
        operations=("pread", "pread", "pread", "pwrite", "pwrite", "create", "open", "sync"),
        paths=(".seg", ".wal", ".snap", ""),
        nth_max=4,
        shorts=(0, 512, 1024, 2048, 4096),
        flips=0.3,
        bounds={
            "RECORDS_MAX": draw.choice((1, 3, 1000)),
            "ALLOWANCE_MIN": draw.choice((2, 4, 8)),
            # Ceilings of a busy topic grow fast, and with them the holes of a crash.
            "BUSY_S": draw.choice((0, 0, 0, 1)),
        },
    )  # fmt: skip


def _settings(draw: random.Random) -> Settings:
    is_cold = draw.random() < 0.4
    return Settings(
        threads=False, gc_freeze=False, wal_file_bytes=16384, wal_reserve_bytes=4096,
        wal_shards=draw.choice((1, 1, 2, 3)),
        block_bytes=draw.choice((128, 512, 4096)),
        segment_bytes=draw.choice((512, 2048)),
        own_segment_bytes=draw.choice((1, 256, 1024, 100_000)),
        block_cache_bytes=draw.choice((0, 1000, 32768)),
        resident_bytes=draw.choice((0, 0, 2048)),
        seal_records=draw.choice((5, 20, 1_000_000)),
        seal_age_ms=draw.choice((1000, 600_000)),
        idle_close_ms=draw.choice((50, 1000, 10_000)),
        cold_dir=COLD if is_cold else "",
        hot_bytes=draw.choice((0, 0, 2000)),
    )  # fmt: skip


def _edges(draw: random.Random) -> list[tuple[str, str]]:
    """Chains, fans and both, without two ways from one topic to another."""
    if draw.random() < 0.25:
        return []
    above: dict[str, set[str]] = {name: {name} for name in NAMES}
    found: list[tuple[str, str]] = []
    wanted = draw.choice((1, 2, 3, 4))
    pairs = [(a, b) for a in NAMES for b in NAMES if a < b]
    if draw.random() < 0.5:
        pairs = [(a, b) for a, b in pairs if ord(b) == ord(a) + 1]
    for source, dest in draw.sample(pairs, len(pairs)):
        if len(found) >= wanted:
            break
        below = [name for name in NAMES if dest in above[name]]
        if any(above[source] & above[name] for name in below):
            continue
        for name in below:
            above[name] |= above[source]
        found.append((source, dest))
    return found


# -- themes ----------------------------------------------------------------------------------------


def _heavier(mood: Mood, factor: float, *kinds: str) -> None:
    for kind in kinds:
        mood.weights[kind] = KINDS[kind] * factor


def _rewriting(mood: Mood, draw: random.Random) -> None:
    """Whatever else happens: much is deleted, and leaves the disk."""
    mood.weights["rewrite"] = draw.choice((4, 12))
    mood.weights["delete"] = max(mood.weights["delete"], 15)
    mood.weights["time"] = max(mood.weights["time"], 8)
    mood.settings = msgspec.structs.replace(
        mood.settings, seal_age_ms=draw.choice((500, 3000)), rewrite_age_ms=draw.choice((0, 2000)),
    )  # fmt: skip


def _tiers(mood: Mood, draw: random.Random) -> None:
    """Caps and refusals, with most of the records out of reach."""
    mood.settings = msgspec.structs.replace(
        mood.settings, cold_dir=COLD, hot_bytes=0, resident_bytes=0,
        block_cache_bytes=draw.choice((0, 2000)),
    )  # fmt: skip
    mood.classes = draw.choice((("fsync",), ("disk",), ("fsync", "disk")))
    mood.capped, mood.rejecting = 0.9, draw.choice((0, 0.9))
    mood.queues = draw.choice(("", NAMES))
    mood.sizes = draw.choice(((0, 100, 700), (0, 0, 30, 2000)))
    mood.caps = (900, 3000, 6000)
    _heavier(mood, 3, "checkpoint", "delete", "claim", "ack", "slices")


def _chains(mood: Mood, draw: random.Random) -> None:
    """Long chains with writes and drops in their middle."""
    mood.edges = draw.choice(
        ([("a", "b"), ("b", "c"), ("c", "d")], [("a", "b"), ("b", "c"), ("c", "d"), ("b", "e")],
         [("c", "d"), ("a", "c")], [("d", "e"), ("b", "d"), ("a", "b")])
    )  # fmt: skip
    mood.bounds["RECORDS_MAX"] = draw.choice((2, 1000))
    mood.queues, mood.capped = "", draw.choice((0, 0, 0.3))
    _heavier(mood, 2, "route", "reroute", "recreate", "drop", "forward", "restart", "checkpoint")


def _failing(mood: Mood, draw: random.Random) -> None:
    """Syncs that fail, among readers and writers who do not expect it."""
    mood.fails = draw.choice((0.05, 0.2))
    mood.classes = draw.choice((("disk",), ("fsync", "disk"), ("fsync",)))
    mood.settings = msgspec.structs.replace(mood.settings, wal_shards=draw.choice((1, 2, 3)))
    _heavier(mood, 2, "burst", "read", "quiesce")


def _stalled(mood: Mood, draw: random.Random) -> None:
    """The disk takes its time while the clock goes on."""
    mood.threads = draw.choice((1, 5, 15))
    mood.turns = draw.choice(((1, 3, 6), (6,)))
    mood.classes = draw.choice((("disk",), ("disk",), ("fsync", "disk"), ("ephemeral", "disk")))
    mood.settings = msgspec.structs.replace(
        mood.settings, idle_close_ms=draw.choice((20, 100)), wal_shards=draw.choice((1, 2))
    )
    mood.bounds["ALLOWANCE_MIN"] = draw.choice((2, 4))
    mood.expiring = draw.choice((0, 0.7))
    mood.endings = draw.choice((("crash",), ("clean", "kill"), ("clean", "kill", "crash")))
    mood.edges = draw.choice(([], mood.edges))
    _heavier(mood, 3, "time", "slices")
    _heavier(mood, 8, "stall")


def _idle(mood: Mood, draw: random.Random) -> None:
    """Nothing but writes, pauses and the end of machines, on a disk that hangs now and then."""
    mood.edges, mood.queues = [], ""
    mood.names = draw.choice(("a", "a", "ab"))
    mood.classes = draw.choice((("disk",), ("disk",), ("disk",), ("disk", "fsync")))
    mood.capped, mood.expiring = draw.choice((0, 0, 0.5)), draw.choice((0, 0, 0.7))
    mood.settings = msgspec.structs.replace(mood.settings, idle_close_ms=20, wal_shards=1)
    # A write that has to wait for its ceiling keeps its topic from being closed.
    mood.bounds.update(ALLOWANCE_MIN=draw.choice((2, 16, 16)), BUSY_S=0)
    mood.sizes = (0,)
    mood.threads, mood.turns = draw.choice((0.5, 0.5, 5)), draw.choice(((1, 2), (1, 2), (3, 6)))
    mood.endings = draw.choice((("crash",), ("crash",), ("clean", "kill", "crash")))
    mood.length = draw.choice((40, 60))
    mood.weights = {
        "append": 16, "time": 12, "stall": 6, "restart": 3, "quiesce": 3, "delete": 1, "burst": 1,
    }  # fmt: skip


def _gentle(mood: Mood, draw: random.Random) -> None:
    """Orderly stops, with a lot on its way."""
    mood.endings = ("clean",)
    mood.classes = draw.choice((("ephemeral",), ("ephemeral", "fsync"), ("fsync", "disk")))
    mood.threads, mood.turns = draw.choice((0, 1)), (0, 1)
    mood.capped = draw.choice((0, 0.3))
    _heavier(mood, 3, "put", "burst", "restart", "delete", "claim", "ack")


def _full(mood: Mood, draw: random.Random) -> None:
    """A disk that is full in the middle of a write, and has room again."""
    mood.operations, mood.paths = ("pwrite", "pwrite", "pwrite", "allocate"), (".wal", ".wal", "")
    mood.sizes = draw.choice(((0, 0, 700, 3000), (0, 3000)))
    mood.threads, mood.nth_max, mood.shorts = 15, 2, (1024, 2048, 4096)
    _heavier(mood, 3, "checkpoint", "restart")
    _heavier(mood, 8, "fault")


def _reading(mood: Mood, draw: random.Random) -> None:
    """Reads that fail while what was committed is applied, and snapshots that have rotted."""
    mood.settings = msgspec.structs.replace(
        mood.settings, resident_bytes=0, block_cache_bytes=0, block_bytes=draw.choice((128, 4096)),
        cold_dir=draw.choice((COLD, COLD, "")), hot_bytes=draw.choice((0, 0, 1000)),
    )  # fmt: skip
    mood.operations = ("pread", "pread", "pread", "open")
    mood.paths = (".seg", ".seg", ".seg", "/cold/", ".cold")
    mood.capped, mood.sizes, mood.caps = draw.choice((0, 0.7)), (0, 50, 400), (900, 3000)
    # What looks at everything would meet the fault itself.
    mood.looks, mood.nth_max, mood.flips = 0.02, draw.choice((2, 8)), draw.choice((0.2, 0.8))
    # What is under way gets on before the fault is met by something else.
    mood.threads, mood.turns = draw.choice((5, 15)), draw.choice(((2, 6), (12,)))
    mood.weights["cold"] = draw.choice((0, KINDS["cold"]))
    _heavier(mood, 2, "delete", "burst", "restart")
    _heavier(mood, 8, "fault", "checkpoint", "spoil")


THEMES: dict[str, Callable[[Mood, random.Random], None]] = {
    "tiers": _tiers, "chains": _chains, "failing": _failing, "stalled": _stalled, "full": _full,
    "reading": _reading, "idle": _idle, "gentle": _gentle,
}  # fmt: skip


def config_of(draw: random.Random, mood: Mood, name: str) -> dict[str, object]:
    config: dict[str, object] = {"durability": draw.choice(mood.classes)}
    if name in mood.queues:
        config["type"] = "queue"
        config["lease_ms"] = draw.choice((100, 1000))
        config["leases_durable"] = draw.random() < 0.5
        if draw.random() < 0.3:
            config["max_deliveries"] = draw.choice((1, 2))
            config["dead_letter"] = "dead"
    if draw.random() < mood.capped:
        config["cap_records"] = draw.choice((1, 4, 9))
    if draw.random() < mood.capped:
        config["cap_bytes"] = draw.choice(mood.caps)
    if draw.random() < mood.expiring:
        config["ttl_ms"] = draw.choice((300, 1000, 5000))
    if draw.random() < mood.rejecting:
        config["discard"] = "reject"
    return config
