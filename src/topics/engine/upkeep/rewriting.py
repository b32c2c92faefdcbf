"""Rewriting: the live part of segments is written into a new one, beside everything else.

A rewritten block keeps its seqs: of a record that is gone an empty span stays (its end repeats the
one before), without tag, node and meta. The flag of a deleted one stays set; one below the floor
has none, so that nobody takes what was evicted for deleted. Runs that are all gone are not written.

The order is the promise: new segment synced, renamed, its directory synced; then, block by block,
memory uses it, with every delete made meanwhile. Until a snapshot names it the old segments are
what a start finds, and they stay until neither of the two newest snapshots needs them: both may be
there, and a start takes those of its snapshot. Whatever fails before memory uses the new segment
leaves everything as it was. Of a block that fails its checksum nothing is copied.

Blocks are read, put together and written a batch at a time in a thread; a reader goes on with the
block that it has, whose places do not move.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from topics.engine.commit.core import Core
from topics.engine.state.block import Block, Segment
from topics.engine.state.topic import Topic
from topics.storage.columns import Columns, Spans
from topics.storage.segment import DEAD, Row, SegmentInfo, SegmentWriter

# What is read and written in one go.
BATCH_BYTES = 1024 * 1024
# What is written between two syncs, so that the log's own do not wait for all of it.
SYNC_BYTES = 8 * 1024 * 1024
# Rows that are looked at, and blocks that switch, in one slice.
ROWS_SLICE, SWITCH_SLICE = 200, 50


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
    """Writes the live part of segments into one new; a paced one leaves half of the time to others.

    Raises what reading and writing raise, with everything as it was.
    """
    number = core.numbers.new_segment()
    writer = SegmentWriter(core.data.fs, core.data.segments, number)
    pieces: list[Piece] = []
    finished: list[SegmentInfo] = []
    try:
        for held in sources:
            for batch in _batches(core, held):
                if batch:
                    pieces.extend(batch)
                    yield from _write(core, held, batch, writer, is_paced=is_paced)
                yield
        if pieces:
            yield from core.background.run(lambda: finished.append(writer.finish()))
    except BaseException:
        try:
            writer.abandon()
        except OSError:
            # Whoever trims tries again.
            core.segments.garbage.append(number)
        raise
    if not pieces:
        writer.abandon()
        return Rewritten()
    new = core.segments.adopt(finished[0], writer.flags)
    # Kept until every piece has switched: the first ones may be let go of meanwhile.
    new.left += 1
    for index, piece in enumerate(pieces):
        if index % SWITCH_SLICE == SWITCH_SLICE - 1:
            yield
        _switch(core, piece, new)
    new.left -= 1
    core.segments.attached(new)
    before = sum(held.payload_bytes for held in sources)
    kept = sum(piece.dead.count(0) for piece in pieces)
    return Rewritten(
        len(sources), sum(held.info.flag_count for held in sources) - kept,
        before - new.payload_bytes,
    )  # fmt: skip


def _batches(core: Core, held: Segment) -> Iterator[list[Piece]]:
    """What is to be written, as it stands when it is asked for; neighbours together."""
    batch: list[Piece] = []
    size = seen = 0
    for row in held.info.rows:
        seen += 1
        found = block_at(core, held, row)
        is_apart = bool(batch) and (found is None or row.offset != batch[-1].source.end)
        if (batch and (is_apart or size >= BATCH_BYTES)) or seen >= ROWS_SLICE:
            yield batch
            batch, size, seen = [], 0, 0
            # It may have gone meanwhile.
            found = block_at(core, held, row)
        if found is not None:
            topic, block = found
            dead = bytes(block.count) if block.dead is None else bytes(block.dead)
            batch.append(Piece(topic, block, row, dead, topic.floor))
            size += row.end - row.offset
    yield batch


def _write(
    core: Core, held: Segment, batch: list[Piece], writer: SegmentWriter, *, is_paced: bool
) -> Iterator[None]:
    began_s = core.clock.monotonic_s()
    is_cold = held.is_cold
    yield from core.background.run(lambda: _copy(core, held, batch, writer, is_cold=is_cold))
    ended_s = core.clock.monotonic_s()
    while is_paced and core.clock.monotonic_s() < 2 * ended_s - began_s:
        yield from core.background.wait()


def _copy(
    core: Core, held: Segment, batch: list[Piece], writer: SegmentWriter, *, is_cold: bool
) -> None:
    """In a thread: touches the pieces and the writer only."""
    rows = [piece.source for piece in batch]
    read = core.segments.read_rows(held, rows, is_cold=is_cold)
    for piece, whole in zip(batch, read, strict=True):
        kept = erased(whole, piece.source.first, piece.dead, piece.floor)
        piece.row = writer.add(
            kept, topic_id=piece.topic.id, epoch=piece.topic.epoch, first=piece.source.first,
            dead=piece.dead,
        )  # fmt: skip
        piece.ends = kept.ends
    writer.sync_after(SYNC_BYTES)


def _switch(core: Core, piece: Piece, new: Segment) -> None:
    """Points a block at its rewritten bytes, with every delete made meanwhile."""
    topic, block, row = piece.topic, piece.block, piece.row
    old = block.segment
    if old is None or block_at(core, old, piece.source) is None:
        # It went while it was written.
        return
    assert row is not None
    spans = Spans(piece.ends, array("I"), array("q"))
    live = block.live_runs(max(topic.floor - block.first, 0), block.count)
    # Exact now, also where it was an estimate while the bytes were in the cold store.
    topic.correct(block, sum(spans.span(a, b) for a, b in live))
    core.recount(topic)
    old.release(block)
    block.size, block.first_ts, block.last_ts = row.payload_bytes, row.first_ts, row.last_ts
    block.columns, block.segment, block.row = None, new, row
    new.attach(block)
    if block.dead is not None and block.dead != piece.dead:
        late = (i for i, flag in enumerate(block.dead) if flag == DEAD != piece.dead[i])
        new.unflagged.extend(row.flag_at + index for index in late)
