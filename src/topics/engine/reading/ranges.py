"""Ranges: everything a topic has to say about (from_seq, to_seq], and the seq of a time.

A range is read as a reader would read it: `reading.decide` stands in front of every run of
records, so a range tells the same gaps as a diff does, cut to the range. Parts are in order and do
not overlap; what lies between two parts was removed voluntarily.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from topics.engine.commit.core import Core
from topics.engine.reading.pages import View, append_run
from topics.engine.reading.stretches import Budget, Collector, Stretch
from topics.engine.reading.tombstones import decide
from topics.engine.state.block import Block
from topics.engine.state.segments import ColdMiss
from topics.engine.state.tags import Found, Match
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest, TopicNotFound
from topics.settings import MIB
from topics.storage.columns import Columns, Spans
from topics.types import SEQ_BASE, U64_MAX, Payload, Record, Tombstone, array_of, clamp, records_of

BYTES_MAX = 8 * MIB
RECORDS_MAX = 100_000

_FIRST = attrgetter("first")
_LAST_TS = attrgetter("last_ts")
_EVERYTHING = View(include_tags=True)


class Gap(msgspec.Struct, frozen=True):
    """Seqs that were lost involuntarily; both ends inclusive."""

    gap_from: int
    gap_to: int
    reason: str


@dataclass(slots=True)
class Run:
    """Records in order, their tags included."""

    stretches: list[Stretch[Columns]]

    @property
    def pieces(self) -> list[Payload]:
        """As wire JSON."""
        pieces: list[Payload] = []
        for stretch in self.stretches:
            for start, stop in stretch.runs():
                append_run(pieces, stretch.spans, start, stop, _EVERYTHING)
        return pieces

    @property
    def records(self) -> list[Record]:
        return records_of(array_of(self.pieces))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a range. Without `to_seq` it ends at the head.

    `bytes_max` is of data and meta; the record that crosses it is told. 0 is the largest there is.
    Without `keeps_records` a range is only counted: then only these two bound it, if they are
    given.
    """

    from_seq: int = 0
    to_seq: int | None = None
    epoch: int | None = None
    records_max: int = 0
    bytes_max: int = 0
    match: Match | None = None
    keeps_records: bool = True

    def check(self) -> None:
        """Raises InvalidRequest for what is no range."""
        from_seq, to_seq = self.from_seq, self.to_seq
        for name, seq in (("from_seq", from_seq), ("to_seq", to_seq)):
            if seq is not None and (type(seq) is not int or not 0 <= seq <= U64_MAX):
                raise InvalidRequest(f"{name} must be from 0 to 2^64 - 1")
        if to_seq is not None and from_seq > to_seq:
            raise InvalidRequest(
                "from_seq must not be above to_seq", from_seq=from_seq, to_seq=to_seq
            )

    @property
    def budget(self) -> Budget:
        if not self.keeps_records:
            return Budget(self.records_max or None, self.bytes_max or None)
        return Budget(
            clamp(self.records_max or RECORDS_MAX, 1, RECORDS_MAX),
            clamp(self.bytes_max or BYTES_MAX, 1, BYTES_MAX),
        )


@dataclass(slots=True)
class RangePage:
    """The answer of one range read.

    `epoch` is the topic's, `asked_epoch` the one that was asked about. `next_from_seq` is where to
    go on in `epoch`; `complete` says that nothing of the range is left to read. `count` records
    have `content_bytes` bytes of data and meta.
    """

    topic: str
    epoch: int
    asked_epoch: int
    next_from_seq: int
    complete: bool = False
    parts: list[Gap | Run] = field(default_factory=list)
    count: int = 0
    content_bytes: int = 0

    @property
    def gaps(self) -> list[Gap]:
        return [part for part in self.parts if isinstance(part, Gap)]

    @property
    def pieces(self) -> list[Payload]:
        """The records as wire JSON, a comma behind each."""
        runs = [part.pieces for part in self.parts if isinstance(part, Run)]
        return [piece for pieces in runs for piece in pieces]

    @property
    def records_json(self) -> bytes:
        return array_of(self.pieces)

    @property
    def records(self) -> list[Record]:
        return records_of(self.records_json)

    def tell(self, gap: Gap) -> None:
        """Adds a gap; what adjoins the one in front of it, and was lost in the same way, is one."""
        before = self.parts[-1] if self.parts else None
        if isinstance(before, Gap) and (before.gap_to + 1, before.reason) == (
            gap.gap_from,
            gap.reason,
        ):
            self.parts[-1] = Gap(before.gap_from, gap.gap_to, gap.reason)
        else:
            self.parts.append(gap)


def read(core: Core, topic: Topic, asked: Asked) -> Generator[None, None, RangePage]:
    """Reads a range up to its bounds, at least one record of it, in pieces. Raises ColdMiss.

    What another epoch had in the range is one gap, `recreated`, empty when nobody knows of anything
    missed; the reader goes on at the beginning of this epoch. The caller has expired the topic to
    `now` before. Whatever happens to the topic between two pieces is seen by those after it; one
    that is dropped is TopicNotFound.
    """
    from_seq, to_seq, epoch = asked.from_seq, asked.to_seq, asked.epoch
    page = RangePage(topic.name, topic.epoch, topic.epoch if epoch is None else epoch, from_seq)
    told = decide(topic, from_seq, epoch=epoch).tombstone
    if told is not None and told.reason == "recreated":
        missed = from_seq if to_seq is None else to_seq
        page.parts = [Gap(from_seq + 1, missed, told.reason)]
        page.next_from_seq = SEQ_BASE - 1
        page.complete = True
        return page
    wanted = topic.head if to_seq is None else to_seq
    last = min(wanted, topic.head)
    found = None if asked.match is None else (yield from _find(core, topic, asked.match, last))
    work = Collector(topic, core.segments, asked.budget, from_seq, asked.keeps_records, found=found)
    while work.cursor < last and not work.budget.is_spent:
        decision = decide(topic, work.cursor)
        work.cursor = min(decision.cursor, last)
        if decision.tombstone is not None:
            page.tell(_cut(decision.tombstone, last))
        try:
            work.go_on(min(decision.upto, last))
        except ColdMiss:
            if not work.count:
                raise
            # Told now, so that a read makes headway however small the cache is.
            break
        finally:
            if work.stretches:
                page.parts.append(Run(work.stretches))
                work.stretches = []
        yield
        if topic.dropped:
            raise TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name)
    page.count, page.content_bytes = work.count, work.content_bytes
    if asked.keeps_records:
        core.tally.read += page.count
    page.next_from_seq = work.cursor
    page.complete = work.cursor == wanted
    return page


def _find(core: Core, topic: Topic, match: Match, last: int) -> Generator[None, None, Found]:
    """The seqs up to `last` whose tags match. Raises ColdMiss for tags that are not indexed yet."""
    while topic.untagged and not topic.dropped:
        next(core.index_tags(topic), None)
        yield
    found: Found = {}
    if topic.tags is not None:
        found = yield from topic.tags.gather(match, topic.floor, last + 1)
    return found


def _cut(told: Tombstone, last: int) -> Gap:
    return Gap(told.gap_from, min(told.gap_to, last), told.reason)


def seq_at(topic: Topic, ts: int, load: Callable[[Block], Spans]) -> tuple[int, int] | None:
    """Seq and time of the first live record at or after `ts`; None past the head.

    Times do not decrease with seq: a search over the blocks, then one inside a block. The times of
    records in the cold store are kept locally, so it waits for none of them.
    """
    blocks = topic.blocks
    for index in range(bisect_left(blocks, ts, key=_LAST_TS), len(blocks)):
        block = blocks[index]
        if block.dead_count == block.count:
            continue
        spans = load(block)
        first = max(spans.first_after(ts - 1), topic.floor - block.first)
        for start, _ in block.live_runs(first, block.count):
            return block.first + start, spans.time_of(start)
    return None


def live_before(topic: Topic, seq: int) -> int:
    """The last live seq below another one; 0 when there is none."""
    blocks, floor = topic.blocks, topic.floor
    for index in range(bisect_left(blocks, seq, key=_FIRST) - 1, -1, -1):
        block = blocks[index]
        if block.first + block.count <= floor:
            break
        first, stop = max(floor - block.first, 0), min(seq - block.first, block.count)
        ends = [end for _, end in block.live_runs(first, stop)]
        if ends:
            return block.first + ends[-1] - 1
    return 0
