"""The part of a salvage that reads segments: every block whose checksum holds is used."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.offline.salvaged import Salvage
from topics.engine.ops.deletes import extend_runs
from topics.engine.recovery.inventory import Held, enter_topic, number_of, open_segment
from topics.engine.state.block import Block, Segment, ghost_block
from topics.engine.state.topic import Topic
from topics.errors import CorruptData, InvalidRequest, StorageError
from topics.storage import cold, segment, snapshot
from topics.storage.columns import Columns
from topics.storage.flags import Sum, doubtful, restored
from topics.storage.frames import checksum
from topics.storage.fs import join, opened
from topics.storage.segment import DEAD, FileBytes, Row
from topics.storage.snapshot import Snapshot, TopicRecord
from topics.types import SEQ_BASE, TopicConfig, check_name


def number_behind_all(core: Core) -> None:
    for name in core.data.fs.listdir(core.data.segments):
        number = number_of(name)
        if number is not None:
            core.numbers.pass_segment(number)


@dataclass(slots=True)
class Shelf:
    """The rows of all readable segments by topic; `bad` fail their checksum."""

    good: dict[int, list[Held]] = field(default_factory=lambda: defaultdict(list))
    bad: dict[int, list[Held]] = field(default_factory=lambda: defaultdict(list))


def _read_segments(found: Salvage, numbers: list[int], sums: dict[int, list[Sum]]) -> Shelf:
    core, shelf = found.core, Shelf()
    for number in numbers:
        try:
            held, flags = open_segment(core, number)
        except (CorruptData, OSError):
            found.damaged_segments.add(number)
            continue
        sound = restored(held.info.rows, flags, sums.get(number, []))
        bad = set() if held.is_cold and core.segments.store is None else _bad_rows(core, held)
        if held.is_cold and not _has_spans(core, held):
            if core.segments.store is None:
                raise StorageError(
                    f"segment {number}: the sizes of its records are damaged here and whole in the "
                    "cold store; nothing was changed. Name it with TOPICS_COLD_DIR or --cold-dir.",
                    segment=number,
                )
            # It is made anew from its object.
            found.damaged_segments.add(number)
        # Of a block whose flags are lost nobody can say what was deleted: all of it counts as lost.
        bad |= set(doubtful(held.info.rows, sound, sums.get(number, [])))
        if bad or sound != flags:
            found.damaged_segments.add(number)
        for row in held.info.rows:
            dead = sound[row.flag_at : row.flag_at + row.count]
            if row in bad:
                shelf.bad[row.topic_id].append((held, row, dead))
            else:
                shelf.good[row.topic_id].append((held, row, dead))
    return shelf


def _has_spans(core: Core, held: Segment) -> bool:
    try:
        for row in held.info.rows:
            cold.read_spans(core.data.fs, core.data.segments, held.info, row)
    except (CorruptData, OSError):
        return False
    return True


def _bad_rows(core: Core, held: Segment) -> set[Row]:
    bad = set()
    name = segment.file_name(held.number)
    if held.is_cold:
        assert core.segments.store is not None
        store = core.segments.store
        for row in held.info.rows:
            try:
                raw = store.get_range(name, row.offset, row.end - row.offset)
                if checksum(raw) != row.checksum:
                    bad.add(row)
            except OSError:
                bad.add(row)
        return bad
    with opened(core.data.fs, join(core.data.segments, name), writable=False) as file:
        for row in held.info.rows:
            try:
                segment.read_block(FileBytes(file), row, held.number)
            except (CorruptData, OSError):
                bad.add(row)
    return bad


def enter_base(found: Salvage, summary: Snapshot, records: list[TopicRecord]) -> None:
    core = found.core
    shelf = _read_segments(found, summary.segments, summary.sums())
    for record in records:
        held = {first for first, _, _ in record.ghosts}
        record.ghosts.extend(
            ghost
            for owner, row, dead in shelf.bad.get(record.id, [])
            for ghost in _dead_runs(row.first, dead, row.last_ts)
            if owner.number >= record.segments_from
            and row.first not in held
            and ghost[1] >= record.floor
            and ghost[0] <= record.head
        )
        topic = enter_topic(core, record, shelf.good.get(record.id, []), found.fill)
        _take_out(found, topic)
    _let_go(found)


def enter_unnamed(found: Salvage) -> None:
    """Topics from segments alone, when no snapshot says what they were called."""
    core = found.core
    names = core.data.fs.listdir(core.data.segments)
    numbers = sorted({n for n in map(number_of, names) if n is not None})
    shelf = _read_segments(found, numbers, {})
    _note_blank(found, shelf)
    found.named = _names_agreed_on(core)
    for topic_id in sorted(shelf.good.keys() | shelf.bad.keys()):
        name, config, version = found.name_of(topic_id)
        rows = _disjoint(shelf.good.get(topic_id, []))
        bad = shelf.bad.get(topic_id, [])
        every = [row for _, row, _ in [*rows, *bad]]
        record = TopicRecord(
            topic_id, name, max(row.epoch for row in every), config, version,
            max(row.stop for row in every) - 1, SEQ_BASE, max(row.last_ts for row in every),
            None, sum(row.payload_bytes for row in every), 0, [], [],
            [g for _, row, dead in bad for g in _dead_runs(row.first, dead, row.last_ts)], None, [],
        )  # fmt: skip
        topic = enter_topic(core, record, rows, found.fill)
        found.nameless.add(topic.id)
        _take_out(found, topic)
        for index in reversed(range(len(topic.blocks))):
            _cut_blank(found, topic, index)
        topic.pass_gone()
    _let_go(found)


def _names_agreed_on(core: Core) -> dict[int, tuple[str, TopicConfig, int]]:
    """Names and configs in which two damaged snapshots, written apart, do not differ."""
    data = core.data
    seen: dict[tuple[int, str, TopicConfig], int] = {}
    agreed: dict[int, tuple[str, TopicConfig, int]] = {}
    for number in snapshot.numbers(data.fs, data.snapshots):
        for record in snapshot.read_unchecked(data.fs, data.snapshots, number):
            key = (record.id, record.name, record.config)
            is_free = record.name not in [name for name, _, _ in agreed.values()]
            if key in seen and record.id not in agreed and is_free and _is_name(record.name):
                agreed[record.id] = (record.name, record.config, seen[key])
            seen[key] = record.config_version
    return agreed


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except InvalidRequest:
        return False
    return True


def _disjoint(rows: list[Held]) -> list[Held]:
    """Each seq once: of rows that overlap, the one in the youngest segment."""
    kept: list[Held] = []
    for held in sorted(rows, key=lambda item: -item[0].number):
        row = held[1]
        if all(row.stop <= other.first or other.stop <= row.first for _, other, _ in kept):
            kept.append(held)
    return sorted(kept, key=lambda item: item[1].first)


def _dead_runs(first: int, dead: bytes, ts: int) -> list[tuple[int, int, int]]:
    """Runs of deleted records in a block that can not be read: still known to be deleted."""
    seqs: array[int] = array("Q")
    extend_runs(seqs, [first + index for index, flag in enumerate(dead) if flag == DEAD])
    return [(a, b, ts) for a, b in zip(seqs[::2], seqs[1::2], strict=True)]


def _take_out(found: Salvage, topic: Topic) -> None:
    """Brings the good blocks of damaged segments into memory: they go into a new segment."""
    segments = found.core.segments
    for block in topic.blocks:
        if block.segment is None or block.segment.number not in found.damaged_segments:
            continue
        columns = segments.columns_waiting(block)
        segments.forget(block)
        block.segment.left -= 1
        block.columns, block.segment, block.row = columns, None, None
        topic.unseal(block)


def _note_blank(found: Salvage, shelf: Shelf) -> None:
    """Segments with records that were below the floor when they were written are made anew."""
    segments = found.core.segments
    for held, row, dead in chain.from_iterable(shelf.good.values()):
        if held.number not in found.damaged_segments:
            (columns,) = segments.read_rows(held, [row], is_cold=held.is_cold)
            if _blank(columns, dead):
                found.damaged_segments.add(held.number)


def _blank(columns: Columns, dead: bytes) -> list[int]:
    """Records without bytes that were not deleted: nobody remembers why they went."""
    sizes = np.diff(np.frombuffer(columns.ends, np.uint32), prepend=np.uint32(0))
    is_blank = (sizes == 0) & (np.frombuffer(dead, np.uint8) != DEAD)
    return np.flatnonzero(is_blank).tolist()


def _cut_blank(found: Salvage, topic: Topic, index: int) -> None:
    """Takes such records off the front of a block that is in memory: they count as lost."""
    block = topic.blocks[index]
    dead = bytes(block.count) if block.dead is None else bytes(block.dead)
    columns = block.columns
    blank = [] if columns is None else _blank(columns, dead)
    if columns is None or not blank:
        return
    stop = blank[-1] + 1
    deleted = _dead_runs(block.first, dead[:stop], block.first_ts)
    parts = [ghost_block(first, last - first + 1, ts) for first, last, ts in deleted]
    topic.seal(block)
    if stop < block.count:
        left = Block(block.first + stop, columns.cut(stop, block.count))
        left.dead, left.dead_count = bytearray(dead[stop:]), dead[stop:].count(DEAD)
        left.live_bytes = block.live_bytes
        topic.unseal(left)
        parts.append(left)
    topic.blocks[index : index + 1] = parts
    topic.live_count -= len(blank)
    lost: array[int] = array("Q")
    extend_runs(lost, [block.first + i for i in blank])
    for first, last in zip(lost[::2], lost[1::2], strict=True):
        found.fill(topic, first, last)


def _let_go(found: Salvage) -> None:
    """Damaged segments are set aside, never removed; unused whole ones become garbage."""
    segments = found.core.segments
    for held in list(segments.live.values()):
        if held.number in found.damaged_segments:
            del segments.live[held.number]
        elif held.left == 0:
            segments.discard(held)
