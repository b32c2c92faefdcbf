"""Repair: a directory that recovery refuses opens again, with every loss written down.

Nothing that is damaged is deleted: the old log, the old snapshots and the damaged segments are
moved into `broken/`. The order makes it safe to be cut short: a new generation of the log, new
segments and one new snapshot are made durable first; until that snapshot stands, the directory is
as it was, and from then on recovery needs nothing of what is moved aside afterwards.
"""

from __future__ import annotations

import msgspec

from topics.clock import Clock, SystemClock, iso_time
from topics.engine.commit.core import Core
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.offline.findings import Progress, Report
from topics.engine.offline.salvage import build
from topics.engine.offline.salvaged import Base, Salvage
from topics.engine.recovery.inventory import number_of
from topics.engine.recovery.recovery import EPOCH_JUMP, Recovery
from topics.engine.state.segments import Segments
from topics.engine.upkeep.checkpoint import take
from topics.errors import CorruptData, FormatMismatch
from topics.settings import Settings
from topics.storage import marks, snapshot, wal_files, wal_reader
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, Lock, join, owner_name, shown
from topics.storage.marks import ANYTHING, Known
from topics.storage.readonly import ReadOnlyFs
from topics.storage.snapshot import Snapshot, TopicRecord
from topics.storage.tiers import Store
from topics.storage.wal_stats import WalStats

# More than the topics whose creation may be among frames that nobody can count.
ID_JUMP = 1 << 16


class Lost(msgspec.Struct):
    """Seqs that can not be read any more, both ends inclusive."""

    topic: str
    epoch: int
    first: int
    last: int


class Repaired(msgspec.Struct):
    # Whether the directory was changed.
    applied: bool = False
    # What the check found before.
    problems: list[dict[str, object]] = msgspec.field(default_factory=list)
    lost: list[Lost] = msgspec.field(default_factory=list)
    # Frames of the log that are missing; null when nobody can say how many.
    frames_lost: int | None = 0
    # Topics that get a new epoch, because nobody can say how far they went.
    epochs_renewed: list[str] = msgspec.field(default_factory=list)
    # Topics whose name is lost, under the names they are given.
    renamed: list[str] = msgspec.field(default_factory=list)
    # How many topics are known to be gone altogether; there may be more among the missing frames.
    topics_vanished: int = 0
    set_aside: list[str] = msgspec.field(default_factory=list)
    # Problems that are still there afterwards.
    remaining: list[dict[str, object]] = msgspec.field(default_factory=list)

    @property
    def loses(self) -> bool:
        return bool(self.lost or self.epochs_renewed or self.renamed or self.frames_lost != 0)


def repair(
    fs: Fs,
    root: str,
    *,
    accept_loss: bool,
    settings: Settings | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Repaired:
    """Says what would be lost, and with `accept_loss` writes it. Raises DirectoryLocked.

    Takes the directory's lock only to write: who asks for a report keeps owners away himself.
    """
    clock = clock or SystemClock()
    root = fs.resolve(root)
    settings = msgspec.structs.replace(settings or Settings(), threads=False)
    owner = f"topics repair, {owner_name()}, since {iso_time(clock.wall_ms())}"
    lock = fs.lock(join(root, "LOCK"), owner) if accept_loss else None
    try:
        before = check(fs, root, store=store, clock=clock, progress=progress)
        if before.ok:
            return Repaired()
        work = _Repair(fs if accept_loss else ReadOnlyFs(fs), root, settings, store, clock)
        done = work.plan(before)
        if lock is not None:
            work.apply(done, lock)
    finally:
        if lock is not None:
            lock.release()
    if done.applied:
        done.remaining = check(fs, root, store=store, clock=clock).problems
    return done


class _Repair:
    def __init__(
        self, fs: Fs, root: str, settings: Settings, store: Store | None, clock: Clock
    ) -> None:
        self.data = DataDir(fs, root)
        self._settings = settings
        self._store = store
        self._clock = clock
        self._found: Salvage
        self._known = Known()
        self._generation = 1
        self._spare: list[str] = []

    # -- what there is -----------------------------------------------------------------------

    def plan(self, before: Report) -> Repaired:
        """Rebuilds from each base there is and chooses the one that loses the least."""
        try:
            self.data.check_format()
        except FormatMismatch as error:
            if "version" in error.detail:
                raise
        except FileNotFoundError:
            pass
        self._known = self._read_marks()
        best: Salvage | None = None
        for base in self._bases():
            found = self._build(base)
            if best is None or found.cost < best.cost:
                best = found
            if found.cost == (0, 0, 0):
                break
        assert best is not None
        self._found = best
        by_id = best.core.by_id
        doubtful = sorted(best.unproved | best.nameless)
        return Repaired(
            problems=before.problems,
            lost=[Lost(t.name, t.epoch, first, last) for t, first, last in best.lost],
            frames_lost=best.lost_frames,
            epochs_renewed=[by_id[i].name for i in doubtful],
            renamed=[by_id[i].name for i in sorted(best.nameless) if not by_id[i].config_version],
            topics_vanished=len(best.vanished),
        )

    def _read_marks(self) -> Known:
        """What MARKS says; of what it does not say any more nobody knows how far it went."""
        data = self.data
        lines = wal_reader.list_timelines(data)
        try:
            known = marks.read(data.fs, data.root)
        except CorruptData:
            keys = [(line.generation, line.shard) for line in lines]
            generation = max([g for g, _ in keys], default=0)
            return Known(generation, is_ready=True, lines=dict.fromkeys(keys, ANYTHING))
        try:
            known.require_undoubted(data.fs.boot_id())
        except CorruptData:
            known.lines |= dict.fromkeys(known.doubtful, ANYTHING)
        spare = [x for x in lines if wal_reader.is_spare(x, known)]
        self._spare = [f.name for x in spare for f in x.files]
        return known

    def _bases(self) -> list[Base]:
        data = self.data
        bases: list[Base] = []
        readable: list[tuple[Snapshot, list[TopicRecord]]] = []
        for number in snapshot.numbers(data.fs, data.snapshots):
            try:
                found = snapshot.read(data.fs, data.snapshots, number)
            except CorruptData:
                continue
            bases.append(Base(*found, newer=list(readable)))
            readable.append(found)
        lines = wal_reader.list_timelines(data)
        firsts = [x.files[0].number for x in lines if x.generation == lines[0].generation]
        if lines and lines[0].generation == 1 and set(firsts) == {1}:
            # The log goes back to its beginning: it alone says everything.
            bases.append(Base(None, [], uses_segments=False, newer=readable))
        elif not bases:
            bases.append(Base(None, []))
        return bases

    def _build(self, base: Base) -> Salvage:
        data, fs = self.data, self.data.fs
        segments = Segments(fs, data.segments, self._store, self._settings.block_cache_bytes)
        core = Core(data, self._clock, self._settings, segments)
        # Timelines carry what was found about them: each build has its own.
        lines = wal_reader.with_missing(wal_reader.list_timelines(data), self._known)
        newest = max(snapshot.numbers(fs, data.snapshots), default=0)
        found = build(core, base, lines, newest)
        found.lines = [x for x in lines if (x.generation, x.shard) in found.clean]
        seen = [x.generation for x in lines]
        if base.summary is not None:
            seen.append(base.summary.generation)
        # Behind everything that is there, also where MARKS is older than it.
        self._generation = max([self._known.next_generation, *(g + 1 for g in seen)])
        return found

    # -- what becomes of it ------------------------------------------------------------------

    def apply(self, done: Repaired, lock: Lock) -> None:
        """Writes the rebuilt state and lets go of the directory."""
        found, data = self._found, self.data
        core = found.core
        self._mend_format(core.numbers.snapshot + 1, done)
        data.prepare()
        recovery = Recovery(core, WalStats())
        recovery.replay = found.replay
        recovery.judge(found.lines, found.clean)
        # A topic whose creation is among the lost frames may have been seen.
        ids = ID_JUMP if done.frames_lost is None else done.frames_lost
        core.numbers.skip(epochs=EPOCH_JUMP, topic_ids=ids)
        for name in self._spare:
            self._move(data.wal, name, core.numbers.snapshot + 1, done)
        # What is demanded of the old log stays so until the new snapshot makes it idle.
        earlier = {k: v for k, v in self._known.lines.items() if k[0] < self._generation}
        recovery.open_log(self._generation, earlier)
        engine = Engine(core, recovery, lock)
        try:
            recovery.settle_losses()
            for topic_id in sorted(found.unproved | found.nameless):
                recovery.renew_epoch(core.by_id[topic_id])
            recovery.write_down()
            recovery.become_ready()
            for _ in take(core):
                pass
            self._set_aside(core, done)
            done.applied = True
        finally:
            engine.close()

    def _mend_format(self, number: int, done: Repaired) -> None:
        data = self.data
        try:
            data.check_format()
        except FormatMismatch:
            data.fs.mkdir(data.broken)
            self._move(data.root, "FORMAT", number, done)
        except FileNotFoundError:
            pass

    def _set_aside(self, core: Core, done: Repaired) -> None:
        """Moves what the new snapshot does not need into broken/."""
        data, number = self.data, core.numbers.snapshot
        for name in data.fs.listdir(data.wal):
            parsed = wal_files.parse_file_name(name)
            if parsed is not None and parsed[0] < core.generation:
                self._move(data.wal, name, number, done)
        for name in data.fs.listdir(data.snapshots):
            parsed_number = snapshot.parse_file_name(name)
            if parsed_number is not None and parsed_number < number:
                self._move(data.snapshots, name, number, done)
        known = {*core.segments.live, *core.segments.garbage}
        for name in data.fs.listdir(data.segments):
            if number_of(name) not in known:
                self._move(data.segments, name, number, done)

    def _move(self, directory: str, name: str, number: int, done: Repaired) -> None:
        data = self.data
        target = f"repair-{number:06d}-{name}"
        data.fs.rename(join(directory, name), join(data.broken, target))
        data.fs.sync_dir(data.broken)
        data.fs.sync_dir(directory)
        done.set_aside.append(f"broken/{shown(target)}")
