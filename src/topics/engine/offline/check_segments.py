"""The part of a check that looks at segments: tables, blocks, delete flags, cold copies."""

from __future__ import annotations

from typing import Protocol

from topics.engine.offline.findings import Report
from topics.engine.recovery.inventory import Chosen, leftovers, number_of
from topics.errors import CorruptData
from topics.storage import cold, segment, snapshot
from topics.storage import flags as flags_of
from topics.storage.datadir import DataDir
from topics.storage.fs import join, opened, shown
from topics.storage.segment import Bytes, FileBytes, SegmentInfo
from topics.storage.snapshot import Snapshot
from topics.storage.tiers import Store, StoreBytes


class Checker(Protocol):
    """What a check of segments needs to know, and to whom it tells what it found."""

    data: DataDir
    report: Report
    store: Store | None

    def read(self, count: int) -> None:
        """Notes that one more file was looked at."""
        ...


def check_segments(checker: Checker, summaries: list[Snapshot]) -> None:
    data = checker.data
    numbers = snapshot.numbers(data.fs, data.snapshots)
    needed = {number for summary in summaries for number in summary.segments}
    # Without a readable snapshot nobody can say which are needed.
    all_matter = bool(numbers) and not summaries
    names = data.fs.listdir(data.segments)
    if summaries:
        left = leftovers(data, Chosen(summaries[0], [], numbers, summaries[1:]))
        for name in left.spent:
            checker.report.warn(f"seg/{shown(name)}", "left_over", "the next start removes it")
        for name in left.unknown:
            if number_of(name) not in needed:
                checker.report.warn(
                    f"seg/{shown(name)}", "unknown_file", "the next start sets it aside"
                )
    elif all_matter:
        checker.report.warn("seg", "unknown_file", "no snapshot says which segments are needed")
    every = [summary.sums() for summary in summaries]
    for name in names:
        number = number_of(name)
        if number is not None:
            sums = [each.get(number, []) for each in every]
            _check_one(checker, name, number, sums, matters=all_matter or number in needed)
    present = {number_of(name) for name in names}
    for number in sorted(needed - present):
        path = f"seg/{segment.file_name(number)}"
        checker.report.problem(path, "segment_missing", "a snapshot needs it", segment=number)


def _check_one(
    checker: Checker, name: str, number: int, sums: list[list[flags_of.Sum]], *, matters: bool
) -> None:
    data, report = checker.data, checker.report
    where = f"seg/{shown(name)}"
    report.checked.segments += 1
    with opened(data.fs, join(data.segments, name), writable=False) as file:
        checker.read(file.size())
        try:
            if cold.parse_file_name(name) is not None:
                info, flags = cold.read(data.fs, data.segments, number)
                for row in info.rows:
                    cold.read_spans(data.fs, data.segments, info, row)
                _check_cold(checker, info, where, matters=matters)
            else:
                source = FileBytes(file)
                info = segment.read_info(source, number)
                flags = source.read(info.flag_count, info.flags_at)
                if source.size() != info.size:
                    report.note(matters, where, "segment_damaged", "bytes behind its end")
                _check_blocks(checker, source, info, where, matters=matters)
        except CorruptData as error:
            kind = "segment_damaged" if name.endswith(".seg") else "cold_table_damaged"
            report.note(matters, where, kind, error.message)
            return
    if any(flags_of.doubtful(info.rows, flags, each) for each in sums or [[]]):
        report.note(matters, where, "flags_damaged", "its delete flags are not those written")


def _check_blocks(
    checker: Checker, source: Bytes, info: SegmentInfo, where: str, *, matters: bool
) -> None:
    for row in info.rows:
        try:
            segment.read_block(source, row, info.number)
        except CorruptData as error:
            checker.report.note(matters, where, "block_damaged", error.message)


def _check_cold(checker: Checker, info: SegmentInfo, table: str, *, matters: bool) -> None:
    """The object behind a cold table, when the store was given."""
    if checker.store is None:
        checker.report.warn(table, "cold_unchecked", "give --cold-dir to check the object")
        return
    name = segment.file_name(info.number)
    source = StoreBytes(checker.store, name)
    where = f"cold:{name}"
    try:
        stored = segment.read_info(source, info.number)
        if stored.rows != info.rows:
            checker.report.note(matters, where, "cold_damaged", "its table differs from ours")
        _check_blocks(checker, source, info, where, matters=matters)
        checker.report.checked.bytes += stored.size
    except FileNotFoundError:
        checker.report.note(matters, where, "cold_missing", "the store has no such object")
    except (CorruptData, OSError) as error:
        checker.report.note(matters, where, "cold_damaged", str(error))
