"""What runs on executors: a range of a topic as Arrow batches, handed on as the server made them.

A page is fetched while the one before it is taken. A gap that is not known beforehand fails the
task or becomes a row, as the options say; nothing that was lost is ever passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_topics.accounts import State, account
from pyspark_topics.errors import DataLoss, Refused
from pyspark_topics.http import Server, topic_path
from pyspark_topics.offsets import is_known
from pyspark_topics.options import DROP, SourceOptions
from pyspark_topics.splits import Part

if TYPE_CHECKING:
    import pyarrow as pa

# The lake's columns, which the server's Arrow has, too.
COLUMNS = (
    "topic", "epoch", "seq", "ts", "node", "tag", "meta", "data", "_kind", "_gap_to", "_gap_reason",
)  # fmt: skip
RECREATED = "recreated"
_META, _TAG = 6, 5


@dataclass(frozen=True)
class Page:
    """One answer of the server."""

    batches: list[pa.RecordBatch]
    next_from_seq: int
    epoch: str


def read(part: Part, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Everything of a partition, in order. Raises DataLoss, Refused, Unreachable."""
    if part.is_recreated:
        yield from _told(_gap_row(part, part.from_seq + 1, part.to_seq), part, options)
        return
    with Server(options.access) as server, ThreadPoolExecutor(1) as ahead:
        at = part.from_seq
        coming = ahead.submit(_page, server, part, at)
        while True:
            page = coming.result()
            is_over = page.epoch != part.epoch or page.next_from_seq >= part.to_seq
            if not is_over:
                at = page.next_from_seq
                coming = ahead.submit(_page, server, part, at)
            for batch in page.batches:
                yield from _told(batch, part, options)
            if is_over:
                return


def _page(server: Server, part: Part, at: int) -> Page:
    import pyarrow as pa

    body: dict[str, Any] = {
        "from_seq": at, "to_seq": part.to_seq, "epoch": part.epoch, "format": "arrow",
    }  # fmt: skip
    if part.match is not None:
        body["match"] = part.match
    try:
        content = server.call("POST", topic_path(part.topic, "range"), body)
    except Refused as error:
        if error.status != 404:
            raise
        # The topic is gone, and with it what this partition was to read.
        return Page([_gap_row(part, at + 1, part.to_seq)], part.to_seq, part.epoch)
    with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
        said = stream.schema.metadata
        batches = [batch for batch in stream if batch.num_rows]
    return Page(batches, int(said[b"next_from_seq"]), said[b"epoch"].decode())


def _told(batch: pa.RecordBatch, part: Part, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """A batch as Spark gets it: its gaps judged, columns that nobody wants empty."""
    gap_to = batch.column("_gap_to")
    if gap_to.null_count < batch.num_rows:
        if options.fail_on_data_loss:
            _judge(batch, part, options)
        elif options.gap_mode == DROP:
            batch = batch.filter(gap_to.is_null())
    if not options.include_meta:
        batch = _emptied(batch, _META)
    if not options.include_tags:
        batch = _emptied(batch, _TAG)
    if batch.num_rows:
        yield batch


def _judge(batch: pa.RecordBatch, part: Part, options: SourceOptions) -> None:
    for row in batch.filter(batch.column("_gap_to").is_valid()).to_pylist():
        first, last, reason = row["seq"], row["_gap_to"], row["_gap_reason"]
        is_fine = is_known(part.known, first, last) or _has_grown(part, first, options)
        if reason == RECREATED or not is_fine:
            raise lost(part.topic, row["epoch"], first, last, reason)


def _has_grown(part: Part, first: int, options: SourceOptions) -> bool:
    """Whether a gap goes back to the one that was there where the read began."""
    if part.growing is None or first <= part.growing:
        return part.growing == first
    with Server(options.access) as server:
        before = account(
            server, part.topic, State(part.epoch, first, 0), part.growing - 1, first - 1
        )
    return all(item.is_gap for item in before.items)


def lost(topic: str, epoch: str, first: int, last: int, reason: str) -> DataLoss:
    if reason == RECREATED:
        return DataLoss(
            f"topic {topic!r} is not the one that this read began with (epoch {epoch}): it was "
            f"deleted and created anew; {max(0, last - first + 1)} seqs of the old one were not "
            "read. With failOnDataLoss=false that is a row, and the new one is read from its start"
        )
    return DataLoss(
        f"seqs {first} to {last} of topic {topic!r} (epoch {epoch}) are lost: {reason}. With "
        "failOnDataLoss=false a lost range is a row"
    )


def _emptied(batch: pa.RecordBatch, column: int) -> pa.RecordBatch:
    import pyarrow as pa

    field = batch.schema.field(column)
    return batch.set_column(column, field, pa.nulls(batch.num_rows, field.type))


def _gap_row(part: Part, first: int, last: int) -> pa.RecordBatch:
    """What is missing of a topic that is no longer there."""
    import pyarrow as pa

    row = {
        "topic": part.topic, "epoch": part.epoch, "seq": first, "_kind": "gap", "_gap_to": last,
        "_gap_reason": RECREATED,
    }  # fmt: skip
    text, seq = pa.string(), pa.int64()
    times, meta = pa.timestamp("us", "UTC"), pa.map_(text, text)
    types = [text, text, seq, times, text, text, meta, text, text, seq, text]
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
    return pa.RecordBatch.from_pylist([row], schema=schema)
