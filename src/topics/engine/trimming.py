"""Trimming: what neither of the two newest snapshots needs leaves the directory."""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.core import Core
from topics.errors import CorruptData
from topics.storage import snapshot, wal
from topics.storage.fs import join
from topics.storage.snapshot import Snapshot


def trim(core: Core) -> Iterator[None]:
    """Removes log files, snapshots and segments that the two newest snapshots do not need.

    Segments go first: as long as a deleted record's bytes are there, so is the delete in the log.
    """
    data = core.data
    readable, unreadable = _summaries(core)
    if len(readable) < 2:
        return
    newest, older = readable
    needed = {*older.segments, *newest.segments}
    for number in newest.garbage:
        if number not in needed and number in core.segments.garbage:
            core.segments.remove(number)
            core.segments.garbage.remove(number)
            core.tiering.forget(number)
            yield
    data.fs.sync_dir(data.segments)
    for name in data.fs.listdir(data.wal):
        parsed = wal.parse_file_name(name)
        if parsed is None:
            continue
        generation, shard, number = parsed
        spent = generation < older.generation or (
            generation == older.generation and number < older.positions[shard]
        )
        if spent:
            data.fs.unlink(join(data.wal, name))
            yield
    for number in snapshot.numbers(data.fs, data.snapshots):
        path = join(data.snapshots, snapshot.file_name(number))
        if number in unreadable:
            data.fs.rename(path, join(data.quarantine, snapshot.file_name(number)))
            data.fs.sync_dir(data.quarantine)
        elif number < older.number:
            data.fs.unlink(path)
    for path in (data.wal, data.snapshots):
        data.fs.sync_dir(path)
    yield


def _summaries(core: Core) -> tuple[list[Snapshot], list[int]]:
    """The two newest snapshots that can be read, and the numbers of those that can not."""
    data, readable, unreadable = core.data, [], []
    for number in snapshot.numbers(data.fs, data.snapshots):
        try:
            readable.append(snapshot.read_summary(data.fs, data.snapshots, number))
        except CorruptData:
            unreadable.append(number)
        if len(readable) == 2:
            break
    return readable, unreadable
