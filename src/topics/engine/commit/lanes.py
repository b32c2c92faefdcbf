"""The shards of the log as the committer sees them: what is staged, what waits for a sync."""

from __future__ import annotations

from collections import deque

from topics.engine.commit.frame import Frame
from topics.engine.commit.log import Log
from topics.engine.state.topic import Topic
from topics.storage.frames import Mark, shard_of
from topics.storage.wal import Shard


class Lane:
    """One shard with what is staged for it and what waits for its sync."""

    __slots__ = ("shard", "staged", "waiting")

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.staged: list[Frame] = []
        self.waiting: deque[tuple[Mark, Frame]] = deque()


class Lanes:
    """All of them, and what can be asked about the frames of a topic without knowing which."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lanes = [Lane(shard) for shard in log.shards]

    def _lane_of(self, topic: Topic) -> Lane:
        lanes = self._lanes
        # Mostly there is one, and this is asked with every frame.
        return lanes[0] if len(lanes) == 1 else lanes[shard_of(topic.id, len(lanes))]

    @property
    def frames_on_their_way(self) -> int:
        """Staged, or waiting for a sync."""
        return sum(len(lane.staged) + len(lane.waiting) for lane in self._lanes)

    def has_staged(self, topic: Topic) -> bool:
        """Whether something is to be written in front of what this topic stages next."""
        return bool(self._lane_of(topic).staged)

    def position(self, topic: Topic) -> Mark:
        """The end of what was written for this topic so far, and for those beside it."""
        return self._lane_of(topic).shard.position

    def is_durable(self, topic: Topic, upto: Mark | None = None) -> bool:
        """Whether all that was written up to a position of this topic, or up to now, is durable."""
        shard = self._lane_of(topic).shard
        return not shard.is_dirty if upto is None else not shard.synced < upto

    def stand_on(self, topic: Topic, source: Topic) -> None:
        """What is staged for a topic from here on is durable no earlier than its source is now."""
        shard = self._lane_of(topic).shard
        shard.footings.add(shard, self._lane_of(source).shard)

    def is_behind(self, topic: Topic, source: Topic) -> bool:
        """Whether nothing of a topic can be durable before all that its source has now is."""
        shard = self._lane_of(topic).shard
        return shard is self._lane_of(source).shard and shard.footings.is_firm(shard)

    def ask_sync(self, topic: Topic) -> None:
        """Somebody waits for what was written so far, which nobody else perhaps does."""
        self._log.syncer.kick(self._lane_of(topic).shard)
