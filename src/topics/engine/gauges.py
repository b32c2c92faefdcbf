"""What an engine counts, as values: for metrics, a few topics or all of them at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

from topics.engine.commit.core import Core
from topics.engine.ops.catalog import queue_state
from topics.storage.wal import WalStats
from topics.types import QueueState

# Topics that are added up in one step.
SLICE_TOPICS = 4000


@dataclass(slots=True)
class Sums:
    """What has to be added up over all topics."""

    records: int = 0
    queues: int = 0
    in_flight: int = 0
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


@dataclass(frozen=True, slots=True)
class TopicGauges:
    """One topic."""

    name: str
    head_seq: int
    earliest_seq: int
    records_live: int
    bytes_live: int
    queue: QueueState | None


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
    return sums


def of_engine(core: Core, stats: WalStats) -> Gauges:
    committer = core.committer
    return Gauges(
        topics=len(core.by_name), live_bytes=core.live_bytes, routers=len(core.routers),
        routers_blocked=sum(bool(router.blocked) for router in core.routers.by_name.values()),
        frames=committer.frames_on_their_way,
        is_read_only=committer.poison is not None or stats.is_full,
        cold_failures=core.tiering.failures_total,
    )  # fmt: skip


def of_topic(core: Core, name: str) -> TopicGauges:
    topic = core.by_name[name]
    return TopicGauges(
        name=name, head_seq=topic.head, earliest_seq=topic.floor, records_live=topic.live_count,
        bytes_live=topic.live_bytes, queue=queue_state(core, topic),
    )  # fmt: skip


def lags(core: Core, names: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """(topic, cursor, seqs between it and the head) of the topics' cursors."""
    for topic in map(core.by_name.__getitem__, names):
        if topic.cursors is not None:
            for cursor in topic.cursors.standing.values():
                yield topic.name, cursor.name, topic.head - topic.place(cursor)
