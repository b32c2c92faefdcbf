"""Scrub: what was deleted, evicted or expired leaves the disk, not only the index.

A segment with dead records is written anew without their bytes. A rewritten block keeps its seqs:
a dead record in it is an empty span (its end repeats the one before), without tag, node and meta,
and its delete flag stays set, so that every reader, the account and the arithmetic of seqs work as
before. Records below the floor are cut off, runs that are all dead are not written at all.

The order is the promise: new segment synced, renamed, its directory synced; a snapshot that names
it; a second one, so that neither of the two that are kept needs the old bytes; only then are the
old segments, log files, snapshots and copies removed. A crash anywhere leaves the old segments or
the new ones, each complete, and a scrub that was cut short is simply run again.

Only what was gone when the scrub began is promised to be gone from the files when it ends. The
filesystem and the medium below may keep freed blocks; that is not ours to erase.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from topics.engine.commit.core import Core
from topics.engine.state.block import Block, Segment
from topics.engine.state.topic import Topic
from topics.engine.upkeep import relocation
from topics.engine.upkeep.checkpoint import checkpoint, take
from topics.errors import StoreUnreachable
from topics.storage import segment, snapshot
from topics.storage.columns import Columns
from topics.storage.fs import join, shown
from topics.storage.segment import DEAD, Row, SegmentInfo, SegmentWriter
from topics.storage.tiers import Store


class Scrubbed(msgspec.Struct):
    """What a scrub did."""

    segments_rewritten: int = 0
    segments_removed: int = 0
    records_erased: int = 0
    bytes_erased: int = 0
    copies_removed: list[str] = msgspec.field(default_factory=list)
    # Files that may hold deleted bytes and were left, because they are not ours or were to be kept.
    left: list[str] = msgspec.field(default_factory=list)


# A block with the topic it belongs to.
Owned = tuple[Topic, Block]


def scrub(core: Core, done: Scrubbed, *, keep_aside: bool = False) -> Iterator[None]:
    """A scrub in slices, which fills `done`. `keep_aside` leaves broken/ and quarantine/."""
    for topic in list(core.by_id.values()):
        core.expire(topic)
    with core.sealing():
        yield from _rewritten(core, done)
        yield from relocation.relocate(core)
    yield from core.tiering.finish()
    _remove_copies(core, done, keep_aside=keep_aside)
    _remove_stray_objects(core, done)
    yield


def _rewritten(core: Core, done: Scrubbed) -> Iterator[None]:
    yield from take(core)
    for held, blocks in _segments_in_use(core):
        if held.number in core.segments.live and _is_dirty(core, held, blocks):
            yield from _rewrite(core, held, blocks, done)
        yield
    before = set(core.data.fs.listdir(core.data.segments))
    yield from checkpoint(core)
    yield from checkpoint(core)
    done.segments_removed = len(before.difference(core.data.fs.listdir(core.data.segments)))


def _segments_in_use(core: Core) -> list[tuple[Segment, list[Owned]]]:
    found: dict[int, list[Owned]] = defaultdict(list)
    for topic in core.by_id.values():
        for block in topic.blocks:
            if block.segment is not None:
                found[block.segment.number].append((topic, block))
    return [(held, found[number]) for number, held in sorted(core.segments.live.items())]


def _is_dirty(core: Core, held: Segment, blocks: list[Owned]) -> bool:
    """Whether the file holds bytes of records that are gone."""
    if len(blocks) < len(held.info.rows):
        return True
    for topic, block in blocks:
        if block.first < topic.floor:
            return True
        if block.dead_count:
            columns = core.segments.columns_waiting(block)
            live = sum(columns.span(a, b) for a, b in block.live_runs(0, block.count))
            if live < len(columns.payload):
                return True
    return False


def _rewrite(core: Core, held: Segment, blocks: list[Owned], done: Scrubbed) -> Iterator[None]:
    """Writes the live part of a segment into a new one and lets the topics use that."""
    number = core.numbers.new_segment()
    writer = SegmentWriter(core.data.fs, core.data.segments, number)
    pieces: list[tuple[Topic, Block, Row, bytes]] = []
    try:
        for topic, block in blocks:
            if topic.dropped or block.segment is not held:
                continue
            columns = core.segments.columns_waiting(block)
            start = max(topic.floor - block.first, 0)
            dead = (
                bytes(block.dead[start:]) if block.dead is not None else bytes(block.count - start)
            )
            row = writer.add(
                without_dead(columns, start, dead), topic_id=topic.id, epoch=topic.epoch,
                first=block.first + start, dead=dead,
            )  # fmt: skip
            pieces.append((topic, block, row, dead))
            yield
    except BaseException:
        writer.abandon()
        raise
    if not pieces:
        writer.abandon()
        return
    finished: list[SegmentInfo] = []
    yield from core.background.run(lambda: finished.append(writer.finish()))
    new = core.segments.adopt(finished[0], writer.flags)
    for topic, block, row, dead in pieces:
        if not topic.dropped and block.segment is held:
            _switch(core, topic, block, new, row, dead)
    done.segments_rewritten += 1
    done.records_erased += held.info.flag_count - sum(dead.count(0) for *_, dead in pieces)
    done.bytes_erased += sum(row.payload_bytes for row in held.info.rows)
    done.bytes_erased -= sum(row.payload_bytes for _, _, row, _ in pieces)
    for unused in (held, new):
        if unused.left == 0:
            core.segments.discard(unused)


def without_dead(columns: Columns, first: int, dead: bytes) -> Columns:
    """The records from `first` on, with nothing left of the dead ones but their place and time."""
    part = columns.cut(first, len(columns))
    if DEAD not in dead:
        return part
    sizes = [0 if flag == DEAD else part.span(index, index + 1) for index, flag in enumerate(dead)]
    whole = part.payload
    payload = b"".join(
        bytes(whole[part.start(i) : part.ends[i]]) for i, size in enumerate(sizes) if size
    )
    nodes, tags, metas = part.nodes, part.tags, part.metas
    if nodes is not None:
        nodes = [None if flag == DEAD else text for flag, text in zip(dead, nodes, strict=True)]
    if tags is not None:
        tags = [None if flag == DEAD else text for flag, text in zip(dead, tags, strict=True)]
    if metas is not None:
        metas = bytearray(0 if flag == DEAD else m for flag, m in zip(dead, metas, strict=True))
    return Columns(
        payload, array("I", accumulate(sizes)), part.times_at, part.times,
        nodes if nodes is not None and any(text is not None for text in nodes) else None,
        tags if tags is not None and any(text is not None for text in tags) else None,
        metas if metas is not None and any(metas) else None,
    )  # fmt: skip


def _switch(core: Core, topic: Topic, block: Block, new: Segment, row: Row, written: bytes) -> None:
    """Points a block at its rewritten bytes, with every delete made meanwhile."""
    old = block.segment
    assert old is not None
    core.segments.forget(block)
    start = row.first - block.first
    block.first, block.count, block.size = row.first, row.count, row.payload_bytes
    block.first_ts, block.last_ts = row.first_ts, row.last_ts
    block.columns, block.segment, block.row = None, new, row
    if block.dead is not None:
        block.dead = block.dead[start:]
        block.dead_count = block.dead.count(DEAD)
        late = [i for i, flag in enumerate(block.dead) if flag == DEAD != written[i]]
        new.unflagged.extend(row.flag_at + index for index in late)
    columns = core.segments.columns(block)
    live = block.live_runs(max(topic.floor - block.first, 0), block.count)
    # Exact now, also where it was an estimate while the bytes were in the cold store.
    topic.correct(block, sum(columns.span(a, b) for a, b in live))
    core.recount(topic)
    new.left += 1
    old.left -= 1


def _remove_copies(core: Core, done: Scrubbed, *, keep_aside: bool) -> None:
    """Copies of damaged, unknown or unfinished files: nobody can say what is in them."""
    data = core.data
    for directory in (data.broken, data.quarantine, data.snapshots, data.root):
        aside = directory in (data.broken, data.quarantine)
        for name in data.fs.listdir(directory):
            path = join(directory, name)
            where = shown(path.removeprefix(data.root).lstrip("/"))
            if not aside and not name.endswith(".tmp"):
                continue
            if aside and keep_aside:
                done.left.append(where)
                continue
            try:
                data.fs.unlink(path)
            except OSError:
                # A directory, or a file of somebody else.
                done.left.append(where)
            else:
                done.copies_removed.append(where)
        data.fs.sync_dir(directory)
    for name in data.fs.listdir(data.wal):
        if not name.endswith(".wal"):
            done.left.append(f"wal/{shown(name)}")
    for name in data.fs.listdir(data.snapshots):
        if snapshot.parse_file_name(name) is None:
            done.left.append(f"snap/{shown(name)}")


def _remove_stray_objects(core: Core, done: Scrubbed) -> None:
    """Objects of ours in the cold store that no segment needs: copies of a move cut short."""
    store = core.segments.store
    if store is None:
        return
    try:
        _delete_unused(core, store, done)
    except OSError as error:
        raise StoreUnreachable(
            "the cold store can not be reached: it may hold erased bytes; scrub again"
        ) from error


def _delete_unused(core: Core, store: Store, done: Scrubbed) -> None:
    store.sweep()
    used = {held.number for held in core.segments.live.values() if held.is_cold}
    for name in store.list():
        number = segment.parse_file_name(name)
        if number is None or number >= core.numbers.next_segment:
            done.left.append(f"cold:{shown(name)}")
        elif number not in used:
            store.delete(name)
            done.copies_removed.append(f"cold:{name}")
    core.tiering.unneeded.clear()
