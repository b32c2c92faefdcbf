"""What a salvage found: the state that was rebuilt, and what is missing from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.engine.commit.core import Core
from topics.engine.recovery.replay import Replay
from topics.engine.state.topic import Topic
from topics.storage.snapshot import Snapshot, TopicRecord
from topics.storage.wal_reader import Timeline
from topics.types import CORRUPTION, TopicConfig


@dataclass(frozen=True, slots=True)
class Base:
    """What to start from: a snapshot, or nothing but what the log and the segments say."""

    summary: Snapshot | None
    records: list[TopicRecord]
    # Whether the segments are read without a snapshot; a log from its beginning makes that idle.
    uses_segments: bool = True
    # Readable snapshots that are newer: what they say of the log and of the heads is evidence.
    newer: list[tuple[Snapshot, list[TopicRecord]]] = field(default_factory=list)


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
    # Names and configs of topics that no readable snapshot has, with the version of the config.
    named: dict[int, tuple[str, TopicConfig, int]] = field(default_factory=dict)
    damaged_segments: set[int] = field(default_factory=set)
    clean: dict[tuple[int, int], bool] = field(default_factory=dict)
    # Topics that the log says were dropped.
    dropped: set[int] = field(default_factory=set)
    # The first id that the log, and no snapshot, may have given to a topic.
    first_new_id: int = 1
    # The timelines that were read.
    lines: list[Timeline] = field(default_factory=list)
    replay: Replay = field(init=False)

    @property
    def cost(self) -> tuple[int, int, int]:
        seqs = sum(last - first + 1 for _, first, last in self.lost)
        return seqs, len(self.unproved), len(self.nameless)

    @property
    def vanished(self) -> list[int]:
        """Ids of topics of which nothing is left: their creation is among the missing frames."""
        if self.lost_frames == 0:
            return []
        ids = range(self.first_new_id, self.core.numbers.next_topic_id)
        return [i for i in ids if i not in self.core.by_id and i not in self.dropped]

    def name_of(self, topic_id: int) -> tuple[str, TopicConfig, int]:
        """What a topic is called of which only its id is left."""
        if topic_id in self.named:
            return self.named[topic_id]
        name = f"recovered-{topic_id}"
        while name in self.core.by_name:
            name += "-"
        return name, TopicConfig(), 0

    def lose(self, topic: Topic, first: int, last: int) -> None:
        self.lost.append((topic, first, last))

    def fill(self, topic: Topic, first: int, last: int) -> None:
        """Seqs of a snapshot that no segment holds any more."""
        topic.patch(first, last, CORRUPTION)
        self.lose(topic, first, last)

    def miss_frames(self, count: int | None, shard: int, shards: int) -> None:
        """Frames of a shard are missing: any of its topics may have lost its newest records."""
        unknown = count is None or self.lost_frames is None
        self.lost_frames = None if unknown else (self.lost_frames or 0) + (count or 0)
        self.unproved.update(i for i in self.core.by_id if i % shards == shard)
