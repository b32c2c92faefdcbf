"""Checkpoints: records go into segments, the rest into a snapshot, then the log is trimmed.

Runs in slices beside writes. The order is the promise:

1. Every shard goes on in a new log file; what was written before is made durable.
2. Each topic's unsealed records are handed to a segment and its state is recorded *at that
   moment*; frames after the rotation are replayed on top, which is idempotent.
3. Segments are synced and renamed; delete flags of older segments are synced.
4. What was captured is durable in the log as well; the snapshot is synced and renamed.
5. Only then is removed what neither this snapshot nor the one before it needs.

All of it runs inside `Core.sealing`: what routers copy meanwhile depends on no other topic, so
topics are captured in any order, whatever becomes of sources and routers in between.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from topics.engine.commit.core import Core
from topics.engine.ops import lease_frames
from topics.engine.ops.commit_frames import producers_of
from topics.engine.state.block import Block, Segment, ghost_block
from topics.engine.state.idempotency import Keys
from topics.engine.state.reblocking import reblock
from topics.engine.state.router_frames import encode
from topics.engine.state.topic import FIRST, Topic
from topics.engine.upkeep.flagging import write_flags
from topics.engine.upkeep.rewriting import erased, finished
from topics.engine.upkeep.trimming import trim
from topics.storage.columns import Columns
from topics.storage.segment import DEAD, Row, SegmentWriter
from topics.storage.snapshot import Snapshot, SnapshotWriter, TopicRecord

# What a slice may do when a segment comes into use: deleted records, or so many for a block.
SWITCH_COST_MAX, SWITCH_COST = 500, 8


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A run of records in no segment yet, with its deletes as the snapshot has the topic.

    Later ones are in the log after it; what is deleted whole meanwhile forgets its own columns.
    """

    first: int
    columns: Columns
    dead: bytes | None
    floor: int


@dataclass(slots=True)
class Piece:
    """A block as it was written into a segment."""

    topic: Topic
    row: Row
    columns: Columns


@dataclass(slots=True)
class Pass:
    """One checkpoint under way."""

    # The log file and the frame that each shard goes on with.
    cut: list[tuple[int, int]]
    next_topic_id: int
    next_epoch: int
    segments: set[int]
    garbage: list[int]
    writer: SnapshotWriter
    captured: int = 0
    packed: SegmentWriter | None = None
    # Idempotency keys of writes up to a head, by topic id.
    keys: list[tuple[int, int, Keys]] = field(default_factory=list)
    # Pieces by segment: a packed one stays open while a topic's own ones come and go.
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    unfinished: dict[int, SegmentWriter] = field(default_factory=dict)
    made: dict[int, Segment] = field(default_factory=dict)

    def abandon(self) -> None:
        """Leaves nothing behind but what is in place and whole."""
        with contextlib.suppress(OSError):
            for writer in self.unfinished.values():
                writer.abandon()
            self.writer.abandon()


def checkpoint(core: Core) -> Iterator[None]:
    """Takes a checkpoint, then trims; each step is a bounded piece of work."""
    yield from take(core)
    yield from trim(core)


def take(core: Core) -> Iterator[None]:
    """Steps 1 to 4: everything so far is in segments and in a durable snapshot."""
    committer = core.committer
    # Else the loop would wait for their syncs.
    yield from core.background.until_done(core.log.prepare)
    committer.flush()
    cut = core.cut_log()
    yield from core.until_durable()
    # What stands in front of the cut is trimmed: all of it has to be in what is captured.
    begun = committer.held
    while not begun.isdisjoint(committer.held):
        yield from core.background.wait()
    topics = list(core.by_id.values())
    named = dict(core.segments.live)
    run = Pass(
        cut, core.numbers.next_topic_id, core.numbers.next_epoch,
        set(core.segments.live), [*core.segments.garbage, *core.tiering.unneeded],
        SnapshotWriter(core.data.fs, core.data.snapshots, core.numbers.snapshot + 1),
    )  # fmt: skip
    with core.abandoning(run.abandon):
        yield from _take(core, run, topics, named)


def _take(core: Core, run: Pass, topics: list[Topic], named: dict[int, Segment]) -> Iterator[None]:
    for topic in topics:
        if not topic.dropped:
            yield from _seal_topic(core, run, topic, _capture(core, run, topic))
    if run.packed is not None:
        yield from _finish_segment(core, run, run.packed)
    yield from _write_keys(run)
    # Also those that nothing needs any more since: the snapshot still names them, and the frames
    # of their deletes are trimmed.
    named |= run.made | core.segments.live
    for segment in named.values():
        yield from write_flags(core, segment)
    numbers = sorted(run.segments)
    taken = Snapshot(
        core.numbers.snapshot + 1, core.generation, [number for number, _ in run.cut],
        [lsn for _, lsn in run.cut], run.next_topic_id, run.next_epoch,
        core.numbers.next_segment, numbers, run.garbage, core.routers.next_id,
        [named[number].flag_sums for number in numbers],
        [(stage, *place) for stage, place in core.stages.spent.items()],
        [(n, ms) for n, ms in core.segments.soiled_ms.items() if ms and n in run.segments],
        max(core.clock.wall_ms(), 0),
    )  # fmt: skip
    # Some topics were captured with frames from after the cut. If this snapshot can not be read one
    # day, the one before it and the log have to come to the same.
    yield from core.until_durable()
    yield from core.background.run(lambda: run.writer.finish(taken))
    core.numbers.pass_snapshot(taken.number)


def capture(topic: Topic) -> TopicRecord:
    ghosts = [(b.first, b.stop - 1, b.last_ts) for b in topic.blocks if b.is_ghost]
    is_resident = topic.config.durability == "ephemeral"
    cursors, version = ([], 0) if topic.cursors is None else topic.cursors.dump()
    return TopicRecord(
        topic.id, topic.name, topic.epoch, topic.config, topic.config_version,
        # An ephemeral topic's records are not kept: its head is, as a ceiling.
        topic.floor - 1 if is_resident else topic.head,
        topic.floor, topic.last_ts, topic.last_write_ts, topic.bytes_total,
        topic.head if is_resident else topic.ceiling.seq,
        list(topic.lost), [] if is_resident else list(topic.holes or ()),
        [] if is_resident else ghosts,
        topic.account.dump() if topic.account is not None else None, [],
        cursors, version, dead_lettered=topic.queue.dead_lettered if topic.queue else 0,
        segments_from=topic.segments_from, compacted=topic.compacted,
    )  # fmt: skip


def _capture(core: Core, run: Pass, topic: Topic) -> list[Unsealed]:
    """Records a topic's state at this moment; what of it is in no segment yet."""
    record = capture(topic)
    record.leases = lease_frames.kept(core, topic)
    record.producers = producers_of(core, topic)
    record.routers = [encode(router.frame()) for router in core.routers.kept_for(topic)]
    record.fed = [encode(fed) for fed in core.routers.fed.get(topic.id, {}).values()]
    run.writer.add(record)
    topic.cut_totals = (topic.cut_totals[1], topic.bytes_total)
    run.captured += 1
    if topic.config.durability == "ephemeral":
        # Its records go with the process, and their keys with them.
        return []
    if topic.keys is not None:
        run.keys.append((topic.id, topic.head, topic.keys))
    blocks = [b for b in topic.blocks if b.segment is None and not b.is_ghost]
    if blocks:
        blocks[-1].freeze()
    return [
        Unsealed(b.first, b.columns, None if b.dead is None else bytes(b.dead), topic.floor)
        for b in blocks
        if b.columns is not None
    ]


def _write_keys(run: Pass) -> Iterator[None]:
    for topic_id, head, keys in run.keys:
        for part in keys.parts(head):
            run.writer.add_keys(topic_id, part)
            yield


def _seal_topic(core: Core, run: Pass, topic: Topic, unsealed: list[Unsealed]) -> Iterator[None]:
    settings = core.settings
    if not unsealed:
        if run.captured % 256 == 0 or topic.config.durability == "ephemeral":
            yield
        return
    size = sum(len(each.columns.payload) for each in unsealed)
    owns = size >= settings.own_segment_bytes
    writer = _writer(core, run) if owns else (run.packed or _writer(core, run))
    written = 0
    held = [(each.first, each.columns) for each in unsealed]
    for first, columns in reblock(held, settings.block_bytes):
        # The frames of these deletes are trimmed with the log: the segment must know them itself.
        dead = _dead_between(unsealed, first, first + len(columns))
        kept = erased(columns, first, dead, unsealed[0].floor)
        row = writer.add(kept, topic_id=topic.id, epoch=topic.epoch, first=first, dead=dead)
        run.pieces.setdefault(writer.number, []).append(Piece(topic, row, kept))
        written += len(kept.payload)
        yield
        if owns and written >= settings.segment_bytes:
            yield from _finish_segment(core, run, writer)
            writer, written = _writer(core, run), 0
    if owns:
        yield from _finish_segment(core, run, writer)
    elif writer.size >= settings.segment_bytes:
        yield from _finish_segment(core, run, writer)
        run.packed = None
    else:
        run.packed = writer


def _writer(core: Core, run: Pass) -> SegmentWriter:
    number = core.numbers.new_segment()
    run.segments.add(number)
    run.unfinished[number] = SegmentWriter(core.data.fs, core.data.segments, number)
    return run.unfinished[number]


def _dead_between(unsealed: list[Unsealed], first: int, stop: int) -> bytes:
    """The delete flags of the seqs [first, stop)."""
    flags = bytearray(stop - first)
    index = max(bisect_right(unsealed, first, key=FIRST) - 1, 0)
    while index < len(unsealed) and unsealed[index].first < stop:
        run = unsealed[index]
        low, high = max(first, run.first), min(stop, run.first + len(run.columns))
        if run.dead is not None and low < high:
            flags[low - first : high - first] = run.dead[low - run.first : high - run.first]
        index += 1
    return bytes(flags)


def _finish_segment(core: Core, run: Pass, writer: SegmentWriter) -> Iterator[None]:
    """Makes a segment durable and lets the topics use it."""
    pieces = run.pieces.pop(writer.number, [])
    if writer is run.packed:
        run.packed = None
    if not pieces:
        run.unfinished.pop(writer.number).abandon()
        run.segments.discard(writer.number)
        return
    held = yield from finished(core, writer)
    del run.unfinished[writer.number]
    run.made[held.number] = held
    # Kept until every piece has its block: the first ones may be let go of meanwhile.
    held.left += 1
    work = 0
    for piece in pieces:
        if not piece.topic.dropped:
            work += SWITCH_COST + _switch(core, piece, held.number)
        if work >= SWITCH_COST_MAX:
            work = 0
            yield
    held.left -= 1
    core.segments.attached(held)


def _switch(core: Core, piece: Piece, number: int) -> int:
    """Replaces the blocks in memory by the sealed one, with every delete made meanwhile.

    Returns how many deleted records it looked at.
    """
    topic, row = piece.topic, piece.row
    held = core.segments.live[number]
    low = topic.block_at(row.first)
    if low >= len(topic.blocks) or row.stop <= topic.floor:
        return 0
    # A block may reach over the edges of the row: it was cut for the segment. Mark what is done.
    sealed = Block(row.first, piece.columns)
    payload = piece.columns.payload
    if type(payload) is bytearray:
        piece.columns.payload = bytes(payload)
    sealed.segment, sealed.row = held, row
    replaced = topic.blocks[low : bisect_left(topic.blocks, row.stop, low, key=FIRST)]
    for old in replaced:
        if old.dead is not None:
            for index in range(old.count):
                at = old.first + index - row.first
                if old.dead[index] == DEAD and 0 <= at < row.count and sealed.mark_dead(at):
                    held.unflagged.append(row.flag_at + at)
    _splice(core, topic, low, replaced, sealed)
    return sealed.dead_count


def _splice(core: Core, topic: Topic, low: int, replaced: list[Block], sealed: Block) -> None:
    """Puts `sealed` in the place of the old blocks, keeping what stands beyond its edges."""
    row = sealed.row
    assert row is not None
    left, right = [], []
    for old in replaced:
        if not old.is_ghost:
            topic.seal(old)
        # What went below the floor while the segment was written stands in no block any more.
        if old.first < row.first and row.first > topic.floor:
            left.append(_part(old, 0, row.first - old.first, topic.floor))
        if old.stop > row.stop:
            right.append(_part(old, row.stop - old.first, old.count, topic.floor))
    for kept in [*left, *right]:
        if not kept.is_ghost:
            topic.unseal(kept)
    columns = sealed.columns
    assert columns is not None
    start = max(topic.floor - row.first, 0)
    sealed.live_bytes = sum(columns.span(a, b) for a, b in sealed.live_runs(start, row.count))
    if sealed.dead_count == sealed.count:
        sealed.ghost()
    else:
        assert sealed.segment is not None
        sealed.segment.attach(sealed)
        core.segments.keep(sealed, core.settings.resident_bytes)
    topic.blocks[low : low + len(replaced)] = [*left, sealed, *right]


def _part(old: Block, first: int, stop: int, floor: int) -> Block:
    if old.columns is None:
        return ghost_block(old.first + first, stop - first, old.last_ts)
    part = Block(old.first + first, old.columns.cut(first, stop))
    for index in range(first, stop):
        if old.is_dead(index):
            part.mark_dead(index - first)
    live = part.live_runs(max(floor - part.first, 0), part.count)
    assert part.columns is not None
    part.live_bytes = sum(part.columns.span(a, b) for a, b in live)
    return part
