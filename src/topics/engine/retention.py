"""Involuntary loss: what a cap evicts and what a TTL expires. Nothing here ever brings one back.

A cursor's hold keeps records from both. The floor of a topic with holds rises one piece of its
first block at a time, each cut back to what every hold lets go of (`_until_held`, the one rule).
How far it gets depends on nothing but the log and the time given, and more of either never makes
it less: so replay, which looks less often, ends where the live topic ended.
"""

from __future__ import annotations

from bisect import bisect_left

from topics.engine.block import Block, Loader
from topics.engine.topic import Topic
from topics.types import EVICTED, EXPIRED, Cursor


def expire(topic: Topic, now_ms: int, load: Loader) -> bool:
    """Raises the floor over every record with `now - $ts > ttl_ms`; True when it moved.

    Times do not decrease with seq, so this looks at whole blocks from the front and searches one.
    """
    ttl_ms = topic.config.ttl_ms
    if not ttl_ms or not topic.live_count:
        return False
    # Expired: now - ts > ttl, that is ts <= now - ttl - 1.
    last_expired_ts = now_ms - ttl_ms - 1
    if topic.blocks[0].first_ts > last_expired_ts:
        return False
    if topic.holds:
        return _expire_held(topic, last_expired_ts, now_ms, load)
    target = topic.floor
    for block in topic.blocks:
        younger = _first_younger(block, last_expired_ts, load)
        target = max(target, younger)
        if younger < block.stop:
            break
    if target <= topic.floor:
        return False
    topic.raise_floor(target, EXPIRED, load)
    return True


def _first_younger(block: Block, ts: int, load: Loader) -> int:
    """The first seq of a block with a time above `ts`, or the one behind it.

    A block that is out of reach is taken for young as long as one of its records may be.
    """
    if block.last_ts <= ts:
        return block.stop
    if block.first_ts > ts or block.is_ghost:
        return block.first
    columns = load(block)
    return block.first if columns is None else block.first + columns.first_after(ts)


def evict(
    topic: Topic,
    load: Loader,
    *,
    now_ms: int | None = None,
    spare_records: int = 0,
    spare_bytes: int = 0,
) -> bool:
    """Raises the floor until the live records fit the caps; True when it moved.

    `spare_*` leave room for records that are counted but not there (see recovery). Without
    `now_ms` holds are as old as the newest record says, which replay knows as well.
    """
    config = topic.config
    if topic.holds:
        now_ms = (topic.last_write_ts or 0) if now_ms is None else now_ms
        return _evict_held(topic, now_ms, load, spare_records, spare_bytes)
    cap_records, cap_bytes = config.cap_records, config.cap_bytes
    moved = False
    if cap_records and topic.live_count + spare_records > cap_records:
        _drop(topic, min(topic.live_count + spare_records - cap_records, topic.live_count), load)
        moved = True
    while cap_bytes and topic.live_count and topic.live_bytes + spare_bytes > cap_bytes:
        excess = topic.live_bytes + spare_bytes - cap_bytes
        block = topic.blocks[0]
        topic.raise_floor(_behind_bytes(topic, block, excess, load), EVICTED, load)
        moved = True
    return moved


def _drop(topic: Topic, records: int, load: Loader) -> None:
    """Evicts the `records` oldest live records."""
    while records:
        block = topic.blocks[0]
        first = topic.floor - block.first
        live = block.count - first - _dead_from(block, first)
        if live <= records:
            topic.raise_floor(block.stop, EVICTED, load)
            records -= live
            continue
        topic.raise_floor(block.first + _index_after(block, first, records), EVICTED, load)
        return


def _dead_from(block: Block, first: int) -> int:
    return block.dead.count(0xD5, first) if block.dead is not None and block.dead_count else 0


def _index_after(block: Block, first: int, records: int) -> int:
    """The index behind the `records`-th live record from `first` on."""
    for start, stop in block.live_runs(first, block.count):
        if stop - start >= records:
            return start + records
        records -= stop - start
    return block.count


def _records_of(topic: Topic, block: Block, excess: int, load: Loader) -> int:
    """How many seqs from the floor on hold at least `excess` live bytes."""
    first = topic.floor - block.first
    columns = load(block)
    if columns is None:
        # Out of reach: evict by share of the block, a little more than needed rather than less.
        live = max(block.count - first - _dead_from(block, first), 1)
        return -(-excess * live // max(block.live_bytes, 1))
    if not block.dead_count:
        return bisect_left(columns.ends, columns.start(first) + excess, first) + 1 - first
    for start, stop in block.live_runs(first, block.count):
        for index in range(start, stop):
            excess -= columns.span(index, index + 1)
            if excess <= 0:
                return index + 1 - first
    return block.count - first


# -- holds ---------------------------------------------------------------------------------------


def let_go(topic: Topic, now_ms: int, load: Loader) -> bool:
    """Evicts what holds kept from the caps and have become too old for; True when it moved."""
    if not topic.live_count:
        return False
    # Only what was kept: estimates of cold bytes are no reason to evict on a read.
    is_kept = _until_held(topic, topic.floor + 1, topic.last_write_ts or 0, load) <= topic.floor
    return is_kept and evict(topic, load, now_ms=now_ms)


def _expire_held(topic: Topic, last_expired_ts: int, now_ms: int, load: Loader) -> bool:
    moved = False
    while topic.live_count:
        target = _first_younger(topic.blocks[0], last_expired_ts, load)
        target = _until_held(topic, target, now_ms, load)
        if target <= topic.floor:
            break
        topic.raise_floor(target, EXPIRED, load)
        moved = True
    return moved


def _evict_held(
    topic: Topic, now_ms: int, load: Loader, spare_records: int, spare_bytes: int
) -> bool:
    moved = False
    cap_records, cap_bytes = topic.config.cap_records, topic.config.cap_bytes
    while topic.live_count:
        block, target = topic.blocks[0], topic.floor
        excess = topic.live_count + spare_records - cap_records
        if cap_records and excess > 0:
            target = _behind_records(topic, block, excess)
        excess = topic.live_bytes + spare_bytes - cap_bytes
        if cap_bytes and excess > 0:
            target = max(target, _behind_bytes(topic, block, excess, load))
        target = _until_held(topic, target, now_ms, load, spare_bytes)
        if target <= topic.floor:
            break
        topic.raise_floor(target, EVICTED, load)
        moved = True
    return moved


def _until_held(topic: Topic, target: int, now_ms: int, load: Loader, spare_bytes: int = 0) -> int:
    """How far towards `target`, inside the first block, the floor may rise for all the holds."""
    for cursor in topic.holds:
        if target <= topic.floor:
            break
        target = min(target, _first_kept(topic, cursor, now_ms, load, spare_bytes))
    return target


def _first_kept(topic: Topic, cursor: Cursor, now_ms: int, load: Loader, spare_bytes: int) -> int:
    """The first seq that a hold keeps, or the one behind the first block.

    It keeps what its reader has not passed, while that is young enough and, together with all
    that came later, small enough.
    """
    hold, block = cursor.hold, topic.blocks[0]
    assert hold is not None
    kept = max(topic.floor, topic.place(cursor) + 1)
    if hold.max_age_ms is not None:
        kept = max(kept, _first_younger(block, now_ms - hold.max_age_ms - 1, load))
    if hold.max_bytes is not None:
        excess = topic.live_bytes + spare_bytes - hold.max_bytes
        if excess > 0:
            kept = max(kept, _behind_bytes(topic, block, excess, load))
    return kept


def _behind_records(topic: Topic, block: Block, records: int) -> int:
    """The seq behind the `records` oldest live records, or behind the first block."""
    first = topic.floor - block.first
    return block.first + _index_after(block, first, records)


def _behind_bytes(topic: Topic, block: Block, size: int, load: Loader) -> int:
    """The seq behind the oldest `size` live bytes, or behind the first block."""
    if block.live_bytes <= size:
        return block.stop
    return topic.floor + _records_of(topic, block, size, load)
