"""Stages: records handed in for a batch that was not committed yet, and what batches there were.

A stage is *live* until it is committed, dropped or expired; then its bytes are nobody's. The file
of one that was committed is *spent*: the frame of the commit names it, so it stays for as long as
that frame may be read again. Records of live stages are in no topic: they are counted here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from topics.engine.state.producers import LastBatch, Producers, ProducersDump
from topics.storage.stage_file import StageId, StageInfo, parse_id

# What a file takes on the disk at least.
FILE_BYTES_MIN = 4096
LOOKS_MAX = 1000


class Place(NamedTuple):
    """Up to which log file the frame of a commit is looked for."""

    generation: int
    shard: int
    number: int


def disk_bytes(size: int) -> int:
    """What a file of this size counts for."""
    return max(size, FILE_BYTES_MIN)


class Stage:
    """A live one. It is `taken` while a commit of it is under way, which nothing may disturb."""

    __slots__ = ("deadline_s", "info", "is_taken", "size")

    def __init__(self, info: StageInfo, size: int, deadline_s: float) -> None:
        self.info = info
        self.size = disk_bytes(size)
        # By the monotonic clock.
        self.deadline_s = deadline_s
        self.is_taken = False


class Stages:
    def __init__(self) -> None:
        # In the order in which they expire, or nearly so.
        self.live: dict[StageId, Stage] = {}
        self._by_batch: dict[tuple[str, int], set[StageId]] = defaultdict(set)
        self._batches: dict[str, set[int]] = defaultdict(set)
        self.spent: dict[StageId, Place] = {}
        # What the live ones have, and what is on its way to the disk for more of them.
        self.records = self.bytes = self.arriving_bytes = 0
        self.expired_total = self.commits_total = 0
        self._next_number = 1
        # By topic, and in which topics each of them is known.
        self.producers: dict[int, Producers] = {}
        self._topics_of: dict[str, set[int]] = defaultdict(set)
        # Commits that wait for the one of the same producer that is under way.
        self._lines: dict[str, deque[Callable[[], None]]] = {}

    # -- stages ------------------------------------------------------------------------------

    def new_id(self, generation: int) -> StageId:
        self._next_number += 1
        return generation, self._next_number - 1

    def enter(self, stage: Stage) -> None:
        info = stage.info
        self.live[info.id] = stage
        self._by_batch[info.producer, info.batch].add(info.id)
        self._batches[info.producer].add(info.batch)
        self.records += info.count
        self.bytes += stage.size

    def leave(self, stage: Stage) -> None:
        """It is live no longer."""
        info = stage.info
        del self.live[info.id]
        self.records -= info.count
        self.bytes -= stage.size
        batch = self._by_batch[info.producer, info.batch]
        batch.discard(info.id)
        if not batch:
            del self._by_batch[info.producer, info.batch]
            self._batches[info.producer].discard(info.batch)
            if not self._batches[info.producer]:
                del self._batches[info.producer]

    def find(self, text: str) -> Stage | None:
        stage = parse_id(text)
        return None if stage is None else self.live.get(stage)

    def is_spent(self, text: str) -> bool:
        return parse_id(text) in self.spent

    def of(self, producer: str, batch: int) -> list[Stage]:
        """Those of a batch that nobody is committing."""
        found = [self.live[stage] for stage in sorted(self._by_batch.get((producer, batch), ()))]
        return [stage for stage in found if not stage.is_taken]

    def upto(self, producer: str, batch: int) -> list[Stage]:
        """Those of a batch and the ones before it."""
        batches = [each for each in self._batches.get(producer, ()) if each <= batch]
        return [stage for each in sorted(batches) for stage in self.of(producer, each)]

    def expired(self, now_s: float) -> list[Stage]:
        """Some of those whose time is over."""
        some = islice(self.live.values(), LOOKS_MAX)
        return [each for each in some if each.deadline_s <= now_s and not each.is_taken]

    # -- commits -----------------------------------------------------------------------------

    def line_up(self, producer: str, begin: Callable[[], None]) -> None:
        """Begins now, or when those before it have come to their ends."""
        if producer in self._lines:
            self._lines[producer].append(begin)
            return
        self._lines[producer] = deque()
        begin()

    def go_on(self, producer: str) -> None:
        """A commit has come to its end: the next one begins."""
        line = self._lines[producer]
        if line:
            line.popleft()()
        else:
            del self._lines[producer]

    # -- producers ---------------------------------------------------------------------------

    def last_batches(self, producer: str) -> Iterator[tuple[int, LastBatch]]:
        """(topic id, last batch) of a producer, wherever it is known."""
        for topic_id in sorted(self._topics_of.get(producer, ())):
            last = self.producers[topic_id].last(producer)
            assert last is not None
            yield topic_id, last

    def may_be_forgotten(self, topic_id: int, producer: str) -> bool:
        """Whether a topic that does not know a producer may have done so once."""
        held = self.producers.get(topic_id)
        return held is not None and held.may_be_forgotten(producer)

    def note(self, topic_id: int, producer: str, done: LastBatch, producers_max: int) -> None:
        held = self.producers.setdefault(topic_id, Producers())
        self._drop(topic_id, held.note(producer, done, producers_max))
        if held.last(producer) is not None:
            self._topics_of[producer].add(topic_id)

    def load(self, topic_id: int, dump: ProducersDump, producers_max: int) -> None:
        held = self.producers.setdefault(topic_id, Producers())
        self._drop(topic_id, held.load(dump, producers_max))
        for producer in held.names():
            self._topics_of[producer].add(topic_id)

    def forget(self, topic_id: int) -> None:
        """A topic is gone, or its records are: with it goes who wrote them."""
        held = self.producers.pop(topic_id, None)
        if held is not None:
            self._drop(topic_id, held.names())

    def _drop(self, topic_id: int, producers: Iterable[str]) -> None:
        for producer in producers:
            topics = self._topics_of[producer]
            topics.discard(topic_id)
            if not topics:
                del self._topics_of[producer]
