"""Syncs that end when a test says so, as those of a sync thread end when the disk is ready."""

from __future__ import annotations

from topics.engine.commit.syncing import Syncer
from topics.engine.engine import Engine
from topics.storage.wal import Shard


class LateSyncer(Syncer):
    """Leaves what it is asked for until `release`; who waits for a sync still gets it at once."""

    def __init__(self) -> None:
        self.asked: list[Shard] = []

    def kick(self, shard: Shard) -> None:
        self.asked.extend(each for each in shard.footings.below(shard) if each not in self.asked)

    def release(self, *indexes: int) -> None:
        """Syncs the shards with these indexes, or all that were asked for."""
        due = [shard for shard in self.asked if not indexes or shard.index in indexes]
        self.asked = [shard for shard in self.asked if shard not in due]
        for shard in due:
            shard.sync()
            shard.prepare()


def hold_syncs(engine: Engine) -> LateSyncer:
    """From now on syncs of this engine end late."""
    syncer = LateSyncer()
    engine.core.log.syncer = syncer
    return syncer
