"""`topics export`: a topic as a file."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO

import typer

from topics.cli import server
from topics.cli.directory import progress_bar
from topics.cli.tail import in_order, wire
from topics.client.client import Client
from topics.errors import InvalidRequest

PAGE_BYTES = 8 * 1024 * 1024


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    topic: server.Topic,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; - is standard output.")],
    from_seq: Annotated[int, typer.Option("--from", min=0, help="After this seq.")] = 0,
    to_seq: Annotated[
        int | None, typer.Option("--to", min=0, help="Up to this seq; the head.")
    ] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON value: a summary; the items, where FILE is -.")
    ] = False,
) -> None:
    """Write a topic to a file: JSON lines or Parquet.

    A name that ends in .parquet makes Parquet; anything else is JSON lines, or on standard output
    with --json one JSON array. Gaps are lines or rows in their place. The file appears when it is
    whole.

    Example: topics export orders orders.parquet
    """
    if to_seq is not None and to_seq < from_seq:
        raise typer.BadParameter(f"--to {to_seq} is before --from {from_seq}")
    if os.path.isdir(file):
        raise typer.BadParameter(f"{file} is a directory; name a file in it", param_hint="FILE")
    is_parquet = file.endswith(".parquet")
    if not is_parquet and _is_stdout(file):
        file = "-"
    # A summary behind the items would make it two values, and a line for each item many.
    as_array = as_json and file == "-"
    with server.connected(url, token, server.PATIENT) as client:
        head = client.topic(topic, touch=False).head_seq
        if from_seq > head:
            raise InvalidRequest(f"{topic} has nothing above --from {from_seq}: its head is {head}")
        upto = head if to_seq is None else min(to_seq, head)
        with progress_bar("exporting") as progress, _output(file) as sink:
            write = _parquet if is_parquet else _json_array if as_array else _json_lines
            records, gaps = write(client, topic, from_seq, upto, sink, progress)
    written = f"{server.counted(records, 'record')} and {server.counted(gaps, 'gap')}"
    server.tell(f"{written} of {topic} written to {'standard output' if file == '-' else file}")
    if as_json and not as_array:
        server.write_json({"topic": topic, "file": file, "records": records, "gaps": gaps})


def _json_lines(
    client: Client, topic: str, at: int, upto: int, sink: BinaryIO, progress: Any
) -> tuple[int, int]:
    counts: Counter[str] = Counter()
    for item in _items(client, topic, at, upto, progress, counts):
        sink.write(server.json_text(item).encode() + b"\n")
    return counts["records"], counts["gaps"]


def _json_array(
    client: Client, topic: str, at: int, upto: int, _sink: BinaryIO, progress: Any
) -> tuple[int, int]:
    counts: Counter[str] = Counter()
    server.write_array(_items(client, topic, at, upto, progress, counts))
    return counts["records"], counts["gaps"]


def _items(
    client: Client, topic: str, at: int, upto: int, progress: Any, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Everything in (at, upto], in order, a page at a time."""
    epoch: str | None = None
    while at < upto:
        page = client.range(topic, from_seq=at, to_seq=upto, max_bytes=PAGE_BYTES, epoch=epoch)
        for item in in_order(page):
            yield wire(topic, item)
        counts.update(records=len(page.records), gaps=len(page.gaps))
        if page.complete:
            return
        at, epoch = page.next_from_seq, page.epoch
        if progress is not None:
            progress(at, upto)


def _parquet(
    client: Client, topic: str, at: int, upto: int, sink: BinaryIO, progress: Any
) -> tuple[int, int]:
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise InvalidRequest("Parquet needs pyarrow: pip install pyarrow") from None
    records = gaps = 0
    writer: Any = None
    while True:
        raw = client.range_arrow(topic, from_seq=at, to_seq=upto, max_bytes=PAGE_BYTES)
        table = pa.ipc.open_stream(raw).read_all()
        after = int(table.schema.metadata[b"next_from_seq"])
        table = table.replace_schema_metadata(None)
        writer = writer or pq.ParquetWriter(sink, table.schema)
        writer.write_table(table)
        lost = pc.sum(pc.equal(table["_kind"], "gap")).as_py() or 0
        records, gaps = records + table.num_rows - lost, gaps + lost
        if after <= at or after >= upto:
            writer.close()
            return records, gaps
        at = after
        if progress is not None:
            progress(at, upto)


def _is_stdout(name: str) -> bool:
    """Whether a name leads to standard output, as /dev/stdout does."""
    try:
        return os.path.samestat(os.stat(name), os.fstat(sys.stdout.fileno()))
    except OSError:
        # No such file, or a standard output that is none.
        return False


@contextmanager
def _output(name: str) -> Iterator[BinaryIO]:
    """A file that is there as a whole or not at all."""
    if name == "-":
        yield sys.stdout.buffer
        return
    if os.path.exists(name) and not os.path.isfile(name):
        # A device or a pipe: whoever renamed a file to /dev/null would take it from everybody.
        with open(name, "wb") as sink:
            yield sink
        return
    # A link stays: what it leads to is the file.
    name = os.path.realpath(name)
    part = f"{name}.part"
    if not os.path.isdir(os.path.dirname(name) or "."):
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", os.path.dirname(name))
    try:
        with open(part, "wb") as sink:
            yield sink
        os.replace(part, name)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
