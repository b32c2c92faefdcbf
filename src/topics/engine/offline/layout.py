"""Layout: the files of a restored directory, put there from a backup so that recovery takes them.

For the end of a backup that is all of it. For a moment it is the newest snapshot from before the
moment with its segments, and the log up to the moment: what a process that was killed then would
have left. Delete flags are set back to what the snapshot knew, because the log says the rest. MARKS
vouches for every byte of the generation that was backed up while it ran, and of those before it for
as much as the original did: behind that may stand a map whose source a crash has taken. It names a
generation that leaves room for starts which the original may have made since: ids of stages are not
given twice.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from topics.engine.offline import moments
from topics.engine.offline.findings import Progress
from topics.engine.offline.moments import Later, Moment
from topics.errors import CorruptData, InvalidRequest
from topics.storage import frames, marks, segment, snapshot, stage_file, vault, wal_files
from topics.storage.datadir import DataDir
from topics.storage.flags import doubtful
from topics.storage.frames import Groups, Mark
from topics.storage.fs import join, opened
from topics.storage.marks import Key, Vouch
from topics.storage.segment import DEAD, Row, SegmentInfo
from topics.storage.snapshot import Snapshot
from topics.storage.tiers import Store
from topics.storage.vault import LogCopy, Manifest, SnapshotCopy

# Starts that the original may make after the backup.
GENERATION_JUMP = 1 << 16


@dataclass(slots=True)
class Layout:
    """The files of a new directory, as recovery wants them."""

    data: DataDir
    store: Store
    manifest: Manifest
    moment: Moment | None
    progress: Progress | None
    later: Later = field(default_factory=Later)
    bytes_done: int = 0
    _lines: dict[Key, Vouch] = field(default_factory=dict)
    # How far the original vouched for timelines of earlier generations.
    _vouched: dict[Key, Mark] = field(default_factory=dict)
    _base: Snapshot | None = None

    def lay_out(self) -> None:
        data, fs = self.data, self.data.fs
        data.prepare()
        bases = self._bases()
        for each in bases:
            path = join(data.snapshots, snapshot.file_name(each.number))
            self._write(path, vault.read_object(self.store, each.body))
        summaries = [snapshot.verify(fs, data.snapshots, each.number) for each in bases]
        self._base = summaries[-1] if summaries else None
        # The log first: what it says after the moment has a say in the flags.
        self._log()
        for taken in self.manifest.stages:
            if stage_file.parse_file_name(taken.file_name) is None:
                raise CorruptData(f"{taken.file_name} names no stage")
            path = join(data.stages, taken.file_name)
            self._write(path, vault.read_object(self.store, taken.body))
        self._segments(summaries)
        for path in (data.wal, data.segments, data.snapshots, data.stages):
            fs.sync_dir(path)
        newest = max(generation for generation, _ in self._lines)
        marks.lay_out(fs, data.root, generation=newest + GENERATION_JUMP, lines=self._lines)

    def _bases(self) -> list[SnapshotCopy]:
        """Both snapshots for the end; for a moment the newest one that is from before it."""
        manifest, moment = self.manifest, self.moment
        if moment is None:
            return manifest.snapshots
        for each in manifest.snapshots:
            if each.taken_ms < moment.at_ms or (not moment.place and each.taken_ms == moment.at_ms):
                return [each]
        if not manifest.is_from_beginning:
            raise InvalidRequest(f"backup {manifest.id} does not go back so far")
        return []

    def _write(self, path: str, raw: bytes) -> None:
        with opened(self.data.fs, path, create=True) as file:
            file.pwrite(raw, 0)
            file.sync()
        self.bytes_done += len(raw)
        if self.progress is not None:
            self.progress(self.bytes_done, max(self.manifest.bytes, self.bytes_done))

    # -- the log -----------------------------------------------------------------------------

    def _log(self) -> None:
        """Timelines up to the moment; what comes after it is only read."""
        self._vouched = {(each.generation, each.shard): each.mark for each in self.manifest.marks}
        by_generation: dict[int, list[LogCopy]] = {}
        for log in self.manifest.logs:
            if self._is_needed(log):
                by_generation.setdefault(log.generation, []).append(log)
        is_over = False
        for generation in sorted(by_generation):
            is_over = self._generation(by_generation[generation], is_over=is_over)
        if not self._lines:
            raise InvalidRequest(f"backup {self.manifest.id} has nothing from before that moment")

    def _is_needed(self, log: LogCopy) -> bool:
        base = self._base
        if base is None or log.generation != base.generation:
            return base is None or log.generation > base.generation
        return log.number >= base.positions[log.shard]

    def _generation(self, logs: list[LogCopy], *, is_over: bool) -> bool:
        """Its files; True when the moment is in it or before it."""
        moment = self.moment
        kept: list[tuple[LogCopy, bytes, Groups, int]] = []
        is_cut: dict[int, bool] = {}
        is_started = moment is None or self._is_first(logs[0].generation)
        for log in logs:
            raw, groups = moments.read_log(self.store, log)
            stop = len(groups.starts) if moment is None else moments.stop_of(groups, log, moment)
            if is_over or is_cut.get(log.shard):
                stop = 0
            else:
                is_started = is_started or moments.has_started(groups, stop)
                kept.append((log, raw, groups, stop))
            is_cut[log.shard] = is_cut.get(log.shard, False) or stop < len(groups.starts)
            self._note_later(groups, log, stop)
        if is_over or not is_started:
            # Nobody had seen anything of it by then: the one before it stands.
            for log, _, groups, _ in kept:
                self._note_later(groups, log, 0)
            return True
        for log, raw, groups, stop in kept:
            self._lay_file(log, raw, groups, stop)
        return any(is_cut.values())

    def _is_first(self, generation: int) -> bool:
        """Whether nothing comes before it: a snapshot was taken in it, or it is the very first."""
        return generation == (1 if self._base is None else self._base.generation)

    def _note_later(self, groups: Groups, log: LogCopy, stop: int) -> None:
        if self.moment is None:
            return
        self.later.note_deletes(groups)
        place = self.moment.place
        late = groups.frame_group >= stop
        if place is not None and stop and self._is_at(log, place):
            own = groups.frames["topic"] == place.topic_id
            late = late | (own & (np.arange(len(own)) > place.frame))
        for index in np.flatnonzero(late).tolist():
            self.later.note(groups, index)

    def _is_at(self, log: LogCopy, place: moments.Place) -> bool:
        here = (log.generation, log.shard, log.number)
        return here == (place.generation, place.shard, place.number)

    def _lay_file(self, log: LogCopy, raw: bytes, groups: Groups, stop: int) -> None:
        end = frames.end_of(groups, stop - 1) if stop else frames.SECTOR
        raw = raw[:end]
        place = None if self.moment is None else self.moment.place
        if place is not None and self._is_at(log, place):
            start = int(groups.starts[place.group])
            raw = raw[:start] + moments.cut_group(groups, place)
        name = wal_files.file_name(log.generation, log.shard, log.number)
        self._write(join(self.data.wal, name), raw)
        key, mark = (log.generation, log.shard), Mark(log.number, len(raw))
        if len(raw) == frames.SECTOR and key in self._lines:
            # No mark names the start of a file.
            mark = self._lines[key].mark
        self._lines[key] = Vouch(log.number, min(mark, self._vouched.get(key, mark)), 0)

    # -- segments ----------------------------------------------------------------------------

    def _segments(self, summaries: list[Snapshot]) -> None:
        wanted = {number for each in summaries for number in each.segments}
        all_flags = b""
        if self.manifest.flags is not None:
            all_flags = zlib.decompress(vault.read_object(self.store, self.manifest.flags))
        at = 0
        for copy in self.manifest.segments:
            flags = all_flags[at : at + copy.flags]
            at += copy.flags
            if copy.number not in wanted:
                continue
            path = join(self.data.segments, segment.file_name(copy.number))
            with opened(self.data.fs, path, create=True) as file:
                offset = 0
                for piece in vault.pieces(self.store, copy.body):
                    file.pwrite(piece, offset)
                    offset += len(piece)
                file.pwrite(flags, offset)
                info = segment.read_info(segment.FileBytes(file), copy.number)
                file.pwrite(self._given_back(info, flags, summaries), offset)
                file.sync()
            self.bytes_done += offset + len(flags)
            if self.progress is not None:
                self.progress(self.bytes_done, max(self.manifest.bytes, self.bytes_done))

    def _given_back(self, info: SegmentInfo, flags: bytes, summaries: list[Snapshot]) -> bytes:
        """The flags as the snapshot knew them: the log says every delete since.

        The backup's own may be newer than the moment. Where the snapshot's sums do not tell them
        apart for certain, those stay that a delete has set: the record is deleted, if too early for
        a cap that counted it.
        """
        if self.moment is None:
            return flags
        (sums,) = [each.sums().get(info.number, []) for each in summaries]
        by_place = {place: (count, stored) for place, count, stored in sums}
        found = []
        for place, row in enumerate(info.rows):
            own = flags[row.flag_at : row.flag_at + row.count]
            known = by_place.get(place, (0, frames.checksum(bytes(row.count))))
            found.append(self._as_known(row, own, known) if DEAD in own else own)
        marked = b"".join(found)
        if doubtful(info.rows, marked, sums):
            raise CorruptData(f"segment {info.number} of the backup: its delete flags differ")
        return marked

    def _as_known(self, row: Row, flags: bytes, known: tuple[int, int]) -> bytes:
        later = self.later
        runs = later.since.get(row.topic_id, [])
        back = [(seq, seq) for seq in later.given_back.get(row.topic_id, ())]
        below = (row.first, later.since_below.get(row.topic_id, 0) - 1)
        for gone in ([*runs, *back], [*runs, *back, below]):
            cleared = _cleared(row, flags, gone)
            if (cleared.count(DEAD), frames.checksum(cleared)) == known:
                return cleared
        return _cleared(row, flags, back)


def _cleared(row: Row, flags: bytes, runs: list[tuple[int, int]]) -> bytes:
    left = bytearray(flags)
    for first, last in runs:
        low, stop = max(first, row.first), min(last + 1, row.stop)
        if low < stop:
            left[low - row.first : stop - row.first] = bytes(stop - low)
    return bytes(left)
