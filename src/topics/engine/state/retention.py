"""Involuntary loss: what a cap evicts and what a TTL expires. Nothing here ever brings one back.

What may evict is decided here and nowhere else. `evict` lets the caps of a topic that discards its
old records have their way, and does nothing to one that rejects: such a topic gives up records to
its caps only when somebody tightens them (`reconfigure`), whatever else becomes of it; a bucket
does not even then. Sizes are exact in every tier, so replay evicts what the live topic evicted.

A cursor's hold keeps records from both. The floor of a topic with holds rises one piece of its
first block at a time, each cut back to what every hold lets go of (`_until_held`, the one rule).
How far it gets depends on nothing but the log and the time given, and more of either never makes
it less: so replay, which looks less often, ends where the live topic ended.
"""

from __future__ import annotations

from bisect import bisect_left

from topics.engine.state.block import Block, Loader
from topics.engine.state.topic import Topic
from topics.storage.segment import DEAD
from topics.types import EVICTED, EXPIRED, Cursor, TopicConfig


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
    """The first seq of a block with a time above `ts`, or the one after it."""
    if block.last_ts <= ts:
        return block.stop
    if block.first_ts > ts or block.is_ghost:
        return block.first
    return block.first + load(block).first_after(ts)


def evict(
    topic: Topic,
    load: Loader,
    *,
    now_ms: int | None = None,
    spare_records: int = 0,
    spare_bytes: int = 0,
) -> bool:
    """Makes a topic that discards its old records fit its caps; True when the floor moved.

    `spare_*` count records that were there and are known to be lost (see salvage). Without
    `now_ms` holds are as old as the newest record says, which replay knows as well.
    """
    if topic.config.discard == "reject":
        return False
    now_ms = (topic.last_write_ts or 0) if now_ms is None else now_ms
    return _fit(topic, now_ms, load, spare_records, spare_bytes)


def reconfigure(topic: Topic, before: TopicConfig, now_ms: int, load: Loader) -> None:
    """Makes a topic fit the config that it was just given; one that rejects, if it is tighter."""
    config = topic.config
    expire(topic, now_ms, load)
    if not config.is_bucket and (config.discard != "reject" or _is_tighter(before, config)):
        _fit(topic, topic.last_write_ts or 0, load)


def _is_tighter(before: TopicConfig, config: TopicConfig) -> bool:
    caps = ((before.cap_records, config.cap_records), (before.cap_bytes, config.cap_bytes))
    return any(cap and not 0 < was <= cap for was, cap in caps)


def _fit(
    topic: Topic, now_ms: int, load: Loader, spare_records: int = 0, spare_bytes: int = 0
) -> bool:
    """Raises the floor until the live records fit the caps; True when it moved."""
    config = topic.config
    if topic.holds:
        return _evict_held(topic, now_ms, load, spare_records, spare_bytes)
    cap_records, cap_bytes = config.cap_records, config.cap_bytes
    moved = False
    if cap_records and topic.live_count + spare_records > cap_records:
        _drop(topic, min(topic.live_count + spare_records - cap_records, topic.live_count), load)
        moved = True
    while cap_bytes and topic.live_count and topic.live_bytes + spare_bytes > cap_bytes:
        excess = topic.live_bytes + spare_bytes - cap_bytes
        block = topic.blocks[0]
        topic.raise_floor(_after_bytes(topic, block, excess, load), EVICTED, load)
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
    return block.dead.count(DEAD, first) if block.dead is not None and block.dead_count else 0


def _index_after(block: Block, first: int, records: int) -> int:
    """The index after the `records`-th live record from `first` on."""
    for start, stop in block.live_runs(first, block.count):
        if stop - start >= records:
            return start + records
        records -= stop - start
    return block.count


def _records_of(topic: Topic, block: Block, excess: int, load: Loader) -> int:
    """How many seqs from the floor on hold at least `excess` live bytes."""
    first = topic.floor - block.first
    columns = load(block)
    if not block.dead_count:
        return bisect_left(columns.ends, columns.start(first) + excess, first) + 1 - first
    for start, stop in block.live_runs(first, block.count):
        for index in range(start, stop):
            excess -= columns.span(index, index + 1)
            if excess <= 0:
                return index + 1 - first
    return block.count - first


# -- holds ---------------------------------------------------------------------------------------


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
            target = _after_records(topic, block, excess)
        excess = topic.live_bytes + spare_bytes - cap_bytes
        if cap_bytes and excess > 0:
            target = max(target, _after_bytes(topic, block, excess, load))
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
    """The first seq that a hold keeps, or the one after the first block.

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
            kept = max(kept, _after_bytes(topic, block, excess, load))
    return kept


def _after_records(topic: Topic, block: Block, records: int) -> int:
    """The seq after the `records` oldest live records, or after the first block."""
    first = topic.floor - block.first
    return block.first + _index_after(block, first, records)


def _after_bytes(topic: Topic, block: Block, size: int, load: Loader) -> int:
    """The seq after the oldest `size` live bytes, or after the first block."""
    if block.live_bytes <= size:
        return block.stop
    return topic.floor + _records_of(topic, block, size, load)
