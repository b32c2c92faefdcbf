"""Work beside the work: checkpoints, idle topics, tag indexes, tiers. Always a slice at a time."""

from __future__ import annotations

import errno
import gc
from collections.abc import Generator, Iterator
from functools import partial

from topics.engine import ceilings, forwarding, promotion, relocation
from topics.engine.block import Block
from topics.engine.checkpoint import checkpoint
from topics.engine.commit import Op
from topics.engine.core import SYSTEM, Core, nothing
from topics.engine.deletes import is_live
from topics.engine.segments import ColdMiss
from topics.engine.topic import Topic
from topics.errors import DiskFull, Poisoned, StorageError, TopicsError
from topics.storage import frames
from topics.storage.wal import FULL

IDLE_MARK_S = 1.0
TICK_S = 0.05
FOLD_KEYS = 2000
STORE_RETRY_S = 1.0


class Maintenance:
    def __init__(self, core: Core) -> None:
        self.core = core
        # What recovery left for later comes first.
        self._running: Iterator[None] | None = core.index_all_tags()
        self._checkpoint_s = core.clock.monotonic_s()
        self._tick_s = 0.0
        self._synced_s = 0.0
        # What the log had when the last checkpoint began.
        self._logged_bytes = 0
        # When a router's record is next asked of the cold store.
        self._store_retry_s = 0.0

    def due(self) -> bool:
        """Whether a call of `run` would have something to do."""
        core = self.core
        waits = self._running is not None or bool(core.routers.dirty or core.promotions)
        return waits or core.clock.monotonic_s() - self._tick_s >= TICK_S

    def finish_checkpoint(self) -> None:
        """Ends what is under way, so that nothing new comes between its parts."""
        self._drain()

    def run(self, budget_s: float) -> bool:
        """Works for about `budget_s`; True when there is more to do at once."""
        core = self.core
        now_s = core.clock.monotonic_s()
        if now_s - self._tick_s >= TICK_S:
            self._tick_s = now_s
            self._tick(now_s)
        if self._running is None and core.promotions:
            self._running = promotion.slices(core)
        stop_s = now_s + budget_s
        more = bool(core.routers.dirty) and self._forward(now_s)
        while self._running is not None:
            try:
                next(self._running)
            except StopIteration:
                self._running = None
            except OSError as error:
                self._running = None
                raise self._failed(error) from error
            except BaseException:
                self._running = None
                raise
            if core.is_waiting or core.clock.monotonic_s() >= stop_s:
                break
        return self._running is not None or bool(core.promotions) or more

    def _forward(self, now_s: float) -> bool:
        """Forwards for the routers, and fetches what one of them misses when nothing else runs."""
        try:
            return forwarding.forward(self.core)
        except ColdMiss as miss:
            if self._running is None and now_s >= self._store_retry_s:
                self._running = self._bring(miss.ahead[0])
            return False

    def _bring(self, block: Block) -> Iterator[None]:
        # Until it has worked: an outage is told once in a while, not every time.
        self._store_retry_s = self.core.clock.monotonic_s() + STORE_RETRY_S
        yield from self.core.bring(block)
        self._store_retry_s = 0.0

    def _failed(self, error: OSError) -> TopicsError:
        """What was under way is abandoned; the log has all of it, so it can begin again later."""
        if error.errno in FULL:
            return DiskFull("no space left on the device for a checkpoint; writes and reads go on")
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return StorageError(f"a checkpoint could not open a file and will be repeated: {error}")
        poisoned = Poisoned(f"a checkpoint failed: {error}")
        self.core.committer.fail(poisoned)
        return poisoned

    def close(self) -> None:
        """Gives up what is under way, leaving no unfinished files."""
        if isinstance(self._running, Generator):
            self._running.close()
        self._running = None
        self.core.abandon()
        promotion.give_up(self.core)

    def checkpoint_now(self) -> None:
        """Takes a checkpoint to its end."""
        self._drain()
        self._begin_checkpoint()
        self._drain()

    def finish(self, work: Iterator[None]) -> None:
        """Takes other sliced work to its end, behind what runs already."""
        self._drain()
        self._running = work
        self._drain()

    def _drain(self) -> None:
        while self.run(1.0):
            self.core.jobs.pause()

    def _begin_checkpoint(self) -> None:
        self._checkpoint_s = self.core.clock.monotonic_s()
        self.core.unsealed_bytes = self.core.unsealed_records = 0
        self._logged_bytes = self._log_bytes()
        self._running = self._checkpoint_then_relocate()

    def _checkpoint_then_relocate(self) -> Iterator[None]:
        yield from checkpoint(self.core)
        yield from relocation.relocate(self.core)

    def _tick(self, now_s: float) -> None:
        core, settings = self.core, self.core.settings
        ceilings.close_idle(core, settings.idle_close_ms / 1000)
        self._sync_inline(now_s)
        self._mark_idle()
        for topic_id in list(core.unfolded):
            topic = core.by_id.get(topic_id)
            if topic is None or self._fold(topic):
                core.unfolded.discard(topic_id)
        # A checkpoint would make a promotion begin again.
        is_free = self._running is None and not core.promotions
        if is_free and self._wants_checkpoint(now_s):
            self._begin_checkpoint()
        core.committer.flush()
        core.committer.poll()
        if settings.gc_freeze:
            # Only what is young is looked at; what survived it is taken for long-lived.
            gc.collect(1)
            gc.freeze()

    def _wants_checkpoint(self, now_s: float) -> bool:
        """The three seal triggers: bytes, records, age.

        The log itself counts half: cursors, leases and deletes may go on for days without a record
        being written, and it must not grow as long.
        """
        core, settings = self.core, self.core.settings
        return (
            core.unsealed_bytes >= settings.seal_bytes
            or self._log_bytes() - self._logged_bytes >= 2 * settings.seal_bytes
            or core.unsealed_records >= settings.seal_records
            or (
                core.unsealed_records > 0
                and now_s - self._checkpoint_s >= settings.seal_age_ms / 1000
            )
        )

    def _log_bytes(self) -> int:
        """What was written to the log so far, in all shards."""
        return self.core.committer.lanes[0].shard.stats.bytes_written_total

    def _fold(self, topic: Topic) -> bool:
        tags = topic.tags
        if tags is None:
            return True
        if tags.entries > 2 * topic.live_count + 1024 and self._running is None:
            self._running = tags.sweep(partial(is_live, topic))
        return tags.fold(FOLD_KEYS)

    def _sync_inline(self, now_s: float) -> None:
        """Without threads, the sync interval is kept here."""
        if now_s - self._synced_s < self.core.settings.sync_interval_ms / 1000:
            return
        self._synced_s = now_s
        for lane in self.core.committer.lanes:
            if lane.shard.is_dirty:
                self.core.syncer.interval(lane.shard)

    def _mark_idle(self) -> None:
        """A mark behind the last synced group: damage in front of it is known as corruption."""
        for lane in self.core.committer.lanes:
            shard = lane.shard
            if not shard.is_dirty and not lane.staged and shard.unmarked:
                write_mark(self.core, shard.index, is_clean=False)


def write_mark(core: Core, lane_index: int, *, is_clean: bool) -> None:
    shard = core.committer.lanes[lane_index].shard
    mark = Op(SYSTEM, frames.MARK, nothing, gated=False, flags=int(is_clean))
    shard.write([mark.entry()], [], [b""], may_use_reserve=True)
    shard.unmarked = False
