"""What an engine counts, as values: for metrics, a few topics or all of them at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Literal

from topics.engine.commit.core import Core
from topics.engine.ops.catalog import queue_state
from topics.engine.state.tally import Tally
from topics.engine.state.topic import Topic
from topics.storage.wal_stats import WalStats
from topics.types import QueueState

Measure = Literal["bytes", "count", "lag"]

# Topics that are added up in one step.
SLICE_TOPICS = 4000
# Blocks of a queue that are looked at for a live job.
LOOKED_AT_BLOCKS = 16


@dataclass(slots=True)
class Sums:
    """What has to be added up over all topics."""

    records: int = 0
    queues: int = 0
    in_flight: int = 0
    # When the oldest job was written that nobody holds and everybody waits for.
    oldest_ready_ts: int | None = None
    classes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is known without looking at topics; the default is that of an engine that is not there.

    `frames` are those on their way to the disk.
    """

    topics: int = 0
    live_bytes: int = 0
    routers: int = 0
    routers_blocked: int = 0
    frames: int = 0
    is_read_only: bool = False
    cold_failures: int = 0
    stages: int = 0
    staged_records: int = 0
    staged_bytes: int = 0
    stages_expired: int = 0
    commits: int = 0
    segment_bytes: int = 0
    dead_bytes: int = 0
    erased_bytes: int = 0
    # Segments and their bytes in the data directory, and in the cold store.
    hot: tuple[int, int] = (0, 0)
    cold: tuple[int, int] = (0, 0)
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class TopicGauges:
    """One topic."""

    name: str
    head_seq: int
    earliest_seq: int
    records_live: int
    bytes_live: int
    queue: QueueState | None
    oldest_ready_ts: int | None


def add_up(core: Core) -> Generator[None, None, Sums]:
    """Adds up over the topics that there are now, a slice of them at each step."""
    sums = Sums()
    topics = list(core.by_id.values())
    for start in range(0, len(topics), SLICE_TOPICS):
        if start:
            yield
        for topic in topics[start : start + SLICE_TOPICS]:
            sums.records += topic.live_count
            sums.classes[topic.config.durability] += 1
            queue = queue_state(core, topic)
            if queue is not None:
                sums.queues += 1
                sums.in_flight += queue.in_flight
                sums.oldest_ready_ts = _older(sums.oldest_ready_ts, oldest_ready_ts(topic))
    return sums


def oldest_ready_ts(topic: Topic) -> int | None:
    """When the job was written that has waited longest to be claimed; None without one.

    Of those that came back it is the next, of the others the first. Of a block that is not in
    memory it is the time of its first record.
    """
    queue = topic.queue
    if queue is None:
        return None
    again = next(iter(queue.free), None)
    fresh = max(queue.cursor, topic.floor)
    returned = None if again is None else _written_ts(topic, again)
    return _older(returned, _written_ts(topic, fresh))


def _older(one: int | None, other: int | None) -> int | None:
    return other if one is None or (other is not None and other < one) else one


def _written_ts(topic: Topic, seq: int) -> int | None:
    """When the first live record from `seq` on was written, looking at a few blocks only."""
    index = topic.block_at(seq)
    for block in topic.blocks[index : index + LOOKED_AT_BLOCKS]:
        for first, _ in block.live_runs(max(seq - block.first, 0), block.count):
            return block.first_ts if block.columns is None else block.columns.time_of(first)
    return None


def lag_of(core: Core, topic: Topic) -> int:
    """How far the slowest consumer of a topic is behind: jobs to claim, or seqs to a cursor."""
    queue = queue_state(core, topic)
    ready = 0 if queue is None else queue.ready
    places = () if topic.cursors is None else topic.cursors.standing.values()
    return max([ready, *(topic.head - topic.place(cursor) for cursor in places)])


def largest(
    core: Core, prefixes: Sequence[str], by: Measure, after: tuple[int, str] | None, limit: int
) -> Generator[None, None, list[tuple[int, str]]]:
    """Topics with what they measure, the largest first and then by name, a slice at each step.

    `after` is where the page before has ended.
    """
    found: list[tuple[int, str]] = []
    last = None if after is None else (-after[0], after[1])
    topics = list(core.by_name.values())
    begins = tuple(prefixes)
    for start in range(0, len(topics), SLICE_TOPICS):
        if start:
            yield
        for topic in topics[start : start + SLICE_TOPICS]:
            if topic.dropped or not topic.name.startswith(begins):
                continue
            place = (-_measured(core, topic, by), topic.name)
            if last is None or place > last:
                found.append(place)
        found = nsmallest(limit, found)
    return [(-value, name) for value, name in found]


def _measured(core: Core, topic: Topic, by: Measure) -> int:
    if by == "lag":
        return lag_of(core, topic)
    return topic.live_bytes if by == "bytes" else topic.live_count


def of_engine(core: Core, stats: WalStats) -> Gauges:
    committer = core.committer
    return Gauges(
        topics=len(core.by_name), live_bytes=core.live_bytes, routers=len(core.routers),
        routers_blocked=sum(bool(router.blocked) for router in core.routers.by_name.values()),
        frames=committer.frames_on_their_way,
        is_read_only=committer.poison is not None or stats.is_full,
        cold_failures=core.tiering.failures_total, stages=len(core.stages.live),
        staged_records=core.stages.records, staged_bytes=core.stages.bytes,
        stages_expired=core.stages.expired_total, commits=core.stages.commits_total,
        segment_bytes=core.segments.disk_bytes, dead_bytes=core.segments.dead_bytes,
        erased_bytes=core.segments.erased_bytes_total, hot=_tier(core, is_cold=False),
        cold=_tier(core, is_cold=True), tally=core.tally,
    )  # fmt: skip


def _tier(core: Core, *, is_cold: bool) -> tuple[int, int]:
    """The segments of a tier, and what they take there."""
    sizes = [held.info.size for held in core.segments.live.values() if held.is_cold == is_cold]
    return len(sizes), sum(sizes)


def of_topic(core: Core, name: str) -> TopicGauges:
    topic = core.by_name[name]
    return TopicGauges(
        name=name, head_seq=topic.head, earliest_seq=topic.floor, records_live=topic.live_count,
        bytes_live=topic.live_bytes, queue=queue_state(core, topic),
        oldest_ready_ts=oldest_ready_ts(topic),
    )  # fmt: skip


def lags(core: Core, names: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """(topic, cursor, seqs between it and the head) of the topics' cursors."""
    for topic in map(core.by_name.__getitem__, names):
        if topic.cursors is not None:
            for cursor in topic.cursors.standing.values():
                yield topic.name, cursor.name, topic.head - topic.place(cursor)
