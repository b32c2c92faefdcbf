"""A range as an Arrow IPC stream, with the columns of the lake's tables.

Nothing is done record by record: `data` is cut out of the records' bytes by their index, numbers
come from the columns, a batch of rows at a time and in steps that are short beside a write, so that
the loop has others in between. The rows are those of the JSON answer, gaps in their place.

Needs pyarrow, which is not among the server's own packages: it is imported when it is asked for.
The schema's metadata says `next_from_seq`, `complete` and the `epoch` to go on in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from topics.engine.reading.ranges import Gap, RangePage
from topics.engine.reading.stretches import Stretch
from topics.engine.state import places
from topics.engine.state.record import END_BYTES, META_BYTES
from topics.server.http.errors import BadRequest
from topics.server.http.slices import Steps
from topics.server.routes import arrow_texts
from topics.storage.columns import Columns
from topics.types import Payload

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
# Small enough that no step of a batch takes long; one record that is larger has a batch of its own.
BATCH_ROWS_MAX = 1024
BATCH_BYTES_MAX = 512 * 1024
# What ends a stream: a message of no length.
_END = b"\xff\xff\xff\xff\0\0\0\0"


class Encoder:
    """Makes streams of pages. Made once, in a thread: the import takes a quarter of a second."""

    def __init__(self) -> None:
        """Raises BadRequest without pyarrow."""
        try:
            self.pa: Any = import_module("pyarrow")
            import_module("pyarrow.compute")
        except ImportError:
            raise BadRequest(
                "format arrow needs pyarrow, which is not installed beside this server: install "
                "topics-log[spark] there, or ask for json"
            ) from None
        self.schema = _schema(self.pa)
        # The same in every batch, for one of any length.
        self.kind = self.repeated("record")
        self.nothing = {
            name: self.pa.nulls(BATCH_ROWS_MAX, self.schema.field(name).type)
            for name in ("node", "tag", "meta", "_gap_to", "_gap_reason")
        }

    def repeated(self, text: str) -> Any:
        return self.pa.repeat(self.pa.scalar(text, self.pa.string()), BATCH_ROWS_MAX)

    def encode(self, page: RangePage) -> tuple[Payload, ...]:
        """The stream's bytes, in parts."""
        steps = self.steps(page)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                pieces: tuple[Payload, ...] = done.value
                return pieces

    def steps(self, page: RangePage) -> Steps[tuple[Payload, ...]]:
        """The same, in steps of a fraction of a tenth of a millisecond."""
        schema = self.schema.with_metadata(
            {
                "topic": page.topic,
                "epoch": str(page.epoch),
                "next_from_seq": str(page.next_from_seq),
                "complete": str(page.complete).lower(),
            }
        )
        rows = _Rows(self, page)
        batches: list[Payload] = []
        for group in _groups(page):
            yield
            batches.append((yield from rows.serialized(group)))
        return (memoryview(schema.serialize()), *batches, _END)


def _schema(pa: Any) -> Any:
    text, seq = pa.string(), pa.int64()
    return pa.schema(
        [
            ("topic", text), ("epoch", text), ("seq", seq), ("ts", pa.timestamp("us", "UTC")),
            ("node", text), ("tag", text), ("meta", pa.map_(text, text)), ("data", text),
            ("_kind", text), ("_gap_to", seq), ("_gap_reason", text),
        ]
    )  # fmt: skip


# -- what becomes a batch ------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """Rows of one batch: stretches of records, and each gap with the rows in front of it."""

    stretches: list[Stretch[Columns]] = field(default_factory=list)
    gaps: list[tuple[int, Gap]] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def has_room(self, count: int, size: int) -> bool:
        """Whether so many more rows fit; what is alone always does."""
        rows = self.count + len(self.gaps)
        return not rows or (rows + count <= BATCH_ROWS_MAX and self.size + size <= BATCH_BYTES_MAX)


def _groups(page: RangePage) -> Iterator[_Group]:
    group = _Group()
    for part in page.parts:
        if isinstance(part, Gap):
            if not group.has_room(1, 0):
                yield group
                group = _Group()
            group.gaps.append((group.count, part))
            continue
        for piece in (piece for each in part.stretches for piece in _pieces(each)):
            size = piece.spans.span(piece.start, piece.stop)
            if not group.has_room(len(piece), size):
                yield group
                group = _Group()
            group.stretches.append(piece)
            group.count += len(piece)
            group.size += size
    if group.count or group.gaps:
        yield group


def _pieces(stretch: Stretch[Columns]) -> Iterator[Stretch[Columns]]:
    """A stretch in parts that fit a batch; one record that is larger is a part of its own."""
    for piece in stretch.split(BATCH_ROWS_MAX):
        columns, rows = piece.spans, piece.rows
        if columns.span(piece.start, piece.stop) <= BATCH_BYTES_MAX:
            yield piece
            continue
        ends = np.array(columns.ends[piece.start : piece.stop], np.int64)[rows - piece.start]
        at = 0
        while at < len(piece):
            stop_byte = columns.start(int(rows[at])) + BATCH_BYTES_MAX
            to = max(at + 1, int(np.searchsorted(ends, stop_byte, "right")))
            yield piece.part(at, to)
            at = to


class _Records:
    """The records of a group: their bytes in one piece, and numbers for each of them."""

    def __init__(self, group: _Group) -> None:
        count = group.count
        self.raw = np.empty(group.size, np.uint8)
        self.seqs = np.empty(count, np.int64)
        self.times = np.empty(count, np.int64)
        self.ends = np.empty(count, np.int64)
        self.contents = np.empty(count, np.int64)
        self.has_meta = np.zeros(count, np.bool_)
        self.nodes: list[str | None] | None = None
        self.tags: list[str | None] | None = None

    def take(self, stretches: list[Stretch[Columns]]) -> Steps[None]:
        row = byte = 0
        for stretch in stretches:
            columns, rows = stretch.spans, stretch.rows
            base, size = columns.start(stretch.start), columns.span(stretch.start, stretch.stop)
            stop = row + len(rows)
            self.raw[byte : byte + size] = np.frombuffer(columns.payload, np.uint8, size, base)
            yield
            self.seqs[row:stop] = rows + stretch.first
            self.times[row:stop] = places.times_at(columns, rows)
            ends = np.array(columns.ends[stretch.start : stretch.stop], np.int64)
            if stretch.picks is not None:
                ends = ends[rows - stretch.start]
            self.ends[row:stop] = ends + (byte - base)
            self.contents[row:stop] = stretch.contents
            if columns.metas is not None:
                self.has_meta[row:stop] = np.frombuffer(columns.metas, np.uint8)[rows] != 0
            self.nodes = _joined(self.nodes, columns.nodes, stretch, row)
            self.tags = _joined(self.tags, columns.tags, stretch, row)
            row, byte = stop, byte + size
            yield


def _joined(
    texts: list[str | None] | None,
    more: list[str | None] | None,
    stretch: Stretch[Columns],
    before: int,
) -> list[str | None] | None:
    """A column of texts with those of another stretch; None while no record has one."""
    if more is None:
        return texts if texts is None else texts + [None] * len(stretch)
    chosen = more[stretch.start : stretch.stop]
    if stretch.picks is not None:
        chosen = [more[row] for row in stretch.picks.tolist()]
    return (texts if texts is not None else [None] * before) + chosen


# -- columns -------------------------------------------------------------------------------------


class _Rows:
    """Makes batches of one page."""

    def __init__(self, encoder: Encoder, page: RangePage) -> None:
        self._encoder = encoder
        self._pa = encoder.pa
        self._schema = encoder.schema
        self._page = page
        # The same in every row.
        self._topic, self._epoch = map(encoder.repeated, (page.topic, str(page.epoch)))

    def serialized(self, group: _Group) -> Steps[memoryview]:
        batch = yield from self._batch(group)
        yield
        return memoryview(batch.serialize(self._pa.system_memory_pool()))

    def _batch(self, group: _Group) -> Steps[Any]:
        if not group.gaps:
            return (yield from self._records(group))
        if not group.count:
            return self._gaps(group)
        records = yield from self._records(group)
        both = self._pa.Table.from_batches([records, self._gaps(group)])
        order = np.insert(
            np.arange(group.count),
            [before for before, _ in group.gaps],
            np.arange(group.count, group.count + len(group.gaps)),
        )
        (batch,) = both.take(order).combine_chunks().to_batches()
        return batch

    def _records(self, group: _Group) -> Steps[Any]:
        pa, records, count = self._pa, _Records(group), group.count
        if len(records.raw) > np.iinfo(np.int32).max:
            raise BadRequest("a record of 2 GiB does not fit the arrow format: ask for json")
        yield from records.take(group.stretches)
        ends = records.ends - END_BYTES
        starts = ends - records.contents
        meta = self._nothing("meta", count)
        if records.has_meta.any():
            which = np.flatnonzero(records.has_meta)
            starts[which] -= META_BYTES
            found = yield from arrow_texts.meta_starts(pa, records.raw, starts[which], ends[which])
            texts = arrow_texts.cut(pa, records.raw, found + META_BYTES, ends[which])
            ends[which] = found
            yield
            meta = yield from arrow_texts.maps(pa, meta.type, texts, records.has_meta)
            yield
        data = arrow_texts.cut(pa, records.raw, starts, ends).view(pa.string())
        yield
        times = pa.array(records.times * 1000).view(self._schema.field("ts").type)
        nothing = self._nothing
        return pa.record_batch(
            [
                self._topic[:count], self._epoch[:count], pa.array(records.seqs), times,
                self._texts("node", records.nodes, count), self._texts("tag", records.tags, count),
                meta, data, self._encoder.kind[:count], nothing("_gap_to", count),
                nothing("_gap_reason", count),
            ],
            schema=self._schema,
        )  # fmt: skip

    def _nothing(self, name: str, count: int) -> Any:
        return self._encoder.nothing[name][:count]

    def _texts(self, name: str, texts: list[str | None] | None, count: int) -> Any:
        if texts is None:
            return self._nothing(name, count)
        return self._pa.array(texts, self._pa.string())

    def _gaps(self, group: _Group) -> Any:
        page, pa = self._page, self._pa
        gaps = [gap for _, gap in group.gaps]
        # What another epoch has lost is told in that epoch.
        epochs = [page.asked_epoch if g.reason == "recreated" else page.epoch for g in gaps]
        nothing = [None] * len(gaps)
        columns: list[list[Any]] = [
            [page.topic] * len(gaps), [*map(str, epochs)], [g.gap_from for g in gaps],
            nothing, nothing, nothing, nothing, nothing,
            ["gap"] * len(gaps), [g.gap_to for g in gaps], [g.reason for g in gaps],
        ]  # fmt: skip
        kinds = self._schema.types
        arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)]
        return pa.record_batch(arrays, schema=self._schema)
