"""What must be true of a topic at any moment, checked the slow way: by a full scan.

- The floors stand in order: `evict_floor` ≤ `earliest_seq` ≤ `head` + 1.
- Every assigned seq is in exactly one of the account, a hole and a block.
- Times do not decrease with seq.
- The counters and the tag index equal what a scan finds.
- Every live record is JSON and says its own seq, time, node and meta.
- Every job of a queue that was handed out is in exactly one place, and nothing else is.

Reads only; a block that fails its checksum is a finding too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from topics.engine.commit.core import Core
from topics.engine.ops import deletes
from topics.engine.state.block import Block
from topics.engine.state.explaining import states
from topics.engine.state.queue import Queue
from topics.engine.state.segments import ColdMiss
from topics.engine.state.tags import TagIndex
from topics.engine.state.topic import Topic
from topics.errors import CorruptData, StorageError
from topics.storage.columns import Columns
from topics.storage.segment import DEAD
from topics.types import LIVE, SEQ_BASE, records_of

# What is wrong, and the words for a person.
Finding = tuple[str, str]


@dataclass(slots=True)
class Scan:
    """What a full scan of one topic found."""

    records: int = 0
    live_bytes: int = 0
    # False when some of it is in a cold store that was not given, or can not be read.
    is_whole: bool = True
    tags: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    last_ts: int = 0


def examine(core: Core, topic: Topic) -> Iterator[Finding]:
    """Everything about a topic that is not as it must be."""
    if not topic.evict_floor <= topic.floor <= topic.head + 1:
        yield (
            "floors_out_of_order",
            f"evict_floor {topic.evict_floor}, earliest_seq {topic.floor}, head {topic.head}",
        )
    yield from _cover(topic)
    if topic.queue is not None:
        yield from _jobs(topic, topic.queue)
    scan = Scan()
    for block in topic.blocks:
        yield from _block(core, topic, block, scan)
    if scan.records != topic.live_count:
        yield "count_wrong", f"counted {topic.live_count}, a scan finds {scan.records}"
    if scan.is_whole:
        if scan.live_bytes != topic.live_bytes:
            yield "bytes_wrong", f"counted {topic.live_bytes}, a scan finds {scan.live_bytes}"
        yield from _tags(core, topic, scan)


def _cover(topic: Topic) -> Iterator[Finding]:
    """Each seq up to the head once: in the account below the floor, in a block or a hole above."""
    account = topic.account
    if account is not None and account.base != SEQ_BASE:
        yield "account_wrong", f"begins at seq {account.base}"
    accounted = SEQ_BASE if account is None else account.next
    if accounted != topic.floor:
        yield "account_wrong", f"ends in front of seq {accounted}, earliest_seq is {topic.floor}"
    spans = [(first, last, "hole") for first, last, _ in topic.holes or ()]
    spans += [(max(b.first, topic.floor), b.stop - 1, "block") for b in topic.blocks]
    at = topic.floor
    for first, last, what in sorted(spans):
        if first > at:
            yield "seqs_unexplained", f"seqs {at} to {first - 1} are nowhere"
        elif first < at:
            yield "seqs_twice", f"{what} of seqs {first} to {last} overlaps what ends at {at - 1}"
        at = max(at, last + 1)
    if at != topic.head + 1:
        yield "seqs_unexplained", f"what is stored ends at {at - 1}, the head is {topic.head}"


def _jobs(topic: Topic, queue: Queue) -> Iterator[Finding]:
    """Each live job below the claim cursor: held, free, kept back, or on its way out."""
    places = (queue.leases, queue.free, queue.delayed, queue.leaving, queue.moving)
    found = Counter(seq for place in places for seq in place)
    found.subtract(seq for seq in queue.free if seq in queue.leases)
    below = states(topic, topic.floor, min(queue.cursor - 1, topic.head))
    wanted = [seq for low, high, state in below if state == LIVE for seq in range(low, high + 1)]
    if queue.expired != sum(seq in queue.leases for seq in queue.free):
        yield "leases_wrong", f"{queue.expired} leases counted that ran out"
    for seq in wanted:
        if found[seq] != 1:
            yield "leases_wrong", f"job {seq} is in {found[seq]} places"
    for seq in found.keys() - set(wanted):
        yield "leases_wrong", f"job {seq} is not there and has a lease"


def _block(core: Core, topic: Topic, block: Block, scan: Scan) -> Iterator[Finding]:
    if block.dead_count != (0 if block.dead is None else block.dead.count(DEAD)):
        yield "count_wrong", f"{_name(block)}: {block.dead_count} deleted records counted"
    if block.first_ts < scan.last_ts:
        yield "times_decrease", f"{_name(block)} begins at {block.first_ts} after {scan.last_ts}"
    scan.last_ts = max(scan.last_ts, block.last_ts)
    start = max(topic.floor - block.first, 0)
    live = list(block.live_runs(start, block.count))
    scan.records += sum(stop - first for first, stop in live)
    if block.is_ghost:
        if live:
            yield "bytes_missing", f"{_name(block)} has live records and no bytes"
        return
    waits = core.segments.store is not None
    try:
        columns = (core.segments.columns_waiting if waits else core.segments.columns)(block)
    except ColdMiss:
        scan.is_whole = False
        return
    except (StorageError, OSError) as error:
        scan.is_whole = False
        yield "block_damaged", f"{_name(block)}: {error}"
        return
    if len(columns) != block.count:
        yield "count_wrong", f"{_name(block)} holds {len(columns)} records"
        return
    yield from _times(block, columns)
    for first, stop in live:
        scan.live_bytes += columns.span(first, stop)
        yield from _records(block, columns, first, stop)
        for index in range(first, stop) if columns.tags is not None else ():
            assert columns.tags is not None
            tag = columns.tags[index]
            if tag is not None:
                scan.tags[tag].append(block.first + index)


def _times(block: Block, columns: Columns) -> Iterator[Finding]:
    times = columns.times.tolist()
    if times != sorted(times) or columns.times_at.tolist() != sorted(set(columns.times_at)):
        yield "times_decrease", f"inside {_name(block)}"
    elif (times[0], times[-1]) != (block.first_ts, block.last_ts):
        yield "times_wrong", f"{_name(block)} holds {times[0]} to {times[-1]}"


def _records(block: Block, columns: Columns, first: int, stop: int) -> Iterator[Finding]:
    """Every record of a live run against its columns."""
    raw = bytes(columns.payload[columns.start(first) : columns.start(stop)])
    try:
        records = records_of(b"[" + raw[:-1] + b"]")
    except msgspec.DecodeError as error:
        yield "record_damaged", f"in {_name(block)}: {error}"
        return
    if len(records) != stop - first or raw[-1:] != b",":
        yield (
            "record_damaged",
            f"{_name(block)}: {len(records)} records where {stop - first} belong",
        )
        return
    for index, record in enumerate(records, first):
        node = columns.nodes[index] if columns.nodes is not None else None
        has_meta = columns.metas is not None and bool(columns.metas[index])
        expected = (block.first + index, columns.time_of(index), node, has_meta)
        if (record.seq, record.ts, record.node, record.meta is not None) != expected:
            yield "record_wrong", f"seq {block.first + index} in {_name(block)} is another record"


def _index_of(core: Core, topic: Topic) -> TagIndex:
    """The tag index, whatever has to be fetched for it."""
    while True:
        try:
            return core.tags_of(topic)
        except ColdMiss as miss:
            core.segments.columns_waiting(miss.ahead[0])


def _tags(core: Core, topic: Topic, scan: Scan) -> Iterator[Finding]:
    if topic.config.is_bucket:
        # Keys are its tags, and it has an index of its own, which is no part of the directory.
        return
    try:
        index = _index_of(core, topic)
    except (CorruptData, OSError) as error:
        yield "tags_wrong", f"the index can not be built: {error}"
        return
    indexed: dict[str, list[int]] = {}
    for tag in {tag for tags in index.under(("", True)) for tag in tags}:
        seqs = [s for s in index.exact(tag) if s >= topic.floor and deletes.is_live(topic, s)]
        if seqs:
            indexed[tag] = sorted(seqs)
    for tag in sorted(indexed.keys() | scan.tags.keys()):
        if indexed.get(tag, []) != scan.tags.get(tag, []):
            yield "tags_wrong", f"tag {tag!r}: the index and a scan differ"


def _name(block: Block) -> str:
    return f"the block of seqs {block.first} to {block.stop - 1}"
