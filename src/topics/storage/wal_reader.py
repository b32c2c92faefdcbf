"""Reading the log back: what is valid, what is torn, what is corrupt.

For each shard of a generation the files are one timeline. The first place that is not a valid
group ends it. If some valid group, anywhere behind, was written in the knowledge that this place
was durable, the damage is corruption and nothing is replayed from there without consent;
otherwise it is the torn end of a crash and is cut, after a copy went to `broken/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topics.errors import CorruptData
from topics.storage import frames, wal
from topics.storage.datadir import DataDir
from topics.storage.frames import SECTOR, FileHeader, Groups, Mark
from topics.storage.fs import join, opened, read_all
from topics.storage.snapshot import Snapshot

NOWHERE = Mark(0, 0)


@dataclass(slots=True)
class LogFile:
    path: str
    name: str
    generation: int
    shard: int
    number: int


@dataclass(slots=True)
class Damage:
    """The end of a timeline that is not a clean one."""

    path: str
    offset: int
    is_corruption: bool


@dataclass(slots=True)
class Timeline:
    """The files of one shard in one generation, in order."""

    generation: int
    shard: int
    files: list[LogFile]
    damage: Damage | None = None
    # Everything in front of this place is known to be durable.
    mark: Mark = NOWHERE
    boot_id: str = ""


def list_timelines(data: DataDir) -> list[Timeline]:
    """All timelines in replay order. Unknown names in wal/ are left alone."""
    lines: dict[tuple[int, int], Timeline] = {}
    for name in data.fs.listdir(data.wal):
        parsed = wal.parse_file_name(name)
        if parsed is None:
            continue
        generation, shard, number = parsed
        line = lines.setdefault((generation, shard), Timeline(generation, shard, []))
        line.files.append(LogFile(join(data.wal, name), name, generation, shard, number))
    for line in lines.values():
        line.files.sort(key=lambda f: f.number)
    return [lines[key] for key in sorted(lines)]


def read_timeline(
    data: DataDir, line: Timeline, *, first_number: int, read: Callable[[str], bytes] | None = None
) -> Iterator[Groups]:
    """Yields the valid groups file by file and sets `damage`, `mark` and `boot_id`.

    Frames of a timeline are numbered without gaps and a file says with which number it begins, so
    groups that vanished whole at the end of a file are missed when there is a next one.
    """
    files = [f for f in line.files if f.number >= first_number]
    lsn_expected: int | None = None
    end = Mark(first_number, 0)
    for position, log_file in enumerate(files):
        raw = read_all(data.fs, log_file.path) if read is None else read(log_file.path)
        header = header_of(raw, log_file)
        rest = files[position:]
        if header is None and frames.claimed_file_ids(raw):
            # The header was durable before the first group was written: this is no torn end.
            line.damage = Damage(log_file.path, 0, True)
            return
        if header is None or log_file.number != first_number + position:
            if _has_groups(data, rest):
                line.damage = _damage(data, line, files, end, rest)
            return
        line.boot_id = line.boot_id or header.boot_id
        groups = frames.scan_groups(raw, header.file_id)
        if lsn_expected is not None and header.first_lsn != lsn_expected:
            if _has_groups(data, rest):
                line.damage = _damage(data, line, files, end, rest)
            return
        lsn_expected = header.first_lsn + len(groups.frames)
        end = Mark(log_file.number, groups.end)
        if len(raw) < header.capacity and (len(groups.frames) or position < len(files) - 1):
            line.damage = Damage(log_file.path, groups.end, True)
        elif groups.damaged:
            line.damage = _damage(data, line, files, end, rest)
        elif line.mark < groups.mark:
            line.mark = groups.mark
        yield groups
        if line.damage is not None:
            return


def header_of(raw: bytes, log_file: LogFile) -> FileHeader | None:
    """The header of a file, if it is intact and that of the file it stands in."""
    header = frames.decode_file_header(raw[:SECTOR])
    if header is None:
        return None
    named = (log_file.generation, log_file.shard, log_file.number)
    return header if (header.generation, header.shard, header.number) == named else None


def is_routed(data: DataDir, lines: list[tuple[Timeline, int]]) -> bool:
    """Whether any file that is to be replayed may hold copies made by routers."""
    for line, first in lines:
        for log_file in line.files:
            if log_file.number < first:
                continue
            with opened(data.fs, log_file.path, writable=False) as file:
                header = header_of(file.pread(SECTOR, 0), log_file)
            # Of a damaged header nobody knows: keeping too much only costs memory.
            if header is None or header.is_routed:
                return True
    return False


def wanted(snapshot: Snapshot | None, lines: list[Timeline]) -> list[tuple[Timeline, int]]:
    """The timelines to replay, each with its first file; raises CorruptData for a missing one."""
    base = snapshot.generation if snapshot else 1
    present = {(line.generation, line.shard): line for line in lines}
    if snapshot is not None:
        for shard, number in enumerate(snapshot.positions):
            line = present.get((base, shard))
            if line is None or number not in [f.number for f in line.files]:
                raise CorruptData(
                    f"log file {number} of shard {shard} in generation {base} is missing; "
                    "the newest snapshot needs it",
                )
    elif lines and lines[0].generation != 1:
        raise CorruptData("the log does not start at its beginning and there is no snapshot")
    found: list[tuple[Timeline, int]] = []
    newest = base
    for line in lines:
        if line.generation < base:
            continue
        # A start takes the number behind the highest one it finds, so none is ever left out.
        if line.generation > newest + 1:
            raise CorruptData(f"generation {newest + 1} of the log is missing")
        newest = line.generation
        first = snapshot.positions[line.shard] if snapshot and newest == base else 1
        found.append((line, first))
    return found


def _damage(
    data: DataDir, line: Timeline, files: list[LogFile], end: Mark, rest: list[LogFile]
) -> Damage:
    """Classifies the end of a timeline at `end`."""
    mark = line.mark
    for _, groups in _scans(data, rest):
        if mark < groups.mark:
            mark = groups.mark
    line.mark = mark
    path = next((f.path for f in files if f.number == end.number), files[0].path)
    return Damage(path, end.offset, end < mark)


def _has_groups(data: DataDir, files: list[LogFile]) -> bool:
    return any(len(groups.first_lsns) or groups.damaged for _, groups in _scans(data, files))


def _scans(data: DataDir, files: list[LogFile]) -> Iterator[tuple[LogFile, Groups]]:
    for log_file in files:
        raw = read_all(data.fs, log_file.path)
        header = header_of(raw, log_file)
        if header is not None:
            yield log_file, frames.scan_groups(raw, header.file_id)


def cut(data: DataDir, damage: Damage) -> None:
    """Copies a torn end aside, then blanks it. Refuses corruption."""
    if damage.is_corruption:
        raise CorruptData(
            f"{damage.path}: damage at byte {damage.offset}, in front of data known to be durable. "
            "Nothing was changed. Restore from a backup, or run `topics repair --accept-loss` to "
            "record what can not be read as lost.",
            path=damage.path, offset=damage.offset,
        )  # fmt: skip
    with opened(data.fs, damage.path) as file:
        tail = file.pread(max(file.size() - damage.offset, 0), damage.offset).rstrip(b"\0")
        if tail:
            name = damage.path.rsplit("/", 1)[-1] + f".{damage.offset}.broken"
            with opened(data.fs, join(data.broken, name), create=True) as copy:
                copy.pwrite(tail, 0)
                copy.sync()
            data.fs.sync_dir(data.broken)
        file.pwrite(bytes(len(tail)), damage.offset)
        file.sync()
