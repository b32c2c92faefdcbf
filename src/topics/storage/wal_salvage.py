"""Reading a damaged log for repair: every group that can be trusted, and how much is missing.

The rule between torn and corrupt is the one of `wal_reader`: where MARKS or a later group knew that
the place was durable, what is missing there is a loss and reading goes on after it; otherwise the
timeline ends there, because nothing after it was ever acknowledged as durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topics.storage import frames
from topics.storage.datadir import DataDir
from topics.storage.frames import Groups, Mark, end_of, part_of
from topics.storage.wal_reader import LogFile, Timeline, header_of, is_begun, read_log


@dataclass(frozen=True, slots=True)
class Stretch:
    """Groups that follow each other; `lost_frames` are missing in front of them, None: unknown."""

    path: str
    groups: Groups
    lost_frames: int | None


def salvage(data: DataDir, line: Timeline, *, first_number: int) -> Iterator[Stretch]:
    """The trusted groups of a timeline in order; sets `mark`, `boot_id`, `end` and `lsn`."""
    found = [(f, _scan(data, line, f)) for f in line.files if f.number >= first_number]
    for _, groups in found:
        if line.mark < groups.mark:
            line.mark = groups.mark
    line.end = Mark(first_number, frames.SECTOR)
    line.lsn = line.first_lsn
    for log_file, groups in found:
        if is_begun(line, log_file.number):
            line.end = Mark(log_file.number, frames.SECTOR)
        for first, stop in _stretches(groups):
            part = part_of(groups, first, stop)
            lost = _lost(line, log_file, part)
            if lost != 0 and line.lsn is not None and not line.end < line.mark:
                # A torn end. Where nobody knows the beginning, what is there is the beginning.
                return
            yield Stretch(log_file.path, part, lost)
            line.lsn = frames.next_lsn(part)
            line.end = Mark(log_file.number, end_of(groups, stop - 1))


def lost_at_end(line: Timeline) -> int | None:
    """How many frames are missing after the last that was found; None: unknown."""
    if not line.end < line.vouch.mark:
        return 0
    if line.lsn is None or not line.vouch.lsn:
        return None
    return line.vouch.lsn - line.lsn


def _scan(data: DataDir, line: Timeline, log_file: LogFile) -> Groups:
    """All trusted groups of a file."""
    raw = read_log(data.fs, log_file.path, is_strict=False)
    header = header_of(raw, log_file)
    if header is not None:
        line.boot_id = line.boot_id or header.boot_id
        return frames.scan_groups(raw, header.file_id, beyond_damage=True)
    # Without a header the groups themselves say which file they are of; one that is intact and of
    # another file says that they are not of this one.
    is_other = frames.decode_file_header(raw[: frames.SECTOR]) is not None
    ids = [] if is_other else frames.claimed_file_ids(raw)
    scans = [frames.scan_groups(raw, i, beyond_damage=True) for i in ids]
    scans.append(frames.scan_groups(raw, 0, beyond_damage=True))
    return max(scans, key=lambda groups: len(groups.starts))


def _stretches(groups: Groups) -> list[tuple[int, int]]:
    """Runs [first, stop) of groups whose frames are numbered without a gap."""
    count = len(groups.starts)
    if not count:
        return []
    sizes = np.bincount(groups.frame_group, minlength=count)
    follow = groups.first_lsns[1:].astype(np.int64) == (
        groups.first_lsns[:-1].astype(np.int64) + sizes[:-1]
    )
    breaks = (np.flatnonzero(~follow) + 1).tolist()
    return list(zip([0, *breaks], [*breaks, count], strict=True))


def _lost(line: Timeline, log_file: LogFile, part: Groups) -> int | None:
    """How many frames are missing between where reading stands and these groups."""
    lsn = int(part.first_lsns[0])
    if line.lsn is not None:
        return lsn - line.lsn
    at_start = int(part.starts[0]) == frames.SECTOR and log_file.number == line.end.number
    return 0 if at_start else None
