"""Involuntary loss: what a cap evicts and what a TTL expires. Nothing here ever brings one back."""

from __future__ import annotations

from bisect import bisect_left

from topics.engine.block import Block, Loader
from topics.engine.topic import Topic
from topics.types import EVICTED, EXPIRED


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
    target = topic.floor
    for block in topic.blocks:
        if block.last_ts <= last_expired_ts:
            target = block.stop
            continue
        if block.first_ts <= last_expired_ts and not block.is_ghost:
            columns = load(block)
            if columns is not None:
                target = block.first + columns.first_after(last_expired_ts)
        break
    if target <= topic.floor:
        return False
    topic.raise_floor(target, EXPIRED, load)
    return True


def evict(topic: Topic, load: Loader, *, spare_records: int = 0, spare_bytes: int = 0) -> bool:
    """Raises the floor until the live records fit the caps; True when it moved.

    `spare_*` leave room for records that are counted but not there (see recovery).
    """
    config = topic.config
    cap_records, cap_bytes = config.cap_records, config.cap_bytes
    moved = False
    if cap_records and topic.live_count + spare_records > cap_records:
        _drop(topic, min(topic.live_count + spare_records - cap_records, topic.live_count), load)
        moved = True
    while cap_bytes and topic.live_count and topic.live_bytes + spare_bytes > cap_bytes:
        excess = topic.live_bytes + spare_bytes - cap_bytes
        block = topic.blocks[0]
        if block.live_bytes <= excess:
            target = block.stop
        else:
            target = topic.floor + _records_of(topic, block, excess, load)
        topic.raise_floor(target, EVICTED, load)
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
