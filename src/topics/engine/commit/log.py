"""The log of this generation: its shards, who syncs them, and MARKS, which vouches for them.

Each topic belongs to one shard. Whoever wants to know how far the log is durable, or wants it to
be, asks here or the committer; nobody else holds a shard.
"""

from __future__ import annotations

from topics.engine.commit.syncing import Syncer
from topics.engine.state.topic import Topic
from topics.errors import DiskFull
from topics.storage import frames
from topics.storage.frames import Mark, shard_of
from topics.storage.marks import Marks
from topics.storage.wal import Shard


class Log:
    def __init__(self, shards: list[Shard], syncer: Syncer, marks: Marks) -> None:
        self.shards = shards
        # Replaceable: a test may have syncs end when it says so.
        self.syncer = syncer
        self.marks = marks

    def shard_of(self, topic: Topic) -> Shard:
        return self.shards[shard_of(topic.id, len(self.shards))]

    @property
    def positions(self) -> list[Mark]:
        """Behind which group each shard ends."""
        return [shard.position for shard in self.shards]

    @property
    def bytes_written_total(self) -> int:
        """Of all shards, which count together."""
        return self.shards[0].stats.bytes_written_total

    @property
    def returns_total(self) -> int:
        """How often something was written after a write that found no room."""
        return self.shards[0].stats.returns_total

    # -- writing -----------------------------------------------------------------------------

    def rotate(self) -> list[tuple[int, int]]:
        """Every shard goes on in a new file; its number, and that of the first frame in it.

        Raises DiskFull or Poisoned.
        """
        for shard in self.shards:
            shard.rotate()
        return [(shard.current.number, shard.lsn) for shard in self.shards]

    def prepare(self) -> None:
        """Makes the files that `rotate` goes on in, as far as there is room; for a thread."""
        for shard in self.shards:
            shard.prepare(at_once=True)
            if shard.poison is not None:
                return

    def route(self) -> None:
        """From now on the log says that there are routers; raises DiskFull with nothing changed."""
        for shard in self.shards:
            if not shard.is_routed:
                shard.is_routed = True
                try:
                    shard.rotate()
                except DiskFull:
                    shard.is_routed = False
                    raise

    def write_marks(self, *, is_clean: bool) -> None:
        """Says in every shard that its generation ends, and whether all of it was written down."""
        entry = frames.ENTRY.pack(0, frames.MARK, int(is_clean), 0, 0, 0, 0, 0, 0)
        for shard in self.shards:
            shard.write([entry], [], [b""], may_use_reserve=True)

    def copy(self, topic_id: int, entry: bytes, columns: bytes, payload: bytes) -> None:
        """Writes a frame of an earlier generation once more, byte for byte."""
        shard = self.shards[shard_of(topic_id, len(self.shards))]
        shard.write([entry], [columns], [payload], may_use_reserve=True)

    # -- syncing -----------------------------------------------------------------------------

    def wait(self) -> None:
        """Blocks until all that was written so far is durable, or a sync has failed."""
        for shard in self.shards:
            if shard.is_dirty:
                self.syncer.wait(shard, shard.position)

    def interval(self) -> None:
        """The sync interval is over: without threads what was written is synced now."""
        for shard in self.shards:
            if shard.is_dirty:
                self.syncer.interval(shard)

    def settle(self) -> None:
        """Makes MARKS durable now; a failure poisons the first shard."""
        self.shards[0].settle()

    def settle_soon(self, *, in_thread: bool) -> None:
        """Makes MARKS durable with the next sync that finds nothing to do, which this asks for."""
        shard = self.shards[0]
        shard.wants_settled = True
        if in_thread:
            self.syncer.touch(shard)
        else:
            shard.sync()

    def close(self) -> None:
        self.syncer.close()
        for shard in self.shards:
            shard.close()
        self.marks.close()
