"""Work beside the work: checkpoints, idle topics, tag indexes, tiers. Always a slice at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial

from topics.engine.commit.core import Core
from topics.engine.ops import ceilings, deletes, deleting, promotion, stages
from topics.engine.routing import forwarding
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.engine.upkeep import relocation
from topics.engine.upkeep.backup import Backups
from topics.engine.upkeep.checkpoint import checkpoint
from topics.engine.upkeep.erasing import Eraser, closed
from topics.engine.upkeep.freezing import Freezer
from topics.engine.upkeep.reclaiming import Reclaimer
from topics.errors import Closed, DiskFull, Poisoned, TopicsError
from topics.storage.disk_errors import FULL, NO_FILES, typed
from topics.storage.frames import Mark

TICK_S = 0.05
FOLD_KEYS = 500
# Starts whose parts of the log are read at the next one, before a checkpoint is due; and before
# the next one takes it while it recovers, because none of them lived long enough.
GENERATIONS_MAX = 8
GENERATIONS_READY_MAX = 32
# How soon after the last one a checkpoint is taken because something, a delete maybe, was written
# to a disk that was full; and how late at most after some that came to no end: each takes room.
FULL_DISK_S = 2.0
FULL_DISK_S_MAX = 600.0


class Maintenance:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._running: Iterator[None] | None = None
        # Whether the last call went on with deletes, and not with what runs.
        self._is_deletes_turn = False
        self._indexing = core.index_all_tags()
        self._checkpoint_s = core.clock.monotonic_s()
        self._tick_s = 0.0
        self._synced_s = 0.0
        # Where the log stood at the last tick.
        self._positions: list[Mark] = []
        # What the log had when the last checkpoint began.
        self._logged_bytes = -core.unsealed.replayed_bytes
        # How often a full disk had had room again by then, and how soon that counts.
        self._returns = 0
        self._full_disk_s = FULL_DISK_S
        # Whether the log is still to be trimmed for that.
        self._is_trim_due = False
        self._freezer = Freezer()
        self._reclaimer = Reclaimer(core)
        self.eraser = Eraser(core)
        self.backups = Backups(core)

    @property
    def _erases(self) -> bool:
        """Whether an erasure was asked for, and can be begun: a backup keeps the old bytes."""
        return self.eraser.is_asked and not self.core.is_pinned

    def due(self) -> bool:
        """Whether a call of `run` would have something to do."""
        core = self.core
        waits = self._running is not None or bool(core.routers.dirty or core.preparing.promotions)
        waits = waits or core.is_deleting or self._erases or self.backups.is_running
        return waits or core.clock.monotonic_s() - self._tick_s >= TICK_S

    def run(self, budget_s: float) -> bool:
        """Works for about `budget_s`; True when there is more to do at once."""
        core = self.core
        now_s = core.clock.monotonic_s()
        if now_s - self._tick_s >= TICK_S:
            self._tick_s = now_s
            self._tick(now_s)
        elif core.settings.gc_freeze and self._freezer.is_behind:
            self._freezer.tick(now_s)
        stop_s = now_s + budget_s
        more = bool(core.routers.dirty) and self._forward()
        more = self._index(stop_s) or more
        return self._work(stop_s) or more

    def _work(self, stop_s: float) -> bool:
        """Goes on with what is under way; True when that has not come to its end."""
        core = self.core
        if self._running is None and core.preparing.promotions:
            self._running = promotion.slices(core)
        if self._running is None and self._erases:
            self._running = self.eraser.slices(self._keep_up)
        self.backups.advance(is_free=self._running is None)
        core.tiering.tend()
        core.stage_files.poll()
        is_deleting = core.is_deleting
        # One of the two in a call, so that a call is no longer than it should be.
        self._is_deletes_turn = is_deleting and not (self._is_deletes_turn and self._running)
        more = is_deleting
        if self._is_deletes_turn:
            more = self._delete(stop_s)
        while self._running is not None and not self._is_deletes_turn:
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
            if core.background.is_waiting or core.clock.monotonic_s() >= stop_s:
                break
        is_asked = bool(core.preparing.promotions) or self._erases
        return self._running is not None or is_asked or more

    def _delete(self, stop_s: float) -> bool:
        """Goes on with deletes that are too much for a turn, and tidies up after them."""
        core = self.core
        while core.is_deleting:
            core.committer.work()
            if not deleting.advance(core) and core.tidying and next(core.tidying[0], self) is self:
                core.tidying.popleft()
            if core.background.is_waiting or core.clock.monotonic_s() >= stop_s:
                return core.is_deleting
        return False

    def _forward(self) -> bool:
        """Forwards for the routers; what one of them misses is asked of the cold store."""
        try:
            return forwarding.forward(self.core)
        except ColdMiss as miss:
            self.core.tiering.want(miss.ahead[0])
            return False

    def _index(self, stop_s: float) -> bool:
        """Enters tags that recovery left for later; True when there is more to do at once."""
        try:
            for is_advancing in self._indexing:
                if not is_advancing or self.core.clock.monotonic_s() >= stop_s:
                    return is_advancing
        except TopicsError:
            # Told, and tried again: a generator that has raised would have nothing more to do.
            self._indexing = self.core.index_all_tags()
            raise
        return False

    def _failed(self, error: OSError) -> TopicsError:
        """What was under way is abandoned; the log has all of it, so it can begin again later."""
        if error.errno in FULL:
            return DiskFull("no space left on the device for a checkpoint; writes and reads go on")
        if error.errno in NO_FILES:
            return typed(error, "a checkpoint will be repeated")
        poisoned = Poisoned(f"a checkpoint failed: {error}")
        self.core.committer.fail(poisoned)
        return poisoned

    @property
    def is_running(self) -> bool:
        """Whether sliced work is under way: a checkpoint, a scrub, a promotion, a sweep of tags."""
        return self._running is not None

    def give_up(self) -> None:
        """Ends what is under way where it stands."""
        running, self._running = self._running, None
        if isinstance(running, Generator):
            running.close()

    def close(self) -> None:
        """Gives up what is under way, leaving no unfinished files."""
        self.give_up()
        self.backups.close()
        for _ in self.core.tiering.finish():
            self.core.background.jobs.pause()
        self.core.abandon()
        unchanged = Closed("the engine closed before this was done; nothing was changed")
        self.core.preparing.give_up(unchanged)
        self.eraser.give_up(closed())

    def checkpoint_now(self) -> None:
        """Takes a checkpoint to its end."""
        self.drain()
        self._begin_checkpoint()
        self.drain()

    @property
    def is_far_behind(self) -> bool:
        return self.core.unsealed.replayed_generations >= GENERATIONS_READY_MAX

    def catch_up(self) -> Iterator[None]:
        """Takes the checkpoint that one process after the other did not live long enough for."""
        self._begin_checkpoint()
        while self._work(self.core.clock.monotonic_s() + TICK_S):
            yield

    def finish(self, work: Iterator[None]) -> None:
        """Takes other sliced work to its end, after what runs already."""
        self.drain()
        self._running = work
        self.drain()

    def step(self) -> bool:
        """One slice of what is under way, and of nothing else; True when that has not ended."""
        return self._work(0.0)

    def drain(self) -> None:
        """Takes what is under way to its end."""
        # Routers have their turns in `run`: a backlog of theirs is nothing to wait for.
        while self._work(self.core.clock.monotonic_s() + 1.0):
            self.core.background.jobs.pause()

    def begin_checkpoint(self) -> bool:
        """Begins a checkpoint for `run` to go on with; False while other work is under way."""
        if self._running is not None:
            return False
        self._begin_checkpoint()
        return True

    def _begin_checkpoint(self) -> None:
        self._running = self._checkpoint_then_relocate()

    def _keep_up(self) -> Iterator[None]:
        """A checkpoint that is due, in the middle of something long."""
        if self._wants_checkpoint(self.core.clock.monotonic_s()):
            yield from self._checkpoint_then_relocate()

    def _checkpoint_then_relocate(self) -> Iterator[None]:
        self._checkpoint_s = self.core.clock.monotonic_s()
        self.core.unsealed.seal()
        self._logged_bytes = self.core.log.bytes_written_total
        unsealed, was_full = self.core.unsealed, self.core.log.returns_total > self._returns
        self._returns, self._is_trim_due = self.core.log.returns_total, False
        self._full_disk_s = min(2 * self._full_disk_s, FULL_DISK_S_MAX)
        with self.core.sealing():
            yield from checkpoint(self.core)
            self._full_disk_s = FULL_DISK_S
            # By the second one, and not by one more for whatever is written meanwhile.
            self._is_trim_due = was_full and (unsealed.is_untrimmed or unsealed.is_held)
            yield from relocation.relocate(self.core)

    def _tick(self, now_s: float) -> None:
        core, settings = self.core, self.core.settings
        ceilings.close_idle(core, settings.idle_close_ms / 1000)
        self._sync_inline(now_s)
        self._settle_idle()
        stages.expire(core)
        for topic_id in list(core.unfolded):
            topic = core.by_id.get(topic_id)
            if topic is None or self._fold(topic):
                core.unfolded.discard(topic_id)
        # A checkpoint would make a promotion begin again.
        is_free = self._running is None and not core.preparing.promotions
        self._reclaimer.tick(now_s)
        if is_free and self._wants_checkpoint(now_s):
            self._begin_checkpoint()
        elif is_free and self._reclaimer.is_due(now_s):
            self._running = self._reclaimer.slices(self._is_urgent)
        core.log_unsaid()
        core.committer.flush()
        core.committer.poll()
        if settings.gc_freeze:
            self._freezer.tick(now_s)

    def _is_urgent(self) -> bool:
        """Whether rewriting has to make way: the log must not grow for as long as that takes."""
        now_s = self.core.clock.monotonic_s()
        is_asked = bool(self.core.preparing.promotions) or self._erases
        return is_asked or self._wants_checkpoint(now_s)

    def _wants_checkpoint(self, now_s: float) -> bool:
        """The three seal triggers: bytes, records, age. And segments that wait to switch tiers.

        The log itself counts half: cursors, leases and deletes may go on for days without a record
        being written, and it must not grow as long. Neither may it with every start: what was
        replayed counts like what was written, and so do many starts after one another. And what is
        to leave the disk is not kept there because nobody writes any more, nor because a full disk
        had room for the delete and for nothing else.
        """
        core, settings = self.core, self.core.settings
        unsealed, segments = core.unsealed, core.segments
        age_s = now_s - self._checkpoint_s
        is_asked = bool(unsealed.records or unsealed.is_untrimmed or unsealed.is_held)
        is_asked = is_asked or bool(segments.garbage)
        is_returned = self._is_trim_due or core.log.returns_total > self._returns
        return (
            unsealed.bytes >= settings.seal_bytes
            or self.core.log.bytes_written_total - self._logged_bytes >= 2 * settings.seal_bytes
            or unsealed.records >= settings.seal_records
            or unsealed.replayed_generations >= GENERATIONS_MAX
            or core.tiering.wants_switch
            or (segments.leaving_bytes >= settings.seal_bytes and not unsealed.is_untrimmed)
            or (age_s >= self._reclaimer.step_s and is_asked)
            or (age_s >= self._full_disk_s and is_returned)
        )

    def _fold(self, topic: Topic) -> bool:
        tags = topic.tags
        if tags is None:
            return True
        if tags.entries > 2 * topic.live_count + 1024 and self._running is None:
            self._running = tags.sweep(partial(deletes.is_live, topic))
        return tags.fold(FOLD_KEYS)

    def _sync_inline(self, now_s: float) -> None:
        """Without threads, the sync interval is kept here."""
        if now_s - self._synced_s < self.core.settings.sync_interval_ms / 1000:
            return
        self._synced_s = now_s
        self.core.log.interval()

    def _settle_idle(self) -> None:
        """Makes MARKS durable when nothing was written since the last look."""
        core = self.core
        positions = core.log.positions
        is_idle, self._positions = positions == self._positions, positions
        if is_idle and core.log.marks.is_dirty:
            core.log.settle_soon(in_thread=core.settings.threads)
