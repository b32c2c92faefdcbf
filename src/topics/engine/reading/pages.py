"""Pages: the records after a cursor as slices of wire JSON, a run of live ones as one slice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from topics.engine.reading.tombstones import Decision, decide
from topics.engine.state import record
from topics.engine.state.block import Block
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.storage.columns import Columns
from topics.types import Page, Payload

# A fetch from the cold store costs as much for a small piece as for this many bytes.
AHEAD_BYTES_MAX = 4 * 1024 * 1024
AHEAD_BLOCKS_MAX = 64

# Columns of a block for a read; raises ColdMiss when they have to be fetched first.
LoadNow = Callable[[Block], Columns]


@dataclass(frozen=True, slots=True)
class View:
    """What a reader wants to see of each record."""

    nodes: frozenset[str] = frozenset()
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True


def page(
    topic: Topic,
    from_seq: int,
    epoch: int | None,
    view: View,
    *,
    limit: int,
    bytes_max: int,
    load_now: LoadNow,
) -> Page:
    """One read: the decision, then the records after it. May raise ColdMiss."""
    decision = decide(topic, from_seq, epoch=epoch)
    found = collect(topic, decision, view, limit=limit, bytes_max=bytes_max, load_now=load_now)
    return Page(
        topic=topic.name, epoch=topic.epoch, pieces=found.pieces, count=found.count,
        next_from_seq=found.cursor, head_seq=topic.head,
        earliest_seq=topic.floor, tombstone=decision.tombstone, records_scanned=found.scanned,
    )  # fmt: skip


@dataclass(slots=True)
class Slices:
    """Pieces of wire JSON, each a run of records with the comma behind the last."""

    pieces: list[Payload]
    count: int
    cursor: int
    scanned: int


def collect(
    topic: Topic, decision: Decision, view: View, *, limit: int, bytes_max: int, load_now: LoadNow
) -> Slices:
    """Up to `limit` live records after the cursor, then the node filter, in order.

    Stops at the record that crosses `bytes_max`, so at least one is delivered.
    """
    out = Slices([], 0, decision.cursor, 0)
    at, left, room = decision.cursor + 1, limit, bytes_max
    index = topic.block_at(at)
    while at <= decision.upto and left and room > 0:
        block = topic.blocks[index]
        index += 1
        stop = min(block.stop, decision.upto + 1)
        if not block.has_live(at - block.first, stop - block.first):
            # Not loaded for nothing: a read that scans what it loads makes headway.
            at = stop
            out.cursor = at - 1
            continue
        try:
            columns = load_now(block)
        except ColdMiss as miss:
            if out.scanned:
                # Told now, so that a read makes headway however small the cache is.
                return out
            miss.ahead = ahead(topic, index - 1)
            raise
        for start, end in block.live_runs(at - block.first, stop - block.first):
            end = min(end, start + left)
            base = columns.start(start)
            end = min(end, bisect_left(columns.ends, base + room, start, end) + 1)
            out.count += append_run(out.pieces, columns, start, end, view)
            left -= end - start
            out.scanned += end - start
            room -= columns.start(end) - base
            at = block.first + end
            if not left or room <= 0:
                break
        else:
            at = stop
        out.cursor = at - 1
    if left and room > 0:
        out.cursor = max(out.cursor, decision.upto)
    return out


def ahead(topic: Topic, index: int) -> list[Block]:
    """The block at `index` and its neighbours in the same segment: a reader will want them next."""
    blocks = [topic.blocks[index]]
    room = AHEAD_BYTES_MAX - blocks[0].size
    for block in islice(topic.blocks, index + 1, index + 1 + AHEAD_BLOCKS_MAX):
        before = blocks[-1].row
        beside = block.row is not None and before is not None and block.row.offset == before.end
        if block.segment is not blocks[0].segment or not beside or block.size > room:
            break
        room -= block.size
        blocks.append(block)
    return blocks


def append_run(pieces: list[Payload], columns: Columns, start: int, end: int, view: View) -> int:
    """Adds the records [start, end), as one slice where nothing has to be cut; returns how many."""
    drops = bool(view.nodes) and columns.nodes is not None
    cuts = (
        (view.include_tags and columns.tags is not None)
        or (not view.include_meta and columns.metas is not None)
        or not view.include_data
    )
    payload = columns.payload
    if type(payload) is bytes:
        payload = memoryview(payload)
    # A slice of an open block's bytearray is a copy: a view would forbid the block to grow.
    if not drops and not cuts:
        pieces.append(payload[columns.start(start) : columns.start(end)])
        return end - start
    count = 0
    for index in range(start, end):
        if drops and columns.nodes is not None and columns.nodes[index] in view.nodes:
            continue
        count += 1
        raw = payload[columns.start(index) : columns.ends[index]]
        pieces.append(_cut(bytes(raw), columns, index, view) if cuts else raw)
    return count


def _cut(raw: bytes, columns: Columns, index: int, view: View) -> bytes:
    has_meta = bool(columns.metas is not None and columns.metas[index])
    tag = columns.tags[index] if view.include_tags and columns.tags is not None else None
    return record.cut(
        raw, has_meta=has_meta, with_meta=view.include_meta, with_data=view.include_data, tag=tag
    )
