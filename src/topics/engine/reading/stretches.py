"""Stretches: the live records of a range, block by block, as far as a budget goes.

A stretch refers to the bytes of its records and copies none of them, but for those of a block that
still grows: it may be looked at in any thread, whatever becomes of the topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from topics.engine.reading.pages import ahead
from topics.engine.state import places
from topics.engine.state.block import Block
from topics.engine.state.places import Numbers
from topics.engine.state.segments import ColdMiss, Segments
from topics.engine.state.tags import Found, within
from topics.engine.state.topic import Topic
from topics.storage.columns import METAS, NODES, Columns, Spans
from topics.storage.segment import DEAD

AnySpans = TypeVar("AnySpans", bound=Spans)

# Blocks that are passed in one piece of a read.
BLOCKS_PIECE = 4


@dataclass(slots=True)
class Stretch(Generic[AnySpans]):
    """Records of one block: all of its [start, stop), or those that `picks` names.

    `first` is the seq of the block's first record.
    """

    spans: AnySpans
    first: int
    start: int
    stop: int
    picks: Numbers | None
    # The bytes of data and meta of each record that is meant, once somebody has asked.
    known: Numbers | None = None

    def __len__(self) -> int:
        return self.stop - self.start if self.picks is None else len(self.picks)

    @property
    def contents(self) -> Numbers:
        """The bytes of data and meta of each record that is meant."""
        if self.known is None:
            contents = places.contents(self.spans, self.first, self.start, self.stop)
            self.known = contents if self.picks is None else contents[self.picks - self.start]
        return self.known

    @property
    def rows(self) -> Numbers:
        return np.arange(self.start, self.stop) if self.picks is None else self.picks

    def split(self, rows_max: int) -> Iterator[Stretch[AnySpans]]:
        """The same in parts of at most so many records."""
        if len(self) <= rows_max:
            yield self
            return
        for at in range(0, len(self), rows_max):
            yield self.part(at, min(at + rows_max, len(self)))

    def part(self, at: int, to: int) -> Stretch[AnySpans]:
        """Of the records that are meant, those from one to another."""
        known = None if self.known is None else self.known[at:to]
        if self.picks is None:
            return Stretch(self.spans, self.first, self.start + at, self.start + to, None, known)
        picks = self.picks[at:to]
        start, stop = int(picks[0]), int(picks[-1]) + 1
        return Stretch(self.spans, self.first, start, stop, picks, known)

    def runs(self) -> Iterator[tuple[int, int]]:
        """The records that are meant, as runs [start, stop)."""
        if self.picks is None:
            yield self.start, self.stop
            return
        breaks = np.flatnonzero(np.diff(self.picks) != 1)
        starts = [0, *(breaks + 1).tolist()]
        lasts = [*breaks.tolist(), len(self.picks) - 1]
        for start, last in zip(starts, lasts, strict=True):
            yield int(self.picks[start]), int(self.picks[last]) + 1


@dataclass(slots=True)
class Budget:
    """How many records, and bytes of data and meta, may still be taken; None is any number."""

    records: int | None
    bytes: int | None

    @property
    def is_spent(self) -> bool:
        return self.records == 0 or (self.bytes is not None and self.bytes <= 0)

    def take(self, contents: Numbers) -> int:
        """Takes as many of these records as go, the one that crosses the bytes included."""
        count, total = len(contents), int(contents.sum())
        if self.bytes is not None and total > self.bytes:
            totals = np.cumsum(contents)
            count = int(np.searchsorted(totals, self.bytes)) + 1
            total = int(totals[count - 1])
        self.spend(count, total)
        return count

    def spend(self, count: int, total: int) -> None:
        if self.records is not None:
            self.records -= count
        if self.bytes is not None:
            self.bytes -= total

    def covers(self, count: int, total: int) -> bool:
        """Whether so much can be taken without looking where it ends."""
        return (self.records is None or count <= self.records) and (
            self.bytes is None or total < self.bytes
        )


@dataclass(slots=True)
class Collector:
    """What one read has found so far, up to `cursor`. Without `keeps_records` it only counts.

    `found` are the seqs that match, where that is asked for, as `TagIndex.gather` has them.
    """

    topic: Topic
    segments: Segments
    budget: Budget
    cursor: int
    keeps_records: bool
    found: Found | None = None
    stretches: list[Stretch[Columns]] = field(default_factory=list)
    count: int = 0
    content_bytes: int = 0

    def go_on(self, upto: int) -> None:
        """Passes the records after the cursor, of a bounded number of blocks. Raises ColdMiss."""
        topic, begin = self.topic, self.topic.block_at(self.cursor + 1)
        end = min(begin + BLOCKS_PIECE, len(topic.blocks))
        for index in range(begin, end):
            if self.cursor >= upto or self.budget.is_spent:
                return
            try:
                self._pass(topic.blocks[index], upto)
            except ColdMiss as miss:
                if self.found is None:
                    miss.ahead = ahead(topic, index)
                raise
        if end == len(topic.blocks) and not self.budget.is_spent:
            self.cursor = max(self.cursor, upto)

    def _pass(self, block: Block, upto: int) -> None:
        """Passes a block, or the part of it that the budget covers."""
        start = max(self.cursor + 1 - block.first, 0)
        stop = min(block.stop, upto + 1) - block.first
        last = block.first + stop - 1
        if stop <= start or self._counts_whole(block, start, stop):
            self.cursor = max(self.cursor, last)
            return
        picks = self._picks(block, start, stop)
        if picks is not None and not len(picks):
            # Not loaded for nothing: a read that scans what it loads makes headway.
            self.cursor = last
            return
        if not self.keeps_records:
            self._take(self.segments.exact_spans(block), block.first, start, stop, picks)
            return
        columns = self.segments.columns(block)
        stretch = self._take(columns, block.first, start, stop, picks)
        may_grow = type(columns.payload) is bytearray
        self.stretches.append(_lasting(stretch) if may_grow else stretch)

    def _take(
        self, spans: AnySpans, first: int, start: int, stop: int, picks: Numbers | None
    ) -> Stretch[AnySpans]:
        """Counts and passes as much of these records as the budget covers."""
        stretch = Stretch(spans, first, start, stop, picks)
        if self.budget.records is not None and len(stretch) > self.budget.records:
            stretch = stretch.part(0, self.budget.records)
        total = _plain_content(stretch)
        if total is not None and self.budget.covers(len(stretch), total):
            self.budget.spend(len(stretch), total)
        else:
            taken = self.budget.take(stretch.contents)
            if taken < len(stretch):
                stretch = stretch.part(0, taken)
            total = int(stretch.contents.sum())
        self.count += len(stretch)
        self.content_bytes += total
        # What is behind the last that is meant is passed, too, unless the budget ends here.
        is_whole = stretch.stop == stop or (picks is not None and len(stretch) == len(picks))
        self.cursor = first + (stop if is_whole else stretch.stop) - 1
        return stretch

    def _picks(self, block: Block, start: int, stop: int) -> Numbers | None:
        """The records of [start, stop) that are meant; None: all of them."""
        if self.found is None and not block.dead_count:
            return None
        picks = np.arange(start, stop)
        if self.found is not None:
            picks = within(self.found, block.first + start, block.first + stop) - block.first
        if block.dead_count and block.dead is not None:
            picks = picks[np.frombuffer(block.dead, np.uint8)[picks] != DEAD]
        return picks

    def _counts_whole(self, block: Block, start: int, stop: int) -> bool:
        """Counts a block without looking at its records, where that can be done."""
        if self.keeps_records or self.found is not None or start or stop < block.count:
            return False
        live = block.count - block.dead_count
        if live and not (_is_plain(block) and self.segments.is_exact):
            return False
        total = places.plain_content(
            block.live_bytes, live, (block.first, block.stop - 1), (block.first_ts, block.last_ts)
        )
        if total is None or not self.budget.covers(live, total):
            return False
        self.budget.spend(live, total)
        self.count += live
        self.content_bytes += total
        return True


def _is_plain(block: Block) -> bool:
    """Whether it is known that its records have nothing but data and tags."""
    if block.columns is not None:
        return block.columns.nodes is None and block.columns.metas is None
    return block.row is not None and not block.row.flags & (NODES | METAS)


def _plain_content(stretch: Stretch[AnySpans]) -> int | None:
    """The bytes of data of whole runs that have nothing else to count, without a look at each."""
    spans, first, start, stop = stretch.spans, stretch.first, stretch.start, stretch.stop
    is_plain = isinstance(spans, Columns) and spans.nodes is None and spans.metas is None
    if not is_plain or stretch.picks is not None:
        return None
    times = spans.time_of(start), spans.time_of(stop - 1)
    seqs = first + start, first + stop - 1
    return places.plain_content(spans.span(start, stop), stop - start, seqs, times)


def _lasting(stretch: Stretch[Columns]) -> Stretch[Columns]:
    """The same with a copy of its records: their block may grow."""
    start, picks = stretch.start, stretch.picks
    return Stretch(
        stretch.spans.cut(start, stretch.stop), stretch.first + start, 0, stretch.stop - start,
        None if picks is None else picks - start, stretch.known,
    )  # fmt: skip
