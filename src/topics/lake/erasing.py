"""Erasure of tagged records from a lake, and the proof that nothing of them is left in it.

Rows of what the server says is deleted are deleted. A row that nothing else explains (its record
was lost to the server before, or its epoch is over) stays as a record without content, so that the
audit still knows its seq. Then the files of older versions are removed, all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from topics.client.client import Client
from topics.errors import TopicNotFound
from topics.lake import deletes, latest
from topics.lake.dead_letters import DeadLetters
from topics.lake.layout import Lake
from topics.lake.table import RECORDS, Table, content_of

Places: TypeAlias = Set[tuple[str, int]]
_NEEDED = ("topic", "epoch", "seq", "tag", "data")


@dataclass(frozen=True)
class ErasedRows:
    """What an erasure did to a table."""

    rows_deleted: int
    rows_emptied: int
    files_removed: int


def tagged(table: Table, tag: str) -> Iterator[tuple[str, int, int, bytes]]:
    """Epoch, seq, time and data of the rows of a tag."""
    rows = table.snapshot().rows("epoch, seq, ts, data", f"{RECORDS} AND {_has_tag(tag)}")
    for row in rows:
        if row["data"] is not None:
            ts_ms = round(row["ts"].timestamp() * 1000)
            yield row["epoch"], row["seq"], ts_ms, row["data"].encode()


def erase(lake: Lake, client: Client, topic: str, tag: str) -> ErasedRows:
    """Takes the rows of a tag out of the topic's tables, and out of their files."""
    table = Table(lake, topic)
    try:
        deleted = deletes.propagate(lake, table, client, only=_has_tag(tag))
    except TopicNotFound:
        deleted = 0
    with lake.writing(topic):
        emptied = table.empty(f"{RECORDS} AND {_has_tag(tag)}")
        letters = DeadLetters(lake, topic)
        letters.follow(table.snapshot())
        files = table.vacuum(0, is_dry=False) + latest.purge(lake, topic)
        if letters.is_there:
            files += letters.vacuum(0, is_dry=False)
    return ErasedRows(deleted, emptied, files)


def left_in_lake(
    lake: Lake, topic: str, tag: str, places: Places, texts: list[bytes]
) -> Iterator[str]:
    """Files of the lake, of whatever version, that hold a record of the tag or one of these."""
    # As they are, and as they would be inside another JSON text.
    texts = texts + [json.dumps(text.decode())[1:-1].encode() for text in texts if b'"' in text]
    for path, content in lake.files():
        is_left = any(text in content for text in texts)
        if not is_left and path.endswith(".parquet"):
            is_left = _has_rows(content, topic, tag, places)
        if is_left:
            yield path


def _has_rows(content: bytes, topic: str, tag: str, places: Places) -> bool:
    file = pq.ParquetFile(pa.BufferReader(content))
    if not set(_NEEDED) <= set(file.schema_arrow.names):
        return False
    content_names = content_of(file.schema_arrow.names)
    return any(
        row["topic"] == topic
        and (_is_tag(row["tag"], tag) or (row["epoch"], row["seq"]) in places)
        and any(row[name] is not None for name in content_names)
        for batch in file.iter_batches()
        for row in batch.to_pylist()
    )


def _is_tag(found: str | None, tag: str) -> bool:
    if found is None:
        return False
    return found.startswith(tag[:-1]) if tag.endswith("*") else found == tag


def _has_tag(tag: str) -> str:
    quoted = tag.replace("'", "''")
    if tag.endswith("*"):
        return f"starts_with(tag, '{quoted[:-1]}')"
    return f"tag = '{quoted}'"
