"""Rewriting: the live part of segments is written into a new one, beside everything else.

A rewritten block keeps its seqs: of a record that is gone an empty span stays (its end repeats the
one before), without tag, node and meta. The flag of a deleted one stays set; one below the floor
has none, so that nobody takes what was evicted for deleted. Runs that are all gone are not written.

The order is the promise: new segment synced, renamed, its directory synced; then, block by block,
memory uses it, with every delete made meanwhile. Until a snapshot names it the old segments are
what a start finds, and they stay until neither of the two newest snapshots needs them: both may be
there, and a start takes those of its snapshot. Whatever fails before memory uses the new segment
leaves everything as it was. Of a block that fails its checksum nothing is copied.

Blocks are read and written a batch at a time in a thread, and put together in slices; a reader goes
on with the block that it has, whose places do not move.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial

from topics.engine.commit.core import Core
from topics.engine.state.block import Block, Segment
from topics.engine.state.topic import Topic
from topics.storage import flags
from topics.storage.columns import Columns, Spans
from topics.storage.segment import DEAD, Row, SegmentInfo, SegmentWriter

# What is read in one go, and more of the cold store, where each call has its price.
BATCH_BYTES, COLD_BATCH_BYTES = 1024 * 1024, 2 * 1024 * 1024
# How many times as long as it works a paced rewrite rests: a part of the work is the loop's own.
REST = 128
# What is written between two syncs, so that the log's own do not wait for all of it.
SYNC_BYTES = 1024 * 1024
# What a writer keeps at most: more than comes between two syncs, so that only the thread writes.
BUFFER_BYTES = 16 * 1024 * 1024
# Rows that are looked at, and blocks that switch, in one slice.
ROWS_SLICE, SWITCH_SLICE = 50, 10


@dataclass(slots=True)
class Piece:
    """A block on its way to the new segment; `dead` and `floor` are as they stood when it left."""

    topic: Topic
    block: Block
    source: Row
    dead: bytes
    floor: int
    row: Row | None = None
    # Where its records end in the new segment.
    ends: array[int] = field(default_factory=lambda: array("I"))


@dataclass(slots=True)
class Rewritten:
    """What was done to some segments."""

    segments: int = 0
    records_erased: int = 0
    bytes_erased: int = 0


def erased(columns: Columns, first: int, dead: bytes, floor: int) -> Columns:
    """The records from seq `first` on, with nothing left of those that are deleted or too old."""
    below = min(max(floor - first, 0), len(dead))
    if not below and DEAD not in dead:
        return columns
    return columns.without(b"\1" * below + dead[below:])


def block_at(core: Core, held: Segment, row: Row) -> tuple[Topic, Block] | None:
    """The block that uses a row of a segment, with its topic."""
    topic = core.by_id.get(row.topic_id)
    if topic is None:
        return None
    position = topic.block_at(row.first)
    if position >= len(topic.blocks):
        return None
    block = topic.blocks[position]
    return (topic, block) if block.row is row and block.segment is held else None


def rewrite(
    core: Core, sources: list[Segment], *, is_paced: bool
) -> Generator[None, None, Rewritten]:
    """Writes the live part of segments into one new; a paced one leaves most of the time to others.

    Raises what reading and writing raise, with everything as it was.
    """
    number = core.numbers.new_segment()
    writer = SegmentWriter(core.data.fs, core.data.segments, number, buffer_bytes=BUFFER_BYTES)
    pieces: list[Piece] = []
    with core.abandoning(partial(_abandon, core, writer)):
        for held in sources:
            found: list[Piece] = []
            yield from _pieces(core, held, found)
            yield from _copied(core, held, found, writer, is_paced=is_paced)
            pieces += found
        new = (yield from finished(core, writer)) if pieces else None
    if new is None:
        writer.abandon()
        return Rewritten()
    # Kept until every piece has switched: the first ones may be let go of meanwhile.
    new.left += 1
    try:
        for index, piece in enumerate(pieces):
            if _switch(core, piece, new) or index % SWITCH_SLICE == SWITCH_SLICE - 1:
                yield
    finally:
        new.left -= 1
        core.segments.attached(new)
    before = sum(held.payload_bytes for held in sources)
    kept = sum(piece.dead.count(0) for piece in pieces)
    core.segments.erased_bytes_total += before - new.payload_bytes
    return Rewritten(
        len(sources), sum(held.info.flag_count for held in sources) - kept,
        before - new.payload_bytes,
    )  # fmt: skip


def finished(core: Core, writer: SegmentWriter) -> Generator[None, None, Segment]:
    """Makes a segment durable, and has it in use."""
    made: list[tuple[SegmentInfo, list[flags.Sum]]] = []

    def finish() -> None:
        info = writer.finish()
        made.append((info, flags.sums(info.rows, writer.flags)))

    yield from core.background.run(finish)
    return core.segments.adopt(*made[0])


def _abandon(core: Core, writer: SegmentWriter) -> None:
    try:
        writer.abandon()
    except OSError:
        # Whoever trims tries again.
        core.segments.garbage.append(writer.number)


def _pieces(core: Core, held: Segment, found: list[Piece]) -> Iterator[None]:
    """What is to be written of a segment, as it stands now; a slice of its rows at a time."""
    for index, row in enumerate(held.info.rows):
        if index % ROWS_SLICE == ROWS_SLICE - 1:
            yield
        used = block_at(core, held, row)
        if used is not None:
            topic, block = used
            dead = bytes(block.count) if block.dead is None else bytes(block.dead)
            found.append(Piece(topic, block, row, dead, topic.floor))


def _copied(
    core: Core, held: Segment, pieces: list[Piece], writer: SegmentWriter, *, is_paced: bool
) -> Iterator[None]:
    """Writes pieces, half of a block in a slice.

    What waits for the disk is done in a thread, which rests after it if the rewrite is paced.
    Putting blocks together there would keep the interpreter from others many times in a row.
    """
    read: list[Columns] = []
    worked_s = 0.0

    def bring(batch: list[Piece]) -> None:
        began_s = core.clock.monotonic_s()
        writer.sync_after(SYNC_BYTES)
        sources = [piece.source for piece in batch]
        read[:] = core.segments.read_rows(held, sources, is_cold=held.is_cold)
        if is_paced:
            core.background.rest(REST * (core.clock.monotonic_s() - began_s + worked_s))

    for batch in _batches(pieces, COLD_BATCH_BYTES if held.is_cold else BATCH_BYTES):
        yield from core.background.run(partial(bring, batch))
        worked_s = 0.0
        for piece, whole in zip(batch, read, strict=True):
            began_s = core.clock.monotonic_s()
            kept = erased(whole, piece.source.first, piece.dead, piece.floor)
            worked_s += core.clock.monotonic_s() - began_s
            yield
            began_s = core.clock.monotonic_s()
            piece.row = writer.add(
                kept, topic_id=piece.topic.id, epoch=piece.topic.epoch, first=piece.source.first,
                dead=piece.dead,
            )  # fmt: skip
            piece.ends = kept.ends
            worked_s += core.clock.monotonic_s() - began_s
            yield


def _batches(pieces: list[Piece], size_max: int) -> Iterator[list[Piece]]:
    """Neighbours in their segment, about so many bytes together."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        source = piece.source
        if batch and (size >= size_max or source.offset != batch[-1].source.end):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += source.end - source.offset
    if batch:
        yield batch


def _switch(core: Core, piece: Piece, new: Segment) -> bool:
    """Points a block at its rewritten bytes; whether anything of it has gone meanwhile."""
    topic, block, row = piece.topic, piece.block, piece.row
    old = block.segment
    if old is None or block_at(core, old, piece.source) is None:
        # It went while it was written.
        return True
    assert row is not None
    dead = piece.dead if block.dead is None else bytes(block.dead)
    is_late = dead != piece.dead or topic.floor > max(piece.floor, block.first)
    live_bytes = row.payload_bytes
    if is_late:
        spans = Spans(piece.ends, array("I"), array("q"))
        live = block.live_runs(max(topic.floor - block.first, 0), block.count)
        live_bytes = sum(spans.span(a, b) for a, b in live)
    # Exact now, also where it was an estimate while the bytes were in the cold store.
    topic.correct(block, live_bytes)
    core.recount(topic)
    old.release(block)
    block.size, block.first_ts, block.last_ts = row.payload_bytes, row.first_ts, row.last_ts
    block.columns, block.segment, block.row = None, new, row
    new.attach(block)
    if dead != piece.dead:
        late = (i for i, flag in enumerate(dead) if flag == DEAD != piece.dead[i])
        new.unflagged.extend(row.flag_at + index for index in late)
    return is_late
