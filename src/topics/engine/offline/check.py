"""Offline verification of a data directory: every byte that has a checksum, and what it adds up to.

Reads through a filesystem that refuses to write, so the directory is left as it is. Damage in what
recovery or the fallback to the older snapshot needs is a problem; damage in a file that nothing
needs any more, a torn end, unknown files and what was set aside are warnings. At the end the
snapshot and the log are folded into topics in memory, exactly as recovery does it, and each topic
is held against its invariants.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.clock import Clock, SystemClock
from topics.engine.commit.core import Core
from topics.engine.offline import invariants
from topics.engine.offline.check_segments import check_segments
from topics.engine.offline.findings import Progress, Report
from topics.engine.recovery.batches import committed_stages
from topics.engine.recovery.inventory import Chosen, choose_snapshot, enter_snapshot, number_of
from topics.engine.recovery.replay import Replay
from topics.engine.state.segments import Segments
from topics.errors import CorruptData, FormatMismatch, StorageError
from topics.settings import Settings
from topics.storage import frames, marks, snapshot, stage_file, wal_files, wal_reader
from topics.storage.datadir import OF_THE_SYSTEM, ROOT_NAMES, DataDir
from topics.storage.fs import Fs, join, opened, shown
from topics.storage.marks import Known
from topics.storage.readonly import ReadOnlyFs
from topics.storage.snapshot import Snapshot
from topics.storage.stage_file import StageId
from topics.storage.tiers import Store
from topics.storage.wal_reader import Damage, LogFile, Timeline

SPARE = "of a start that never became ready; the next start removes it"


def check(
    fs: Fs,
    root: str,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verifies everything. Raises OSError when the directory can not be read as one of ours."""
    return Checker(ReadOnlyFs(fs), fs.resolve(root), store, clock or SystemClock(), progress).run()


class Checker:
    def __init__(
        self, fs: Fs, root: str, store: Store | None, clock: Clock, progress: Progress | None
    ) -> None:
        self.data = DataDir(fs, root)
        self.store = store
        self.report = Report()
        self._progress = progress
        self._bytes_all = 0
        settings = Settings(threads=False)
        segments = Segments(fs, self.data.segments, store, settings.block_cache_bytes)
        self.core = Core(self.data, clock, settings, segments)
        # Whether what was read so far can be folded into topics.
        self._folds = True
        # Stages that commits name which a kept snapshot needs.
        self._named: set[StageId] = set()

    def run(self) -> Report:
        try:
            self._names()
            if self._format_is_ours():
                summaries = self._snapshots()
                check_segments(self, summaries)
                self._log(summaries)
        finally:
            self.core.segments.close()
        return self.report

    def read(self, count: int) -> None:
        """Notes that one more file was looked at."""
        checked = self.report.checked
        checked.files += 1
        checked.bytes += count
        if self._progress is not None:
            self._progress(min(checked.bytes, self._bytes_all), self._bytes_all)

    # -- names -------------------------------------------------------------------------------

    def _names(self) -> None:
        data, fs = self.data, self.data.fs
        for name in fs.listdir(data.root):
            if name not in ROOT_NAMES and name != OF_THE_SYSTEM:
                self.report.warn(shown(name), "unknown_file", "topics did not put it here")
        known: list[tuple[str, Callable[[str], object]]] = [
            (data.wal, wal_files.parse_file_name),
            (data.snapshots, snapshot.parse_file_name),
            (data.stages, stage_file.parse_file_name),
        ]
        for path, parse in known:
            for name in fs.listdir(path):
                if parse(name) is None:
                    self.report.warn(self.short(join(path, name)), "unknown_file", "not read")
        for path in (data.broken, data.quarantine):
            for name in fs.listdir(path):
                aside = self.short(join(path, name))
                self.report.warn(aside, "set_aside", "kept for you; `topics scrub` removes it")
        if data.is_poisoned:
            self.report.warn("POISONED", "poisoned", "a sync failed; the next start recovers")
        for path, parse in (*known, (data.segments, number_of)):
            names = [name for name in fs.listdir(path) if parse(name) is not None]
            self._bytes_all += sum(self._size(join(path, name)) for name in names)

    def _size(self, path: str) -> int:
        with opened(self.data.fs, path, writable=False) as file:
            return file.size()

    def short(self, path: str) -> str:
        return shown(path.removeprefix(self.data.root).lstrip("/"))

    def _format_is_ours(self) -> bool:
        try:
            self.data.check_format()
            self.read(self._size(join(self.data.root, "FORMAT")))
        except FileNotFoundError:
            self.report.problem("FORMAT", "format_missing", "this is no topics directory")
            return False
        except FormatMismatch as error:
            self.report.problem("FORMAT", "format_unreadable", error.message)
            return False
        return True

    # -- snapshots ---------------------------------------------------------------------------

    def _snapshots(self) -> list[Snapshot]:
        """The readable ones of the two that are kept, newest first; enters the newest."""
        data, kept = self.data, []
        numbers = snapshot.numbers(data.fs, data.snapshots)
        for place, number in enumerate(numbers):
            path = join(data.snapshots, snapshot.file_name(number))
            self.report.checked.snapshots += 1
            self.read(self._size(path))
            try:
                summary, _ = snapshot.read(data.fs, data.snapshots, number)
                if place < 2:
                    kept.append(summary)
            except CorruptData as error:
                where = self.short(path)
                self.report.note(place < 2, where, "snapshot_damaged", error.message)
        try:
            chosen: Chosen = choose_snapshot(data)
            enter_snapshot(self.core, chosen)
        except StorageError as error:
            self._can_not_fold(error)
        return kept

    def _can_not_fold(self, error: StorageError) -> None:
        self._folds = False
        if self.report.ok:
            self.report.problem(".", "does_not_open", error.message, **error.detail)
        else:
            self.report.warn(".", "not_replayed", f"topics were not checked: {error.message}")

    # -- the log -----------------------------------------------------------------------------

    def _log(self, summaries: list[Snapshot]) -> None:
        lines = wal_reader.list_timelines(self.data)
        known = self._marks(lines)
        base = summaries[0] if summaries else None
        try:
            wanted = wal_reader.wanted(base, lines, known)
        except CorruptData as error:
            self.report.problem("wal", "log_missing", error.message)
            self._can_not_fold(CorruptData("the log is not whole"))
            wanted = [(line, line.files[0].number) for line in lines]
        for line in lines:
            if wal_reader.is_spare(line, known):
                for log_file in line.files:
                    self.report.warn(self.short(log_file.path), "left_over", SPARE)
        lines = [line for line in lines if not wal_reader.is_spare(line, known)]
        first_wanted = {(line.generation, line.shard): first for line, first in wanted}
        for line in lines:
            first = first_wanted.get((line.generation, line.shard))
            spent = [f for f in line.files if first is None or f.number < first]
            needed = [f for f in spent if _is_needed(f, summaries[1:])]
            for log_file in spent:
                if log_file not in needed:
                    self._spent(log_file)
            if needed:
                self._outlived(line, needed, summaries, known)
        self._fallback(summaries, known)
        replay = Replay(self.core, is_routed=wal_reader.is_routed(self.data, wanted))
        for line, first in wanted:
            self._timeline(line, first, replay)
        if self._folds:
            self._topics(replay)
        self._named.update(replay.spent)
        kept = {stage for each in summaries for stage, *_ in each.spent_stages}
        self._stages(kept | self._named)

    def _marks(self, lines: list[Timeline]) -> Known:
        """What MARKS says, or nothing that anything could be held against."""
        known = Known(max((x.generation for x in lines), default=0), is_ready=True)
        try:
            found = marks.read(self.data.fs, self.data.root)
            self.read(self._size(join(self.data.root, marks.NAME)))
            found.require_undoubted(self.data.fs.boot_id())
        except CorruptData as error:
            self.report.problem(marks.NAME, "marks_damaged", error.message)
            self._can_not_fold(CorruptData("nobody can say how far the log goes"))
            return known
        for what in found.damage:
            self.report.warn(marks.NAME, "marks_damaged", f"{what}; the rest is enough")
        return found

    def _fallback(self, summaries: list[Snapshot], known: Known) -> None:
        """The older snapshot is only of use with the log that it needs."""
        for older in summaries[1:]:
            try:
                # Timelines of its own: they carry what a snapshot says of them.
                wal_reader.wanted(older, wal_reader.list_timelines(self.data), known)
            except CorruptData as error:
                self.report.problem("wal", "log_missing", f"{error.message} (older snapshot)")

    def _spent(self, log_file: LogFile) -> None:
        """A file that no snapshot needs any more."""
        raw = self._read_spent(log_file.path)
        where = self.short(log_file.path)
        header = wal_reader.header_of(raw, log_file)
        if header is None:
            self.report.warn(where, "log_corrupt", "the header is damaged")
            return
        groups = frames.scan_groups(raw, header.file_id)
        self._count(len(groups.starts), len(groups.frames))
        if groups.damaged:
            self.report.warn(where, "log_corrupt", f"damage at byte {groups.end}")

    def _outlived(
        self, line: Timeline, needed: list[LogFile], summaries: list[Snapshot], known: Known
    ) -> None:
        """Files in front of the newest snapshot, from the first that the older one needs."""
        newest, older = summaries[0], summaries[1:]
        vouch = known.lines.get((line.generation, line.shard), marks.NOTHING)
        judged = Timeline(line.generation, line.shard, line.files, vouch=vouch, mark=vouch.mark)
        first = needed[0].number
        for summary in older:
            if first == wal_reader.first_file(summary, line.generation, line.shard):
                judged.first_lsn = wal_reader.first_lsn(summary, line.generation, line.shard)
        for groups in wal_reader.read_timeline(
            self.data, judged, first_number=first, read=self._read_spent
        ):
            self._count(len(groups.starts), len(groups.frames))
            self._named.update(committed_stages(groups))
            # What follows is read with the newest snapshot, which says where that begins.
            if needed[-1].path in judged.ends and needed[-1].number < line.files[-1].number:
                upto = wal_reader.first_lsn(newest, line.generation, line.shard)
                if judged.damage is None and judged.lsn not in (None, upto):
                    at = judged.ends[needed[-1].path]
                    judged.damage = Damage(needed[-1].path, at, is_corruption=True)
                break
        damage = judged.damage
        if damage is not None and damage.is_corruption:
            self.report.problem(
                self.short(damage.path), "log_corrupt", f"damage at byte {damage.offset}"
            )
        elif damage is not None:
            detail = f"torn end at byte {damage.offset}: whoever goes back to it cuts it"
            self.report.warn(self.short(damage.path), "torn_end", detail, offset=damage.offset)

    def _read_spent(self, path: str) -> bytes:
        raw = wal_reader.read_log(self.data.fs, path, is_strict=False)
        self.read(len(raw))
        return raw

    def _count(self, groups: int, frames_read: int) -> None:
        self.report.checked.groups += groups
        self.report.checked.frames += frames_read

    def _timeline(self, line: Timeline, first: int, replay: Replay) -> None:
        def read(path: str) -> bytes:
            raw = wal_reader.read_log(self.data.fs, path)
            self.read(len(raw))
            return raw

        try:
            for groups in wal_reader.read_timeline(self.data, line, first_number=first, read=read):
                self._count(len(groups.starts), len(groups.frames))
                if self._folds:
                    self._fold(replay, groups, line)
        except CorruptData as error:
            path = self.short(str(error.detail["path"]))
            self.report.problem(path, "log_corrupt", error.message)
            self._can_not_fold(CorruptData("the log is damaged"))
        if line.damage is None:
            return
        where, at = self.short(line.damage.path), line.damage.offset
        if line.damage.is_corruption:
            detail = f"damage at byte {at}, in front of data known to be durable"
            self.report.problem(where, "log_corrupt", detail, offset=at)
            self._can_not_fold(CorruptData("the log is damaged"))
        else:
            detail = f"torn end at byte {at}: the next start copies it to broken/ and cuts it"
            self.report.warn(where, "torn_end", detail, offset=at)

    def _fold(self, replay: Replay, groups: frames.Groups, line: Timeline) -> None:
        try:
            replay.groups(groups, line)
        except CorruptData as error:
            self._can_not_fold(error)
        except (AssertionError, LookupError, ValueError) as error:
            # Frames with good checksums that contradict each other.
            self._can_not_fold(CorruptData(f"replay failed: {type(error).__name__}: {error}"))

    # -- stages ------------------------------------------------------------------------------

    def _stages(self, named: set[StageId]) -> None:
        """Records that wait for a commit, and those that commits name: a part of the log."""
        data = self.data
        names = data.fs.listdir(data.stages)
        for missing in sorted(self._named - set(map(stage_file.parse_file_name, names))):
            where = self.short(join(data.stages, stage_file.file_name(missing)))
            self.report.problem(where, "stage_missing", "a commit in the log names it")
        for name in names:
            stage = stage_file.parse_file_name(name)
            if stage is None:
                continue
            self.read(self._size(join(data.stages, name)))
            try:
                stage_file.read_body(data.fs, data.stages, stage)
            except CorruptData as error:
                where = self.short(join(data.stages, name))
                self.report.note(stage in named, where, "stage_damaged", error.message)

    # -- topics ------------------------------------------------------------------------------

    def _topics(self, replay: Replay) -> None:
        try:
            replay.finish_routed()
            replay.moves.finish(replay)
            for topic_id in list(replay.deferred):
                replay.finish_deferred(topic_id)
        except CorruptData as error:
            self._can_not_fold(error)
            return
        for topic in self.core.by_id.values():
            self.report.checked.topics += 1
            self.report.checked.records += topic.live_count
            for problem, detail in invariants.examine(self.core, topic):
                self.report.problem(".", problem, detail, topic=topic.name, epoch=topic.epoch)


def _is_needed(log_file: LogFile, older: list[Snapshot]) -> bool:
    """Whether an older snapshot still needs a file in front of the newest one."""
    return any(
        log_file.generation > s.generation
        or (log_file.generation == s.generation and log_file.number >= s.positions[log_file.shard])
        for s in older
    )
