"""The life of an engine: opening, recovery in steps, driving, closing.

One thread makes all calls. After a failed sync nothing more is written, and a note is left for the
next start, which then trusts nothing that it can not see synced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from topics.clock import Clock, SystemClock, iso_time
from topics.engine.commit.core import Core
from topics.engine.commit.ticket import T, Ticket
from topics.engine.ops.ceilings import close as close_ceiling
from topics.engine.ops.resident import write_account
from topics.engine.recovery.recovery import Recovery
from topics.engine.routing import forwarding
from topics.engine.state import retention
from topics.engine.state.segments import ColdMiss, Segments
from topics.engine.state.topic import Topic
from topics.engine.upkeep import freezing
from topics.engine.upkeep.maintenance import Maintenance
from topics.engine.upkeep.scrub import Scrubbed, scrub
from topics.errors import Closed, DiskFull, Poisoned, StorageError, WrongThread
from topics.settings import EMBEDDED_FILE_BYTES, Settings, check
from topics.storage.datadir import DataDir
from topics.storage.disk_errors import typed
from topics.storage.fs import AnyPath, Fs, OsFs, join, make_directory, owner_name, text_of
from topics.storage.tiers import open_store
from topics.storage.wal_stats import WalStats

SLICE_S = 0.002


class Lifecycle:
    """What all calls of Engine stand on: it is open, its log is sound, its topics are recovered.

    Owns the core, maintenance and the directory's lock, from `opening` to `close`.
    """

    def __init__(self, core: Core, recovery: Recovery, lock: Any) -> None:
        self.core = core
        self.wal_stats = recovery.stats
        self._recovery = recovery
        self._lock = lock
        self.maintenance = Maintenance(core)
        self._is_closed = False
        # The thread that may call.
        self._thread = get_ident()
        core.committer.on_poison = self._poisoned

    # -- life --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: AnyPath,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Opens or creates a data directory and recovers it, for calls from this thread.

        Without settings its log has small files, so that the directory of a few records is small.
        Raises DirectoryLocked, FormatMismatch or CorruptData, with the directory as it was.
        """
        settings = settings or Settings(wal_file_bytes=EMBEDDED_FILE_BYTES)
        steps = cls.opening(path, clock=clock, fs=fs, settings=settings)
        while True:
            try:
                next(steps)
            except StopIteration as ready:
                engine: Self = ready.value
                break
        try:
            engine.finish_recovery()
        except BaseException:
            engine.close()
            raise
        return engine

    @classmethod
    def opening(
        cls,
        path: AnyPath,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        settings: Settings | None = None,
    ) -> Generator[float, None, Self]:
        """Opens in steps: yields the progress of recovery, returns the engine.

        Topics of class memory may still be on their way when it returns (`finish_recovery`).
        """
        if not __debug__:
            raise Poisoned("topics checks itself with assertions; do not run python with -O")
        fs, clock = fs or OsFs(), clock or SystemClock()
        settings = check(settings or Settings())
        path = fs.resolve(text_of(path))
        data = DataDir(fs, path)
        lock = recovery = None
        try:
            make_directory(fs, path)
            data.check_ours()
            lock = fs.lock(join(path, "LOCK"), f"{owner_name()}, since {iso_time(clock.wall_ms())}")
            # The directory is ours: a server may listen now.
            yield 0.0
            data.prepare()
            store = open_store(settings.cold_dir, fs) if settings.cold_dir else None
            segments = Segments(fs, data.segments, store, settings.block_cache_bytes)
            core = Core(data, clock, settings, segments)
            recovery = Recovery(core, WalStats())
            yield from recovery.steps()
            if settings.gc_freeze:
                freezing.freeze_recovered()
        except BaseException as error:
            if recovery is not None:
                recovery.abandon()
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise typed(error, f"{path} can not be opened") from error
            raise
        engine = cls(core, recovery, lock)
        try:
            yield from engine._catch_up()
        except BaseException:
            engine.close()
            raise
        return engine

    def _catch_up(self) -> Iterator[float]:
        """So that no number of short lives makes the log long."""
        if self.maintenance.is_far_behind:
            self.finish_recovery()
            # Nothing but the checkpoint has failed: the log is what it was.
            with contextlib.suppress(DiskFull, StorageError):
                for _ in self.maintenance.catch_up():
                    yield 1.0

    @property
    def is_recovering(self) -> bool:
        """Whether topics of class memory are still to be brought back."""
        return bool(self._recovery.replay.deferred)

    def recover_one(self) -> None:
        """Brings back one topic of class memory that was left for after readiness."""
        self._check_thread()
        for topic_id in self._recovery.replay.deferred:
            self._finish_topic(topic_id)
            return

    def finish_recovery(self) -> None:
        """Brings back the topics of class memory that were left for after readiness."""
        self._check_thread()
        self._recover_rest()
        if self.core.settings.gc_freeze:
            freezing.freeze_rest()

    def _recover_rest(self) -> None:
        while self.is_recovering:
            self.recover_one()

    def _finish_topic(self, topic_id: int) -> None:
        topic = self.core.by_id.get(topic_id)
        with self.core.segments.replaying():
            if topic is not None:
                # A try that ended in the middle may have left it with more than its caps allow.
                retention.evict(topic, self.core.segments.spans)
            self._recovery.replay.finish_deferred(topic_id)
        if topic is not None and not topic.dropped:
            self.core.recount(topic)
            self.core.log_estimates(topic)

    def close(self) -> None:
        """Makes everything durable, marks the log as cleanly ended, lets go of the directory."""
        self._check_thread()
        if self._is_closed:
            return
        core = self.core
        if core.committer.poison is None:
            # Stages that are written, commits that are read: they arrive, like all that was asked.
            with contextlib.suppress(Poisoned):
                core.stage_files.finish()
        self._is_closed = True
        try:
            self.maintenance.close()
            if core.committer.poison is None:
                self._close_log()
        finally:
            core.log.close()
            core.background.jobs.close()
            core.segments.close()
            self._lock.release()

    def _close_log(self) -> None:
        core = self.core
        self.finish_recovery()
        core.log_unsaid()
        # What is on its way first: an account says what became of every seq that was acknowledged.
        core.committer.sync()
        resident = [topic for topic in core.by_id.values() if topic.durability == "ephemeral"]
        written = [write_account(core, topic) for topic in resident]
        core.committer.sync()
        # All of it is durable: a machine that crashes later on has nothing of it to tell.
        for topic in [core.by_id[key] for key in core.open_topics if key in core.by_id]:
            if topic.config.durability == "disk":
                close_ceiling(core, topic)
        core.committer.sync()
        # On a full disk it is no clean end: nobody would know the heads of the ephemeral topics.
        is_clean = all(ticket.error is None for ticket in written)
        core.log.write_marks(is_clean=is_clean)
        core.log.wait()
        core.committer.poll()
        core.settle_marks()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- driving -----------------------------------------------------------------------------

    def on_durable(self, notify: Callable[[], None]) -> None:
        """`notify` is called from a sync thread whenever `poll` may have something to do."""
        self.core.on_durable(notify)

    def on_backlog(self, wake: Callable[[], None]) -> None:
        """`wake` is called whenever routers have got something to forward."""
        self.core.routers.wake = wake

    @property
    def has_backlog(self) -> bool:
        """Whether routers have something to forward; perhaps not yet."""
        return bool(self.core.routers.dirty)

    def flush(self) -> None:
        """Writes what was submitted; ungated tickets have ended when it returns."""
        self._guard(self.core.committer.flush)

    def poll(self) -> None:
        """Ends the tickets of what has become durable; what is much takes several calls."""
        self._guard(self._poll)

    def _poll(self) -> None:
        self.core.committer.poll()
        self.core.stage_files.poll()

    def sync(self) -> None:
        """Makes everything submitted so far durable."""
        self._guard(self.core.committer.sync)

    def maintain(self, budget_s: float = SLICE_S) -> bool:
        """A slice of background work; True when there is more to do at once."""
        self._check_writable()
        if self.is_recovering:
            # A checkpoint would take what is still to come for what is not there.
            self.recover_one()
            return True
        return self._guard(lambda: self.maintenance.run(budget_s))

    def forward_now(self) -> bool:
        """Forwards what the routers have, within bounds; True when there is more at once.

        Raises ColdMiss for what has to be fetched first.
        """
        return self._guard(lambda: not self.is_recovering and forwarding.forward(self.core))

    def forward(self) -> bool:
        """Like `forward_now`, but waits for the cold store."""
        return self._fetching(self.forward_now)

    def checkpoint(self) -> None:
        """Seals, snapshots and trims now."""
        self._check_writable()
        self._recover_rest()
        self._guard(self.maintenance.checkpoint_now)

    def begin_checkpoint(self) -> bool:
        """Begins a checkpoint for `maintain` to go on with; False while other work is under way."""
        self._check_writable()
        self._recover_rest()
        return self.maintenance.begin_checkpoint()

    def scrub(
        self, *, keep_aside: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> Scrubbed:
        """Erases from the disk what was deleted, evicted or expired so far.

        `progress` is called with how many segments were looked at, and how many there are.
        """
        self._check_writable()
        self._recover_rest()
        done = Scrubbed()
        work = scrub(self.core, done, keep_aside=keep_aside, progress=progress)
        self._guard(lambda: self.maintenance.finish(work))
        return done

    def _guard(self, call: Callable[[], T]) -> T:
        """Runs a call that touches the log; one that finds it failed ends what is on its way."""
        self._check_writable()
        try:
            return call()
        except Poisoned as error:
            self.core.committer.fail(error)
            raise

    def _poisoned(self, error: Poisoned) -> None:
        self.core.data.poison(str(error))
        self.core.preparing.give_up(error)
        self.maintenance.eraser.give_up(error)

    def _wait(self, ticket: Ticket[T]) -> T:
        def wait() -> T:
            self.core.preparing.finish_for(ticket)
            while not ticket.done and self.core.stage_files.is_busy:
                self.core.stage_files.finish()
                self.core.committer.sync()
            return self.core.committer.wait(ticket)

        result = self._guard(wait)
        if self.maintenance.due():
            # What fails here is not this operation, which has ended well: the next one is told.
            with contextlib.suppress(DiskFull, StorageError):
                self.maintain()
        return result

    def _fetching(self, read: Callable[[], T]) -> T:
        """Repeats a read until nothing of it is missing from the cold store's cache."""
        while True:
            try:
                return read()
            except ColdMiss as miss:
                segments = self.core.segments
                segments.admit_all(miss.ahead, segments.ask(miss.ahead).read())

    def _check_thread(self) -> None:
        """Raises WrongThread, with nothing touched."""
        if get_ident() != self._thread:
            raise WrongThread(
                "an engine belongs to the thread that opened it, and this is another; nothing was "
                "done. Let one thread make every call: docs/embedding.md shows how"
            )

    def _check_open(self) -> None:
        self._check_thread()
        if self._is_closed:
            raise Closed("the engine is closed")

    def _check_writable(self) -> None:
        if self._is_closed or self.core.committer.poison is not None or get_ident() != self._thread:
            self._check_open()
            raise Poisoned(
                "storage failed and nothing more is written; restart to recover: "
                f"{self.core.committer.poison}"
            )

    def _topic(self, name: str) -> Topic:
        topic = self.core.by_name.get(name)
        if topic is None or self._is_closed or get_ident() != self._thread:
            self._check_open()
            topic = self.core.topic(name)
        if topic.id in self._recovery.replay.deferred:
            self._finish_topic(topic.id)
        return topic
