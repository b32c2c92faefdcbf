"""Reading the log back: what is valid, what is torn, what is corrupt, what is not there.

For each shard of a generation the files are one timeline. The first place that is not a valid
group ends it. If MARKS, or some valid group after it, says that this place was durable, the
damage is corruption and nothing is replayed from there without consent; otherwise it is the torn
end of a crash and is cut, after a copy went to `broken/`. That the place looks as if nothing had
ever been written there, or that the file is missing, makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from topics.errors import CorruptData
from topics.storage import frames, wal_files
from topics.storage.datadir import DataDir
from topics.storage.frames import SECTOR, FileHeader, Groups, Mark
from topics.storage.fs import Fs, join, opened
from topics.storage.marks import ANYTHING, NOTHING, Key, Known, Vouch
from topics.storage.snapshot import Snapshot

NOWHERE = Mark(0, 0)
# The most that is read of a file whose header does not say how long it is.
HEADLESS_BYTES_MAX = 1 << 30


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
    # What MARKS says of it.
    vouch: Vouch = NOTHING
    # Whether a later generation became ready: it has a copy of what stands behind the mark here.
    is_succeeded: bool = False
    # Everything in front of this place is known to be durable.
    mark: Mark = NOWHERE
    boot_id: str = ""
    # Behind which group reading came to, and where the last one of each file ends.
    end: Mark = NOWHERE
    ends: dict[str, int] = field(default_factory=dict)
    # The numbers that the first frame to be read and the next one have; None if not known.
    first_lsn: int | None = None
    lsn: int | None = None


def list_timelines(data: DataDir) -> list[Timeline]:
    """All timelines in replay order. Unknown names in wal/ are left alone."""
    lines: dict[tuple[int, int], Timeline] = {}
    for name in data.fs.listdir(data.wal):
        parsed = wal_files.parse_file_name(name)
        if parsed is None:
            continue
        generation, shard, number = parsed
        line = lines.setdefault((generation, shard), Timeline(generation, shard, []))
        line.files.append(LogFile(join(data.wal, name), name, generation, shard, number))
    for line in lines.values():
        line.files.sort(key=lambda f: f.number)
    return [lines[key] for key in sorted(lines)]


def read_log(fs: Fs, path: str, *, is_strict: bool = True) -> bytes:
    """A log file, as much of it as its header says there is.

    None ever grows: of one that is longer the rest is not read, and if `is_strict` it raises
    CorruptData.
    """
    with opened(fs, path, writable=False) as file:
        size = file.size()
        header = frames.decode_file_header(file.pread(SECTOR, 0))
        bytes_max = HEADLESS_BYTES_MAX if header is None else header.capacity
        if size > bytes_max and is_strict:
            raise CorruptData(
                f"{path} has {size} bytes and may have {bytes_max}: it is not as it was written. "
                "Nothing was changed. Restore it from a backup, or run "
                "`topics repair --accept-loss`.",
                path=path,
            )
        return file.pread(min(size, bytes_max), 0)


def read_timeline(
    data: DataDir, line: Timeline, *, first_number: int, read: Callable[[str], bytes] | None = None
) -> Iterator[Groups]:
    """Yields the valid groups file by file and sets `damage`, `mark`, `boot_id` and the ends.

    Of a timeline with a successor only those in front of the mark: what stands behind it may go
    with the next machine crash, and the copy stays. Who read both would know more than is durable.
    Frames of a timeline are numbered without gaps, so groups that vanished whole at the end of a
    file are missed when one comes after them. That the last ones vanished, MARKS knows; a file
    without any, as one that was made ahead, proves nothing of the one in front of it.
    """
    line.end = Mark(first_number, 0)
    line.lsn = line.first_lsn
    yield from _read_files(data, line, first_number, read or partial(read_log, data.fs))
    if line.damage is None and line.end < line.mark:
        path = _path_of(data, line, line.mark.number)
        if path not in line.ends:
            path = _path_of(data, line, line.end.number)
        line.damage = Damage(path, line.ends.get(path, line.end.offset), True)


def _read_files(
    data: DataDir, line: Timeline, first_number: int, read: Callable[[str], bytes]
) -> Iterator[Groups]:
    files = [f for f in line.files if f.number >= first_number]
    for position, log_file in enumerate(files):
        raw = read(log_file.path)
        header = header_of(raw, log_file)
        rest = files[position:]
        # Of a file that is in MARKS the header is durable, and so it is before the first group.
        is_known = log_file.number <= line.vouch.last_file
        if header is None and (is_known or frames.claimed_file_ids(raw)):
            line.damage = Damage(log_file.path, 0, True)
            return
        if header is None or log_file.number != first_number + position:
            if _has_groups(data, rest):
                line.damage = _damage(data, line, rest)
            elif header is None:
                # It never was ready, and there is nothing in it: its room is given back.
                line.ends[log_file.path] = 0
            return
        line.boot_id = line.boot_id or header.boot_id
        groups = frames.scan_groups(raw, header.file_id)
        has_groups = len(groups.first_lsns) > 0
        if has_groups and line.lsn not in (None, int(groups.first_lsns[0])):
            line.damage = _damage(data, line, rest)
            return
        if has_groups:
            line.lsn = frames.next_lsn(groups)
        if has_groups or position == 0 or is_begun(line, log_file.number):
            line.end = Mark(log_file.number, groups.end)
        line.ends[log_file.path] = groups.end
        # How long the file is says nothing: room that was not used is given back.
        if groups.damaged:
            line.damage = _damage(data, line, rest)
            if not line.damage.is_corruption or line.mark.number >= log_file.number:
                line.damage.path, line.damage.offset = log_file.path, groups.end
        elif line.mark < groups.mark:
            line.mark = groups.mark
        yield _in_front(line, log_file.number, groups) if line.is_succeeded else groups
        if line.damage is not None:
            return


def is_begun(line: Timeline, number: int) -> bool:
    """Whether nothing is missing in front of a file, for all that MARKS says of its start.

    It does where a start began with a snapshot, before it knew of the sync that this waited for.
    """
    if line.vouch.mark != Mark(number, SECTOR):
        return False
    return line.lsn is None or line.vouch.lsn in (0, line.lsn)


def _in_front(line: Timeline, number: int, groups: Groups) -> Groups:
    """The groups that MARKS vouches for."""
    mark = line.vouch.mark
    if number < mark.number:
        return groups
    stop = int(np.searchsorted(groups.starts, mark.offset)) if number == mark.number else 0
    return frames.part_of(groups, 0, stop)


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


def wanted(
    snapshot: Snapshot | None, lines: list[Timeline], known: Known
) -> list[tuple[Timeline, int]]:
    """The timelines to replay, each with its first file; raises CorruptData for a missing one.

    Gives each what MARKS says of it, and leaves out a generation that never became ready: nobody
    has seen anything of it.
    """
    base = snapshot.generation if snapshot else 1
    newest = max([base if snapshot else 0, *(line.generation for line in lines)])
    if newest > known.generation:
        raise CorruptData(
            f"MARKS knows nothing of generation {newest}, which is there: it is older than the "
            "rest of the directory. Nothing was changed. Restore both from one backup, or run "
            "`topics repair --accept-loss`."
        )
    if snapshot is None and lines and lines[0].generation != 1:
        raise CorruptData("the log does not start at its beginning and there is no snapshot")
    found = [
        (line, first_file(snapshot, line.generation, line.shard))
        for line in lines
        if line.generation >= base and not is_spare(line, known)
    ]
    present = {(line.generation, line.shard): [f.number for f in line.files] for line, _ in found}
    for generation, shard, number in needed_files(snapshot, known):
        if number not in present.get((generation, shard), ()):
            raise CorruptData(
                f"log file {number} of shard {shard} in generation {generation} is missing; "
                "nothing was changed. Restore it from a backup, or run "
                "`topics repair --accept-loss`.",
                generation=generation, shard=shard, number=number,
            )  # fmt: skip
    newest = max((line.generation for line, _ in found), default=0)
    for line, first in found:
        line.vouch = known.lines.get((line.generation, line.shard), NOTHING)
        # MARKS may be older than the sync that the snapshot waited for.
        line.mark = max(line.vouch.mark, Mark(first, SECTOR) if first > 1 else NOWHERE)
        line.first_lsn = first_lsn(snapshot, line.generation, line.shard)
        line.is_succeeded = line.generation < newest
    return found


def first_file(snapshot: Snapshot | None, generation: int, shard: int) -> int:
    """The first file of a timeline that is not covered by the snapshot."""
    return _first_place(snapshot, generation, shard)[0]


def first_lsn(snapshot: Snapshot | None, generation: int, shard: int) -> int:
    """The number of the first frame of a timeline that is not covered by the snapshot."""
    return _first_place(snapshot, generation, shard)[1]


def _first_place(snapshot: Snapshot | None, generation: int, shard: int) -> tuple[int, int]:
    if snapshot is None or generation != snapshot.generation or shard >= len(snapshot.positions):
        return 1, 1
    return snapshot.positions[shard], snapshot.first_lsns[shard]


def is_spare(line: Timeline, known: Known) -> bool:
    """Whether a start that never became ready left it behind."""
    return line.generation == known.generation and not known.is_ready


def needed_files(snapshot: Snapshot | None, known: Known) -> Iterator[tuple[int, int, int]]:
    """Generation, shard and number of the first and the last file of each timeline to be read.

    Those between them are missed by their numbers when the timeline is read.
    """
    base = snapshot.generation if snapshot else 1
    for (generation, shard), vouch in sorted(known.lines.items()):
        if generation < base or (generation == known.generation and not known.is_ready):
            continue
        if not vouch.last_file:
            continue
        first = first_file(snapshot, generation, shard)
        last = first if vouch == ANYTHING else max(first, vouch.last_file)
        yield from ((generation, shard, number) for number in sorted({first, last}))
    if snapshot is not None:
        for shard, number in enumerate(snapshot.positions):
            yield base, shard, number


def vouches(lines: list[Timeline], known: Known) -> dict[Key, Vouch]:
    """What the next MARKS says of the timelines that were read, and of those still kept."""
    oldest = min((line.generation for line in lines), default=0)
    found = {
        key: vouch
        for key, vouch in known.lines.items()
        if key[0] >= oldest and (key[0] < known.generation or known.is_ready)
    }
    for line in lines:
        if line.vouch.mark < line.mark:
            # Only a snapshot vouches for the start of a file, and says how that goes on.
            lsn = line.first_lsn if line.mark.offset == SECTOR else None
            found[line.generation, line.shard] = Vouch(line.vouch.last_file, line.mark, lsn or 0)
    return found


def with_missing(lines: list[Timeline], known: Known) -> list[Timeline]:
    """For repair: timelines with what MARKS says of them, also those without any file left."""
    found = {(x.generation, x.shard): x for x in lines if not is_spare(x, known)}
    for key in known.lines:
        if key[0] < known.generation or known.is_ready:
            found.setdefault(key, Timeline(*key, []))
    for key, line in found.items():
        # Of a generation that MARKS does not know nobody can say how far it went.
        line.vouch = known.lines.get(key, ANYTHING if key[0] > known.generation else NOTHING)
        line.mark = line.vouch.mark
    return [found[key] for key in sorted(found)]


def _path_of(data: DataDir, line: Timeline, number: int) -> str:
    return join(data.wal, wal_files.file_name(line.generation, line.shard, number))


def _damage(data: DataDir, line: Timeline, rest: list[LogFile]) -> Damage:
    """Classifies the end of a timeline, where reading came to."""
    for log_file, groups in _scans(data, rest):
        if line.mark < groups.mark:
            line.mark = groups.mark
        if not len(groups.first_lsns) and not groups.damaged:
            # Made ahead, or with groups that are gone: its room is given back all the same.
            line.ends.setdefault(log_file.path, groups.end)
    # Groups without the file that they follow are no torn end, whoever knew of it.
    is_corruption = line.end < line.mark or not line.end.offset
    return Damage(_path_of(data, line, line.end.number), line.end.offset, is_corruption)


def _has_groups(data: DataDir, files: list[LogFile]) -> bool:
    return any(len(groups.first_lsns) or groups.damaged for _, groups in _scans(data, files))


def _scans(data: DataDir, files: list[LogFile]) -> Iterator[tuple[LogFile, Groups]]:
    for log_file in files:
        raw = read_log(data.fs, log_file.path, is_strict=False)
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
