"""What a salvage found: the state that was rebuilt, and what is missing from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.engine.core import Core
from topics.engine.replay import Replay
from topics.engine.topic import Topic
from topics.storage.snapshot import Snapshot, TopicRecord
from topics.storage.wal_reader import Timeline
from topics.types import CORRUPTION


@dataclass(frozen=True, slots=True)
class Base:
    """What to start from: a snapshot, or nothing but what the log and the segments say."""

    summary: Snapshot | None
    records: list[TopicRecord]
    # Without a snapshot: whether the segments are read, which a log from its beginning makes idle.
    uses_segments: bool = True


@dataclass(slots=True)
class Salvage:
    core: Core
    lost: list[tuple[Topic, int, int]] = field(default_factory=list)
    # Frames known to be missing; None when nobody can say how many.
    lost_frames: int | None = 0
    skips: int = 0
    unproved: set[int] = field(default_factory=set)
    # Topics without a name, and those whose floor nobody remembers.
    nameless: set[int] = field(default_factory=set)
    damaged_segments: set[int] = field(default_factory=set)
    clean: dict[tuple[int, int], bool] = field(default_factory=dict)
    # The timelines that were read.
    lines: list[Timeline] = field(default_factory=list)
    replay: Replay = field(init=False)

    @property
    def cost(self) -> tuple[int, int, int]:
        seqs = sum(last - first + 1 for _, first, last in self.lost)
        return seqs, len(self.unproved), len(self.nameless)

    def lose(self, topic: Topic, first: int, last: int) -> None:
        self.lost.append((topic, first, last))

    def fill(self, topic: Topic, first: int, last: int) -> None:
        """Seqs of a snapshot that no segment holds any more."""
        topic.holes = sorted([*(topic.holes or []), (first, last, CORRUPTION)])
        self.lose(topic, first, last)

    def miss_frames(self, count: int | None, shard: int, shards: int) -> None:
        """Frames of a shard are missing: any of its topics may have lost its newest records."""
        unknown = count is None or self.lost_frames is None
        self.lost_frames = None if unknown else (self.lost_frames or 0) + (count or 0)
        self.unproved.update(i for i in self.core.by_id if i % shards == shard)
