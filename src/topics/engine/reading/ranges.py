"""Ranges: everything a topic has to say about (from_seq, to_seq], and the seq of a time.

A range is read as a reader would read it: `reading.decide` stands in front of every run of
records, so a range tells the same gaps as a diff does, cut to the range. Parts are in order and do
not overlap; what lies between two parts was removed voluntarily.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from topics.engine.reading.pages import LoadNow, View, collect
from topics.engine.reading.tombstones import Decision, decide
from topics.engine.state.block import Block
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest
from topics.settings import MIB
from topics.storage.columns import Spans
from topics.types import SEQ_BASE, U64_MAX, Payload, Record, Tombstone, array_of, clamp, records_of

BYTES_DEFAULT = 8 * MIB
BYTES_MAX = 8 * MIB
RECORDS_MAX = 100_000

_LAST_TS = attrgetter("last_ts")
_EVERYTHING = View(include_tags=True)


class Gap(msgspec.Struct, frozen=True):
    """Seqs that were lost involuntarily; both ends inclusive."""

    gap_from: int
    gap_to: int
    reason: str


@dataclass(slots=True)
class Run:
    """Rendered records, their tags included."""

    pieces: list[Payload]
    count: int

    @property
    def records(self) -> list[Record]:
        return records_of(array_of(self.pieces))


@dataclass(slots=True)
class RangePage:
    """The answer of one range read.

    `epoch` is the topic's, `asked_epoch` the one that was asked about. `next_from_seq` is where to
    go on in `epoch`; `complete` says that nothing of the range is left to read.
    """

    topic: str
    epoch: int
    asked_epoch: int
    next_from_seq: int
    complete: bool = False
    parts: list[Gap | Run] = field(default_factory=list)
    records_scanned: int = 0

    @property
    def gaps(self) -> list[Gap]:
        return [part for part in self.parts if isinstance(part, Gap)]

    @property
    def records_json(self) -> bytes:
        runs = [part.pieces for part in self.parts if isinstance(part, Run)]
        return array_of([piece for pieces in runs for piece in pieces])

    @property
    def records(self) -> list[Record]:
        return records_of(self.records_json)


def check_bounds(from_seq: int, to_seq: int | None) -> None:
    """Raises InvalidRequest for what is no range."""
    for name, seq in (("from_seq", from_seq), ("to_seq", to_seq)):
        if seq is not None and (type(seq) is not int or not 0 <= seq <= U64_MAX):
            raise InvalidRequest(f"{name} must be from 0 to 2^64 - 1")
    if to_seq is not None and from_seq > to_seq:
        raise InvalidRequest("from_seq must not be above to_seq", from_seq=from_seq, to_seq=to_seq)


def read(
    topic: Topic,
    from_seq: int,
    to_seq: int | None,
    *,
    epoch: int | None,
    records_max: int,
    bytes_max: int,
    load_now: LoadNow,
) -> RangePage:
    """Reads a range up to the bounds, at least one record of it. Raises ColdMiss.

    Without `to_seq` it ends at the head. What another epoch had in the range is one gap,
    `recreated`, empty when nobody knows of anything missed; the reader goes on at the beginning
    of this epoch. The caller has expired the topic to `now` before.
    """
    page = RangePage(topic.name, topic.epoch, topic.epoch if epoch is None else epoch, from_seq)
    told = decide(topic, from_seq, epoch=epoch).tombstone
    if told is not None and told.reason == "recreated":
        missed = from_seq if to_seq is None else to_seq
        page.parts = [Gap(from_seq + 1, missed, told.reason)]
        page.next_from_seq = SEQ_BASE - 1
        page.complete = True
        return page
    room = clamp(bytes_max or BYTES_DEFAULT, 1, BYTES_MAX)
    left = clamp(records_max or RECORDS_MAX, 1, RECORDS_MAX)
    wanted = topic.head if to_seq is None else to_seq
    last = min(wanted, topic.head)
    cursor = from_seq
    while cursor < last and left > 0 and room > 0:
        decision = decide(topic, cursor)
        cursor = min(decision.cursor, last)
        if decision.tombstone is not None:
            page.parts.append(_cut(decision.tombstone, last))
        if cursor == last:
            break
        within = Decision(None, cursor, min(decision.upto, last))
        try:
            found = collect(
                topic, within, _EVERYTHING, limit=left, bytes_max=room, load_now=load_now
            )
        except ColdMiss:
            if not page.parts:
                raise
            # Told now, so that a read makes headway however small the cache is.
            break
        if found.count:
            page.parts.append(Run(found.pieces, found.count))
        page.records_scanned += found.scanned
        left -= found.count
        room -= sum(map(len, found.pieces))
        cursor = found.cursor
    page.next_from_seq = cursor
    page.complete = cursor == wanted
    return page


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
