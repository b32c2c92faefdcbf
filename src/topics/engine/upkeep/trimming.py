"""Trimming: what neither of the two newest snapshots needs leaves the directory.

Only snapshots that can be read in full count, and they are read before anything is removed. While
there are not two of them, or a backup copies what they name, everything stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from topics.engine.commit.core import Core
from topics.errors import CorruptData
from topics.storage import snapshot, stage_file, wal_files
from topics.storage.datadir import DataDir
from topics.storage.fs import join
from topics.storage.snapshot import Snapshot
from topics.storage.stage_file import StageId


@dataclass(slots=True)
class Found:
    """The two newest snapshots that can be read in full, and damaged ones in front of them."""

    readable: list[Snapshot] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)


def trim(core: Core) -> Iterator[None]:
    """Removes log files, stages, snapshots and segments that the two newest ones do not need.

    Segments go first: as long as a deleted record's bytes are there, so is the delete in the log.
    Files go in a thread: to let go of a large one takes the file system milliseconds.
    """
    data = core.data
    if core.is_pinned:
        # A later checkpoint does it.
        core.unsealed.trim(0)
        return
    found = Found()
    yield from core.background.run(lambda: _look(core, found))
    if not core.unsealed.trim(len(found.readable)):
        return
    newest, older = found.readable
    needed = {*older.segments, *newest.segments}
    for number in newest.garbage:
        if number not in needed and number in core.segments.garbage:
            core.segments.close_file(number)
            yield from core.background.run(partial(core.segments.unlink, number))
            core.segments.removed(number)
            core.tiering.forget(number)
    yield from core.background.run(partial(_remove_logs, data, older))
    yield from _trim_stages(core, older)
    yield from core.background.run(partial(_remove_snapshots, data, older, found.damaged))


def _remove_logs(data: DataDir, older: Snapshot) -> None:
    data.fs.sync_dir(data.segments)
    for name in data.fs.listdir(data.wal):
        parsed = wal_files.parse_file_name(name)
        if parsed is not None and _is_spent(older, *parsed):
            data.fs.unlink(join(data.wal, name))


def _remove_snapshots(data: DataDir, older: Snapshot, damaged: list[int]) -> None:
    for number in snapshot.numbers(data.fs, data.snapshots):
        path = join(data.snapshots, snapshot.file_name(number))
        if number in damaged:
            data.fs.rename(path, join(data.quarantine, snapshot.file_name(number)))
            data.fs.sync_dir(data.quarantine)
        elif number < older.number:
            data.fs.unlink(path)
    for path in (data.wal, data.snapshots):
        data.fs.sync_dir(path)


def _is_spent(older: Snapshot, generation: int, shard: int, number: int) -> bool:
    """Whether no snapshot needs a log file."""
    if generation != older.generation:
        return generation < older.generation
    return number < older.positions[shard]


def _trim_stages(core: Core, older: Snapshot) -> Iterator[None]:
    """Stages were committed by frames in such files: their records are in segments by now."""
    spent = core.stages.spent
    gone = [stage for stage, place in spent.items() if _is_spent(older, *place)]
    if gone:
        yield from core.background.run(partial(_remove_stages, core.data, gone))
        for stage in gone:
            del spent[stage]


def _remove_stages(data: DataDir, stages: list[StageId]) -> None:
    for stage in stages:
        path = join(data.stages, stage_file.file_name(stage))
        if data.fs.exists(path):
            data.fs.unlink(path)
    data.fs.sync_dir(data.stages)


def _look(core: Core, found: Found) -> None:
    data = core.data
    for number in snapshot.numbers(data.fs, data.snapshots):
        try:
            found.readable.append(snapshot.verify(data.fs, data.snapshots, number))
        except CorruptData:
            found.damaged.append(number)
        except OSError:
            # Nobody knows what is in it: nothing is removed this time.
            found.readable.clear()
            return
        if len(found.readable) == 2:
            return
