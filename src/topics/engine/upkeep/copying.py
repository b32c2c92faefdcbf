"""Copying: the calls of a backup to the disk and to the store, made in a thread of its own.

Nothing here touches the engine. What it reads stays as it is while the backup pins it: snapshots,
segments up to their flags, log files up to a place that was synced, stages that a commit names. A
segment may move to the cold store meanwhile, and is read from there. What an earlier backup has
stored is not stored again; what can not be read as it was written ends the backup, which then
vouches for nothing.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import msgspec
import xxhash

from topics.clock import Clock
from topics.errors import Closed, CorruptData, TopicsError
from topics.storage import (
    cold,
    frames,
    marks,
    segment,
    snapshot,
    stage_file,
    vault,
    wal_files,
    wal_reader,
)
from topics.storage.datadir import DataDir
from topics.storage.flags import doubtful
from topics.storage.frames import SECTOR, Mark
from topics.storage.fs import join, opened
from topics.storage.marks import ANYTHING, Key
from topics.storage.segment import Bytes, FileBytes, SegmentInfo
from topics.storage.snapshot import Snapshot
from topics.storage.stage_file import StageId
from topics.storage.tiers import Store, StoreBytes
from topics.storage.vault import (
    LogCopy,
    Manifest,
    MarkCopy,
    Object,
    SegmentCopy,
    SnapshotCopy,
    StageCopy,
)

# Backups whose objects are taken for known.
EARLIER_MAX = 16
PIECE_BYTES = 256 * 1024
# How many times as long as a piece took the thread rests after it.
REST = 64
# The place of the stamp in every header.
STAMP = slice(8, 16)


@dataclass(slots=True)
class Amounts:
    """How far it is, for others to look at."""

    bytes_all: int = 0
    bytes_done: int = 0
    bytes_copied: int = 0


@dataclass(slots=True)
class Copying:
    data: DataDir
    cold_store: Store | None
    store: Store
    id: str
    # Called between pieces with how long the last one took, by this clock.
    rest: Callable[[float], None]
    clock: Clock
    amounts: Amounts = field(default_factory=Amounts)
    is_given_up: bool = False
    _known: dict[str, Object] = field(default_factory=dict)
    _known_logs: dict[tuple[int, int, int, str], LogCopy] = field(default_factory=dict)
    _summaries: list[Snapshot] = field(default_factory=list)
    _infos: dict[int, SegmentInfo] = field(default_factory=dict)
    _flags: dict[int, bytes] = field(default_factory=dict)
    _is_from_beginning: bool = False
    # How far the timelines of earlier generations go, and how far MARKS vouches for them.
    _earlier: dict[Key, Mark] = field(default_factory=dict)
    _vouched: list[MarkCopy] = field(default_factory=list)

    # -- what there is -----------------------------------------------------------------------

    def look(self) -> None:
        """Chooses the snapshots, and reads the delete flags of their segments before others are
        set."""
        data = self.data
        self.store.sweep()
        self._remember()
        numbers = snapshot.numbers(data.fs, data.snapshots)
        for number in numbers:
            with contextlib.suppress(CorruptData):
                self._summaries.append(snapshot.verify(data.fs, data.snapshots, number))
            if len(self._summaries) == 2:
                break
        if numbers and not self._summaries:
            raise CorruptData("no snapshot can be read: run `topics check`; nothing was backed up")
        for number in sorted({n for each in self._summaries for n in each.segments}):
            self._infos[number], self._flags[number] = self._read_segment(number)
        for each in self._summaries:
            for number, sums in each.sums().items():
                if doubtful(self._infos[number].rows, self._flags[number], sums):
                    raise CorruptData(f"segment {number}: its delete flags are damaged")
        self._reach_earlier()
        # Files leave the log in their order: where the very first is, none has left.
        self._is_from_beginning = (1, 0, 1) in self._log_names()
        self.amounts.bytes_all = sum(info.flags_at for info in self._infos.values())

    def _reach_earlier(self) -> None:
        """Finds out how far earlier generations go: as far as the starts after them have read.

        What a crash has left behind a torn end is still there, and belongs to nothing.
        """
        known = marks.read(self.data.fs, self.data.root)
        for line in wal_reader.list_timelines(self.data):
            if line.generation == known.generation:
                continue
            key = line.generation, line.shard
            vouch = known.lines.get(key, ANYTHING)
            mark = vouch.mark
            first = max(mark.number, line.files[0].number)
            if mark.offset == SECTOR:
                # A crash may have taken all of this file and left groups in those behind it.
                line.first_lsn = vouch.lsn or None
            if mark != ANYTHING.mark:
                for _ in wal_reader.read_timeline(self.data, line, first_number=first):
                    pass
            self._earlier[key] = max(mark, line.end)
            self._vouched.append(MarkCopy(*key, mark))

    def _remember(self) -> None:
        """What is there of earlier backups."""
        there = set(self.store.list())
        for backup_id in vault.ids(self.store)[:EARLIER_MAX]:
            try:
                manifest = vault.read_manifest(self.store, backup_id)
            except TopicsError:
                # It vouches for nothing; `verify` says so.
                continue
            for each in manifest.objects():
                if each.name in there:
                    self._known.setdefault(each.name, each)
            for log in manifest.logs:
                if all(part.name in there for part in log.parts):
                    key = log.generation, log.shard, log.number, log.file_id
                    self._known_logs.setdefault(key, log)

    def _read_segment(self, number: int) -> tuple[SegmentInfo, bytes]:
        data = self.data
        try:
            path = join(data.segments, segment.file_name(number))
            with opened(data.fs, path, writable=False) as file:
                info = segment.read_info(FileBytes(file), number)
                return info, file.pread(info.flag_count, info.flags_at)
        except FileNotFoundError:
            return cold.read(data.fs, data.segments, number)

    def _log_names(self) -> list[tuple[int, int, int]]:
        names = self.data.fs.listdir(self.data.wal)
        return sorted(
            parsed for parsed in map(wal_files.parse_file_name, names) if parsed is not None
        )

    # -- what is copied ----------------------------------------------------------------------

    def copy(self, generation: int, marks: list[Mark], stages: Iterable[StageId]) -> None:
        """Everything that is durable by now; what is written meanwhile is left for `finish`."""
        self._segments()
        self._snapshots()
        self._logs(generation, marks)
        self._stages(stages, ())

    def finish(
        self,
        *,
        generation: int,
        marks: list[Mark],
        stages: Iterable[StageId],
        taken: Iterable[StageId],
        began_ms: int,
        to_ms: int,
        topics: int,
    ) -> Manifest:
        """The rest of the log up to `marks`, then the manifest: only now there is a backup."""
        logs = self._logs(generation, marks)
        manifest = Manifest(
            id=self.id, began_ms=began_ms, from_ms=min(self._from_ms(logs), to_ms), to_ms=to_ms,
            topics=topics, bytes=0, bytes_copied=0, is_from_beginning=self._is_from_beginning,
            snapshots=self._snapshots(), segments=self._segments(), flags=self._store_flags(),
            logs=logs, marks=self._vouched, stages=self._stages(stages, taken),
        )  # fmt: skip
        manifest = msgspec.structs.replace(
            manifest, bytes=sum(each.size for each in manifest.objects()),
            bytes_copied=self.amounts.bytes_copied,
        )  # fmt: skip
        vault.store_manifest(self.store, manifest)
        return manifest

    def _from_ms(self, logs: list[LogCopy]) -> int:
        """The first moment that can be restored."""
        if not self._is_from_beginning:
            return self._summaries[-1].taken_ms
        first = wal_files.file_name(logs[0].generation, logs[0].shard, logs[0].number)
        with opened(self.data.fs, join(self.data.wal, first), writable=False) as file:
            header = frames.decode_file_header(file.pread(SECTOR, 0))
        return 0 if header is None else header.created_ms

    def _segments(self) -> list[SegmentCopy]:
        copies = []
        for number, info in self._infos.items():
            name = vault.segment_name(number, segment.stamp_of(info))
            body = self._known.get(name)
            if body is None:
                with contextlib.ExitStack() as stack:
                    source = self._source(info, stack)
                    body = self._put(name, segment.checked_parts(source, info, info.flags_at))
            copies.append(SegmentCopy(number, info.flag_count, body))
        return copies

    def _source(self, info: SegmentInfo, stack: contextlib.ExitStack) -> Bytes:
        data, name = self.data, segment.file_name(info.number)
        try:
            path = join(data.segments, name)
            return FileBytes(stack.enter_context(opened(data.fs, path, writable=False)))
        except FileNotFoundError:
            if self.cold_store is None:
                raise
            return StoreBytes(self.cold_store, name)

    def _store_flags(self) -> Object | None:
        if not self._flags:
            return None
        return self._put(vault.flags_name(self.id), [zlib.compress(b"".join(self._flags.values()))])

    def _snapshots(self) -> list[SnapshotCopy]:
        data = self.data
        return [
            SnapshotCopy(
                each.number, each.taken_ms,
                self._file(
                    join(data.snapshots, snapshot.file_name(each.number)),
                    partial(vault.snapshot_name, each.number),
                ),
            )
            for each in self._summaries
        ]  # fmt: skip

    def _stages(self, needed: Iterable[StageId], taken: Iterable[StageId]) -> list[StageCopy]:
        """Those that commits name; a commit that is under way may come to nothing."""
        copies = []
        maybe = set(taken)
        for stage in chain(needed, sorted(maybe)):
            name = stage_file.file_name(stage)
            try:
                path = join(self.data.stages, name)
                body = self._file(path, partial(vault.stage_name, name))
            except FileNotFoundError:
                if stage not in maybe:
                    raise
                continue
            copies.append(StageCopy(name, body))
        return copies

    def _file(self, path: str, name_of: Callable[[int], str]) -> Object:
        """A file that is never changed, under the stamp of its header."""
        with opened(self.data.fs, path, writable=False) as file:
            name = name_of(int.from_bytes(file.pread(STAMP.stop, 0)[STAMP], "little"))
            if name in self._known:
                return self._known[name]
            size = file.size()
            places = range(0, size, PIECE_BYTES)
            return self._put(name, (file.pread(min(PIECE_BYTES, size - at), at) for at in places))

    def _logs(self, generation: int, marks: list[Mark]) -> list[LogCopy]:
        """The log files that are needed, each as far as it was durable."""
        copies = []
        for parsed in self._log_names():
            if not self._is_needed(*parsed):
                continue
            mark = marks[parsed[1]] if parsed[0] == generation else self._earlier[parsed[:2]]
            if parsed[2] > max(mark.number, 1) and not self._is_named(*parsed):
                # Of an earlier generation it is behind a torn end, where a crash has left it.
                continue
            upto = mark.offset if parsed[2] == mark.number else None
            if parsed[2] > mark.number:
                upto = SECTOR
            copies.append(self._log(*parsed, upto))
        return copies

    def _is_needed(self, generation: int, shard: int, number: int) -> bool:
        if self._is_from_beginning:
            return True
        oldest = self._summaries[-1]
        if generation != oldest.generation:
            return generation > oldest.generation
        return number >= oldest.positions[shard]

    def _is_named(self, generation: int, shard: int, number: int) -> bool:
        """Whether a snapshot begins with a log file, to which nothing may have been written yet."""
        return any(
            each.generation == generation and each.positions[shard] == number
            for each in self._summaries
        )

    def _log(self, generation: int, shard: int, number: int, upto: int | None) -> LogCopy:
        path = join(self.data.wal, wal_files.file_name(generation, shard, number))
        with opened(self.data.fs, path, writable=False) as file:
            header = frames.decode_file_header(file.pread(SECTOR, 0))
            if header is None:
                raise CorruptData(f"{path}: its header is damaged; run `topics check`")
            file_id = vault.sum_of(header.file_id)
            key = generation, shard, number, file_id
            log = self._known_logs.get(key, LogCopy(*key, []))
            start = log.size
            stop = file.size() if upto is None else upto
            if stop <= start:
                return log
            raw = file.pread(stop - start, start)
        # Room that was allocated and not used is left out; what ends with zeros gets them back.
        size = _used(raw) if upto is None else len(raw)
        if not size:
            return log
        part = self._put(vault.log_part_name(log, start), _pieces(raw, size))
        log = LogCopy(*key, [*log.parts, part])
        self._known_logs[key] = log
        return log

    def _put(self, name: str, parts: Iterable[bytes]) -> Object:
        """Stores an object; raises Closed when that is given up."""
        seen, size = xxhash.xxh3_64(), 0

        def handed() -> Iterator[bytes]:
            nonlocal size
            began = self.clock.monotonic_s()
            for part in parts:
                if self.is_given_up:
                    raise Closed("the engine closed before the backup was whole")
                seen.update(part)
                size += len(part)
                self.amounts.bytes_done += len(part)
                yield part
                self.rest(REST * (self.clock.monotonic_s() - began))
                began = self.clock.monotonic_s()

        self.store.put(name, handed())
        self.amounts.bytes_copied += size
        body = Object(name, size, vault.sum_of(seen.intdigest()))
        self._known[name] = body
        return body


def _used(raw: bytes) -> int:
    """The length without the zeros at the end, a piece at a time.

    Of a whole log file `rstrip` would keep everybody from the interpreter for 0.2 s.
    """
    size = len(raw)
    while size:
        piece = raw[max(size - PIECE_BYTES, 0) : size]
        if piece != bytes(len(piece)):
            return size - len(piece) + len(piece.rstrip(b"\0"))
        size -= len(piece)
    return 0


def _pieces(raw: bytes, size: int) -> Iterator[bytes]:
    with memoryview(raw) as view:
        for at in range(0, size, PIECE_BYTES):
            yield bytes(view[at : min(at + PIECE_BYTES, size)])
