"""A range as an Arrow IPC stream, with the columns of the lake's tables.

Needs pyarrow, which is not among the server's own packages: it is imported when it is asked for.
The schema's metadata says `next_from_seq`, `complete` and the `epoch` to go on in.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from topics.engine.reading.ranges import Gap, RangePage
from topics.server.http.errors import BadRequest
from topics.types import Record

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
BATCH_ROWS_MAX = 10_000

Row = tuple[object, ...]


def encode(page: RangePage) -> bytes:
    """The stream's bytes. Safe in any thread. Raises BadRequest where pyarrow is missing."""
    try:
        pa = import_module("pyarrow")
        ipc = import_module("pyarrow.ipc")
    except ImportError:
        raise BadRequest(
            "format arrow needs pyarrow, which is not installed beside this server: install "
            "topics-log[spark] there, or ask for json"
        ) from None
    schema = _schema(pa).with_metadata(
        {
            "topic": page.topic,
            "epoch": str(page.epoch),
            "next_from_seq": str(page.next_from_seq),
            "complete": str(page.complete).lower(),
        }
    )
    rows = list(_rows(page))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.table(arrays, schema=schema), max_chunksize=BATCH_ROWS_MAX)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _schema(pa: Any) -> Any:
    text, seq = pa.string(), pa.int64()
    return pa.schema(
        [
            ("topic", text), ("epoch", text), ("seq", seq), ("ts", pa.timestamp("us", "UTC")),
            ("node", text), ("tag", text), ("meta", pa.map_(text, text)), ("data", text),
            ("_kind", text), ("_gap_to", seq), ("_gap_reason", text),
        ]
    )  # fmt: skip


def _rows(page: RangePage) -> list[Row]:
    topic, epoch = page.topic, str(page.epoch)
    rows: list[Row] = []
    for part in page.parts:
        if isinstance(part, Gap):
            # What another epoch has lost is told in that epoch.
            of = str(page.asked_epoch) if part.reason == "recreated" else epoch
            rows.append(
                (topic, of, part.gap_from, None, None, None, None, None, "gap", part.gap_to,
                 part.reason)
            )  # fmt: skip
            continue
        rows.extend(
            (topic, epoch, r.seq, r.ts * 1000, r.node, r.tag, _meta(r), bytes(r.data).decode(),
             "record", None, None)
            for r in part.records
        )  # fmt: skip
    return rows


def _meta(record: Record) -> list[tuple[str, str]] | None:
    """Meta as a map of texts; a value that is none is its JSON."""
    if record.meta is None:
        return None
    return [
        (key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in record.meta.items()
    ]
