"""Writes: rows are staged by tasks and become records, all at once, when the driver commits.

A stage is seen by nobody. A batch is known to the server by (producer, batch, query): the same one
again, split in whatever way, is a repeat and changes nothing; from another query it is an error,
because taking it for a repeat would lose what it holds. `at-least-once` appends as rows come.

Spark makes a new writer for each step of a stream, so nothing is kept on it: what the commit needs
travels in messages.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_topics import rows
from pyspark_topics.errors import BadOption, Refused, TopicsSparkError, WrongProducer
from pyspark_topics.http import Server, topic_path
from pyspark_topics.options import AT_LEAST_ONCE, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# What the server takes in one request, and what a task holds for many topics before it sends.
REQUEST_RECORDS_MAX = 5_000
HELD_BYTES_MAX = 16 << 20

# A task that failed has none.
Messages = list[WriterCommitMessage | None]

_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass(frozen=True)
class Batch:
    """Whose batch it is, which one, and the query it is from."""

    producer: str
    number: int
    query: str


@dataclass
class Written(WriterCommitMessage):
    """What a task has staged, in order; nothing when it had no rows."""

    batch: Batch
    stages: list[str]


def check_writable(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Raises BadOption for an overwrite, BadRow for columns that are no record's."""
    if overwrite:
        raise BadOption("mode", "overwrite is refused: a log is appended to, nothing is replaced")
    rows.check_columns(schema, options.topic)


class BatchWriter(DataSourceArrowWriter):
    """One batch write. It is made once and copied to tasks and commit, so all have its id."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        query = f"write-{uuid.uuid4()}"
        # Under a name of the user's, batches go up with time: each write is one of its own.
        number = time.time_ns() // 1_000_000 if options.producer else 0
        self._batch = Batch(options.producer or query, number, query)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(iterator, self._options, self._batch)

    def commit(self, messages: Messages) -> None:
        _commit(messages, self._options)

    def abort(self, messages: Messages) -> None:
        _drop(self._batch, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """One step of a streaming write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.getLocalProperty(_BATCH_ID) if context is not None else None
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if self._options.delivery == AT_LEAST_ONCE:
            return _write(iterator, self._options, Batch("", 0, ""))
        if number is None or query is None:
            raise TopicsSparkError(
                "this Spark does not say which batch of which query a task is of; without that "
                "only delivery=at-least-once can write"
            )
        batch = Batch(self._options.producer or query, int(number), query)
        return _write(iterator, self._options, batch)

    def commit(self, messages: Messages, batchId: int) -> None:
        for message in messages:
            if isinstance(message, Written) and message.stages:
                assert message.batch.number == batchId
        _commit(messages, self._options)

    def abort(self, messages: Messages, batchId: int) -> None:
        for message in messages:
            if isinstance(message, Written):
                _drop(message.batch, self._options)
                return


def _write(iterator: Iterator[pa.RecordBatch], options: SinkOptions, batch: Batch) -> Written:
    """What one task does: every row to the server, in order for each topic."""
    from pyspark import TaskContext

    context = TaskContext.get()
    part, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    stages: list[str] = []
    with Server(options.access) as server:

        def stage(topic: str, body: bytes) -> None:
            said = {
                "producer": batch.producer, "batch": batch.number, "part": part,
                "attempt": attempt, "topic": topic,
            }  # fmt: skip
            stages.append(server.post("/v0/stages", _with_records(said, body))["stage"])

        def append(topic: str, body: bytes) -> None:
            # A key of its own, so that a request that is tried again is not taken twice.
            said = {"idempotency_key": uuid.uuid4().hex}
            server.post(topic_path(topic), _with_records(said, body))

        send = append if options.delivery == AT_LEAST_ONCE else stage
        _send_all(iterator, options, send)
    return Written(batch, stages)


def _with_records(said: Mapping[str, object], records: bytes) -> bytes:
    return json.dumps(said)[:-1].encode() + b', "records": [' + records + b"]}"


def _send_all(
    iterator: Iterator[pa.RecordBatch], options: SinkOptions, send: Callable[[str, bytes], None]
) -> None:
    held: dict[str, list[bytes]] = {}
    sizes: dict[str, int] = {}

    def flush(topic: str) -> None:
        send(topic, b",".join(held.pop(topic)))
        sizes.pop(topic)

    for batch in iterator:
        for topic, record in rows.records(batch, options.topic):
            held.setdefault(topic, []).append(record)
            sizes[topic] = sizes.get(topic, 0) + len(record)
            if sizes[topic] >= options.batch_bytes or len(held[topic]) >= REQUEST_RECORDS_MAX:
                flush(topic)
        while sum(sizes.values()) > HELD_BYTES_MAX:
            flush(max(sizes, key=lambda topic: sizes[topic]))
    for topic in list(held):
        flush(topic)


def _commit(messages: Messages, options: SinkOptions) -> None:
    """Publishes what the tasks have staged. Raises WrongProducer, Refused."""
    written = [message for message in messages if isinstance(message, Written)]
    stages = [stage for message in written for stage in message.stages]
    if not stages:
        # Without rows there is nothing to see, and without tasks not even a query to name.
        return
    batch = written[0].batch
    with Server(options.access) as server:
        try:
            answer = server.post(
                "/v0/stages/commit",
                {
                    "producer": batch.producer, "batch": batch.number, "query": batch.query,
                    "stages": stages,
                },
            )  # fmt: skip
        except Refused as error:
            if error.reason != "conflict":
                raise
            raise WrongProducer(
                f"batch {batch.number} of producer {batch.producer!r} is known from another query, "
                "or a later one is: a new checkpoint under an old producerId begins again with "
                "batches that it has seen. Give this query a producerId of its own. The server "
                f"says: {error}"
            ) from None
    if answer["repeated"]:
        _drop(batch, options)


def _drop(batch: Batch, options: SinkOptions) -> None:
    """Gives back what nobody will commit; what is left goes by itself when its time is over."""
    if options.delivery == AT_LEAST_ONCE:
        return
    query = urlencode({"producer": batch.producer, "batch": batch.number})
    try:
        with Server(options.access) as server:
            server.call("DELETE", f"/v0/stages?{query}")
    except TopicsSparkError:
        pass
