"""From a snapshot and the files in seg/ to topics with blocks. Deletes nothing it does not know."""

from __future__ import annotations

from collections import defaultdict

from topics.engine.account import Account
from topics.engine.block import Block, ghost_block
from topics.engine.core import Core
from topics.engine.idempotency import Keys
from topics.engine.segments import Segment
from topics.engine.topic import FIRST, Topic
from topics.errors import CorruptData
from topics.storage import cold, segment, snapshot
from topics.storage import columns as columns_codec
from topics.storage.fs import join
from topics.storage.segment import DEAD, FileBytes, Row
from topics.storage.snapshot import Snapshot, TopicRecord


def load_snapshot(core: Core) -> Snapshot | None:
    """Enters the newest readable snapshot into `core`; None when there never was one."""
    data = core.data
    numbers = snapshot.numbers(data.fs, data.snapshots)
    taken = None
    for number in numbers:
        try:
            taken = snapshot.read(data.fs, data.snapshots, number)
            break
        except CorruptData:
            continue
    if numbers and taken is None:
        raise CorruptData(
            "no snapshot can be read; nothing was changed. Restore from a backup, or run "
            "`topics repair --accept-loss`.",
            snapshots=numbers,
        )
    _sort_out_segments(core, taken, is_newest=bool(numbers) and taken is not None
                       and taken.number == numbers[0])  # fmt: skip
    if taken is None:
        return None
    core.snapshot_number = numbers[0]
    core.next_topic_id = taken.next_topic_id
    core.next_epoch = taken.next_epoch
    core.next_segment = max(core.next_segment, taken.next_segment)
    rows: dict[int, list[tuple[Segment, Row, bytes]]] = defaultdict(list)
    for number in taken.segments:
        held, flags = _open_segment(core, number)
        for row in held.info.rows:
            dead = flags[row.flag_at : row.flag_at + row.count]
            rows[row.topic_id].append((held, row, dead))
    for raw in taken.topics:
        record = snapshot.decode_topic(raw)
        _enter_topic(core, record, rows.pop(record.id, []))
    # Segments of topics that are gone: nothing needs them.
    for held in list(core.segments.live.values()):
        if held.left == 0:
            core.segments.discard(held)
    return taken


def _sort_out_segments(core: Core, taken: Snapshot | None, *, is_newest: bool) -> None:
    """Removes what is known to be left over, sets aside what is not known.

    A segment younger than the newest snapshot was never finished into one: all of its records are
    still in the log. That is only known while the newest snapshot can be read.
    """
    data = core.data
    known = set(taken.segments) | set(taken.garbage) if taken else set()
    young = taken.next_segment if taken else 1
    moved = False
    for name in data.fs.listdir(data.segments):
        path = join(data.segments, name)
        number = segment.parse_file_name(name)
        number = cold.parse_file_name(name) if number is None else number
        if name.endswith(".tmp"):
            data.fs.unlink(path)
            continue
        if number is not None:
            core.next_segment = max(core.next_segment, number + 1)
        if number in known:
            continue
        if number is not None and number >= young and (is_newest or taken is None):
            data.fs.unlink(path)
        else:
            data.fs.rename(path, join(data.quarantine, name))
            moved = True
    data.fs.sync_dir(data.segments)
    if moved:
        data.fs.sync_dir(data.quarantine)
    if taken is not None and is_newest:
        core.segments.garbage.extend(taken.garbage)


def _open_segment(core: Core, number: int) -> tuple[Segment, bytes]:
    data = core.data
    path = join(data.segments, segment.file_name(number))
    if data.fs.exists(path):
        file = data.fs.open(path, writable=False)
        try:
            info = segment.read_info(FileBytes(file), number)
            flags = file.pread(info.flag_count, info.flags_at)
        finally:
            file.close()
        return core.segments.adopt(info), flags
    if data.fs.exists(join(data.segments, cold.file_name(number))):
        info, flags = cold.read(data.fs, data.segments, number)
        return core.segments.adopt(info, is_cold=True), flags
    raise CorruptData(
        f"segment {number} is missing; nothing was changed. Restore it from a backup, or run "
        "`topics repair --accept-loss`.",
        segment=number,
    )


def _enter_topic(
    core: Core, record: TopicRecord, rows: list[tuple[Segment, Row, bytes]]
) -> None:
    topic = Topic(record.id, record.name, record.epoch, record.config)
    topic.config_version = record.config_version
    topic.head, topic.next_seq = record.head, record.head + 1
    topic.floor = record.floor
    topic.last_ts, topic.last_write_ts = record.last_ts, record.last_write_ts
    topic.bytes_total = record.bytes_total
    topic.ceiling_seq, topic.ceiling_bytes = record.ceiling_seq, record.ceiling_bytes
    topic.lost = tuple(tuple(pair) for pair in record.lost)  # type: ignore[misc]
    topic.holes = [tuple(hole) for hole in record.holes] or None  # type: ignore[misc]
    topic.account = Account.load(*record.account) if record.account is not None else None
    if record.keys:
        topic.keys = Keys()
        for digest, first, count, ts in record.keys:
            topic.keys.add(digest, first, count, ts)
        core.idempotency_keys += len(topic.keys)
    blocks = [_block(core, topic, *row) for row in rows if _wanted(topic, row[1])]
    ghosts = [ghost_block(first, last - first + 1, ts) for first, last, ts in record.ghosts]
    topic.blocks = sorted([*blocks, *ghosts], key=FIRST)
    core.enter(topic)
    _check_cover(topic)
    topic.settle(core.segments.columns_or_none)
    core.recount(topic)


def _wanted(topic: Topic, row: Row) -> bool:
    return row.stop > topic.floor and row.first <= topic.head


def _block(core: Core, topic: Topic, held: Segment, row: Row, dead: bytes) -> Block:
    block = Block(row.first, columns_codec.empty())
    block.columns = None
    block.count = row.count
    block.size = block.live_bytes = row.payload_bytes
    block.first_ts, block.last_ts = row.first_ts, row.last_ts
    block.segment, block.row = held, row
    held.left += 1
    if DEAD in dead:
        block.dead = bytearray(DEAD if flag == DEAD else 0 for flag in dead)
        block.dead_count = block.dead.count(DEAD)
    load = core.segments.columns_or_none
    start = max(topic.floor - row.first, 0)
    live = [(a, b) for a, b in block.live_runs(start, row.count)]
    count = sum(b - a for a, b in live)
    if count != row.count:
        columns = load(block)
        share = row.payload_bytes * count // row.count
        block.live_bytes = share if columns is None else sum(columns.span(a, b) for a, b in live)
    topic.live_count += count
    topic.live_bytes += block.live_bytes
    if row.flags & columns_codec.TAGS:
        topic.untagged = [*(topic.untagged or []), block]
    return block


def _check_cover(topic: Topic) -> None:
    """Every seq from the floor to the head is in a block or in a hole: nothing is silently gone."""
    at = topic.floor
    holes = list(topic.holes or ())
    blocks = list(topic.blocks)
    while at <= topic.head:
        if holes and holes[0][0] <= at:
            at = max(at, holes.pop(0)[1] + 1)
        elif blocks and blocks[0].first <= at:
            at = max(at, blocks.pop(0).stop)
        else:
            raise CorruptData(
                f"topic {topic.name}: no segment holds seq {at}; nothing was changed. Restore from "
                "a backup, or run `topics repair --accept-loss`.",
                topic=topic.name, seq=at,
            )  # fmt: skip
