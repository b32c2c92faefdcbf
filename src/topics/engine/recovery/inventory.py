"""From a snapshot and the files in seg/ to topics with blocks. Deletes nothing it does not know.

What a snapshot that can not be read may name is not known: while there is one in front of the
chosen one, every segment stays where it is, and the next start may find it readable again.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from topics.engine.commit.core import Core
from topics.engine.ops import cursors, lease_frames
from topics.engine.recovery import rederive
from topics.engine.state import router_frames
from topics.engine.state.account import Account
from topics.engine.state.block import Block, Segment, ghost_block
from topics.engine.state.lacking import Lacking
from topics.engine.state.producers import decode_dump
from topics.engine.state.topic import FIRST, Topic
from topics.errors import CorruptData
from topics.storage import cold, segment, snapshot
from topics.storage import columns as columns_codec
from topics.storage.datadir import DataDir
from topics.storage.flags import doubtful, sums
from topics.storage.fs import join, opened
from topics.storage.segment import DEAD, FileBytes, Row, SegmentInfo
from topics.storage.snapshot import Snapshot, TopicRecord

# A block of a segment, with its delete flags.
Held = tuple[Segment, Row, bytes]
# What to do about seqs that no segment holds.
Fill = Callable[[Topic, int, int], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The snapshot that recovery starts from; `summary` is None when there never was one."""

    summary: Snapshot | None
    records: list[TopicRecord]
    numbers: list[int]
    # The summaries of older snapshots.
    older: list[Snapshot] = field(default_factory=list)

    @property
    def is_newest(self) -> bool:
        return self.summary is not None and self.summary.number == self.numbers[0]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Names in seg/ that the chosen snapshot does not know."""

    # Files unfinished, or finished after the newest snapshot: the log has all of their records.
    spent: list[str]
    unknown: list[str]
    # Segments that only an older snapshot still needs.
    outlived: list[int]
    next_segment: int


def choose_snapshot(data: DataDir) -> Chosen:
    """The newest readable snapshot; raises CorruptData when there are some and none is readable."""
    numbers = snapshot.numbers(data.fs, data.snapshots)
    for number in numbers:
        try:
            summary, records = snapshot.read(data.fs, data.snapshots, number)
        except CorruptData:
            continue
        older = [each for each in numbers if each < number]
        return Chosen(summary, records, numbers, _summaries(data, older))
    if numbers:
        raise CorruptData(
            "no snapshot can be read; nothing was changed. Restore from a backup, or run "
            "`topics repair --accept-loss`.",
            snapshots=numbers,
        )
    return Chosen(None, [], [])


def _summaries(data: DataDir, numbers: list[int]) -> list[Snapshot]:
    found = []
    for number in numbers:
        with contextlib.suppress(CorruptData):
            found.append(snapshot.read_summary(data.fs, data.snapshots, number))
    return found


def load_snapshot(core: Core) -> tuple[Snapshot | None, Leftovers]:
    """Enters the newest readable snapshot into `core`; None when there never was one."""
    chosen = choose_snapshot(core.data)
    left = leftovers(core.data, chosen)
    core.numbers.pass_segment(left.next_segment - 1)
    enter_snapshot(core, chosen)
    core.segments.garbage.extend(left.outlived)
    _sync_flags(core)
    return chosen.summary, left


def _sync_flags(core: Core) -> None:
    """Makes the delete flags that were just read durable.

    A process that was killed may have left them in the page cache only, and the frames of those
    deletes will be trimmed on the strength of them. After a failed sync the cache may show flags
    that no sync will write: they are written again.
    """
    data = core.data
    for held in core.segments.live.values():
        if held.is_cold or not held.flag_sums:
            continue
        with opened(data.fs, join(data.segments, segment.file_name(held.number))) as file:
            if data.is_poisoned:
                flags = file.pread(held.info.flag_count, held.info.flags_at)
                file.pwrite(flags, held.info.flags_at)
            file.sync()


def enter_snapshot(core: Core, chosen: Chosen) -> None:
    """Enters the topics of a snapshot with their segments; changes nothing on the disk."""
    taken = chosen.summary
    if taken is None:
        return
    begin_from(core, taken, chosen.numbers[0])
    if chosen.is_newest:
        core.segments.garbage.extend(taken.garbage)
    for record in chosen.records:
        for raw in record.routers:
            rederive.define(core, router_frames.decode_router(raw))
        for raw in record.fed:
            core.routers.note_fed(record.id, router_frames.decode_fed(raw), copied=1)
    rows: dict[int, list[Held]] = defaultdict(list)
    for number, expected in taken.sums().items():
        held, flags = open_segment(core, number)
        if doubtful(held.info.rows, flags, expected):
            raise CorruptData(
                f"segment {number}: its delete flags are damaged; nothing was changed. "
                "Restore it from a backup, or run `topics repair --accept-loss`.",
                segment=number,
            )
        core.routers.segments.append(held)
        for row in held.info.rows:
            dead = flags[row.flag_at : row.flag_at + row.count]
            rows[row.topic_id].append((held, row, dead))
    opened_now = list(core.segments.live.values())
    for held in opened_now:
        # Kept until every topic is there: the first one may already be done with its part.
        held.left += 1
    for record in chosen.records:
        enter_topic(core, record, rows.pop(record.id, []))
    for held in opened_now:
        held.left -= 1
    discard_unused(core)
    known = dict(taken.soiled_ms)
    for number in core.segments.soiled_ms:
        core.segments.soiled_ms[number] = known.get(number, 0)


def begin_from(core: Core, taken: Snapshot, newest_number: int) -> None:
    core.numbers.begin_from(
        newest_number, next_topic_id=taken.next_topic_id, next_epoch=taken.next_epoch
    )
    core.numbers.pass_segment(taken.next_segment - 1)
    core.routers.next_id = max(core.routers.next_id, taken.next_router_id)


def discard_unused(core: Core) -> None:
    """Segments of topics that are gone: nothing needs them."""
    for held in list(core.segments.live.values()):
        core.segments.attached(held)


def leftovers(data: DataDir, chosen: Chosen) -> Leftovers:
    """Sorts the names in seg/. What is not known to be left over counts as unknown.

    A segment younger than the newest snapshot was never finished into one. That is only known
    while the newest snapshot can be read.
    """
    taken = chosen.summary
    known = set(taken.segments) | set(taken.garbage) if taken else set()
    older = {number for each in chosen.older for number in (*each.segments, *each.garbage)}
    young = taken.next_segment if taken else 1
    left = Leftovers([], [], [], 1)
    next_segment = 1
    for name in data.fs.listdir(data.segments):
        if name.endswith(".tmp"):
            left.spent.append(name)
            continue
        number = number_of(name)
        if number is not None:
            next_segment = max(next_segment, number + 1)
        if number in known or not (chosen.is_newest or taken is None):
            continue
        if number is not None and number in older:
            if number not in left.outlived:
                left.outlived.append(number)
        else:
            is_young = number is not None and number >= young
            (left.spent if is_young else left.unknown).append(name)
    return Leftovers(left.spent, left.unknown, left.outlived, next_segment)


def clear_away(core: Core, left: Leftovers) -> None:
    """Removes what is known to be left over, sets aside what is not known.

    Once everything else is recovered: a start that is refused has changed nothing, and the log was
    seen to have what is removed.
    """
    data = core.data
    for name in left.spent:
        if name.endswith(".tmp") or _is_covered(core, name):
            data.fs.unlink(join(data.segments, name))
        else:
            left.unknown.append(name)
    for name in data.fs.listdir(data.snapshots):
        # A snapshot that never got its name: the log still has all of it.
        if name.endswith(".tmp"):
            data.fs.unlink(join(data.snapshots, name))
    for name in left.unknown:
        data.fs.rename(join(data.segments, name), join(data.quarantine, name))
    data.fs.sync_dir(data.segments)
    if left.unknown:
        data.fs.sync_dir(data.quarantine)


def _is_covered(core: Core, name: str) -> bool:
    """Whether the topics have every record of a segment, or had them before they were dropped."""
    number = number_of(name)
    try:
        rows = [] if number is None else _read_segment(core, number)[0].rows
    except CorruptData:
        return False
    topics = [(core.by_id.get(row.topic_id), row) for row in rows]
    return all(
        row.topic_id < core.numbers.next_topic_id if topic is None else row.stop - 1 <= topic.head
        for topic, row in topics
    )


def number_of(name: str) -> int | None:
    """The number of a segment, from the name of its file in either tier."""
    number = segment.parse_file_name(name)
    return cold.parse_file_name(name) if number is None else number


def open_segment(core: Core, number: int) -> tuple[Segment, bytes]:
    info, flags, is_cold = _read_segment(core, number)
    return core.segments.adopt(info, sums(info.rows, flags), is_cold=is_cold), flags


def _read_segment(core: Core, number: int) -> tuple[SegmentInfo, bytes, bool]:
    """Table, flags and whether it is cold. Raises CorruptData."""
    data = core.data
    path = join(data.segments, segment.file_name(number))
    if data.fs.exists(path):
        file = data.fs.open(path, writable=False)
        try:
            info = segment.read_info(FileBytes(file), number)
            flags = file.pread(info.flag_count, info.flags_at)
        finally:
            file.close()
        return info, flags, False
    if data.fs.exists(join(data.segments, cold.file_name(number))):
        info, flags = cold.read(data.fs, data.segments, number)
        return info, flags, True
    raise CorruptData(
        f"segment {number} is missing; nothing was changed. Restore it from a backup, or run "
        "`topics repair --accept-loss`.",
        segment=number,
    )


def enter_topic(
    core: Core, record: TopicRecord, rows: list[Held], fill: Fill | None = None
) -> Topic:
    """A topic as a snapshot has it. `fill` is told of seqs that are nowhere; without it, raises."""
    topic = Topic(record.id, record.name, record.epoch, record.config)
    topic.config_version = record.config_version
    topic.head, topic.next_seq = record.head, record.head + 1
    topic.floor = record.floor
    topic.last_ts, topic.last_write_ts = record.last_ts, record.last_write_ts
    topic.bytes_total = record.bytes_total
    topic.cut_totals = (record.bytes_total, record.bytes_total)
    topic.note_compacted(Lacking(*record.compacted))
    topic.ceiling.replay(record.ceiling_seq)
    topic.lost = tuple(tuple(pair) for pair in record.lost)  # type: ignore[misc]
    topic.holes = [tuple(hole) for hole in record.holes] or None  # type: ignore[misc]
    topic.account = Account.load(*record.account) if record.account is not None else None
    # What an ephemeral topic once sealed is gone; should it be promoted, the log has it anew.
    is_resident = record.config.durability == "ephemeral"
    topic.segments_from = core.numbers.next_segment if is_resident else record.segments_from
    cursors.enter(topic, record.cursors, record.cursors_version)
    for digest, first, count, ts in record.keys:
        core.remember_key(topic, digest, first, count, ts)
    if record.producers:
        core.stages.load(topic.id, decode_dump(record.producers), core.settings.max_producers)
    gone = {first: last for first, last, _ in record.ghosts}
    blocks = [
        _block(core, topic, held, row, dead)
        for held, row, dead in rows
        # A run that is all deleted may still stand in a segment that others keep.
        if _wanted(topic, held, row) and gone.get(row.first, 0) < row.stop - 1
    ]
    ghosts = [ghost_block(first, last - first + 1, ts) for first, last, ts in record.ghosts]
    topic.blocks = sorted([*blocks, *ghosts], key=FIRST)
    core.enter(topic)
    for first, last in list(uncovered(topic)):
        (fill or _refuse)(topic, first, last)
    topic.pass_gone()
    core.recount(topic)
    if topic.queue is not None:
        topic.queue.dead_lettered = record.dead_lettered
    if record.leases:
        lease_frames.replay(core, topic, record.leases)
    return topic


def _wanted(topic: Topic, held: Segment, row: Row) -> bool:
    is_own = held.number >= topic.segments_from
    return is_own and row.stop > topic.floor and row.first <= topic.head


def _block(core: Core, topic: Topic, held: Segment, row: Row, dead: bytes) -> Block:
    block = Block(row.first, columns_codec.empty())
    block.columns = None
    block.count = row.count
    block.size = block.live_bytes = row.payload_bytes
    block.first_ts, block.last_ts = row.first_ts, row.last_ts
    block.segment, block.row = held, row
    if DEAD in dead:
        block.dead = bytearray(DEAD if flag == DEAD else 0 for flag in dead)
        block.dead_count = block.dead.count(DEAD)
    start = max(topic.floor - row.first, 0)
    live = [(a, b) for a, b in block.live_runs(start, row.count)]
    count = sum(b - a for a, b in live)
    if count != row.count:
        spans = core.segments.spans(block)
        block.live_bytes = sum(spans.span(a, b) for a, b in live)
    held.attach(block)
    topic.live_count += count
    topic.live_bytes += block.live_bytes
    if row.flags & columns_codec.TAGS and not topic.config.is_bucket:
        if topic.untagged is None:
            topic.untagged = []
        topic.untagged.append(block)
    return block


def uncovered(topic: Topic) -> Iterator[tuple[int, int]]:
    """The ranges from the floor to the head that are in no block and in no hole."""
    at = topic.floor
    spans = [(first, last) for first, last, _ in topic.holes or ()]
    spans.extend((block.first, block.stop - 1) for block in topic.blocks)
    for first, last in sorted(spans):
        if first > at:
            yield at, first - 1
        at = max(at, last + 1)
    if at <= topic.head:
        yield at, topic.head


def _refuse(topic: Topic, first: int, last: int) -> None:
    raise CorruptData(
        f"topic {topic.name}: no segment holds seqs {first} to {last}; nothing was changed. "
        "Restore from a backup, or run `topics repair --accept-loss`.",
        topic=topic.name, first=first, last=last,
    )  # fmt: skip
