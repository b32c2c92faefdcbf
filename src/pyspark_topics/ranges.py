"""Ranges of topics as a DataFrame, for jobs that plan their reads themselves.

A job of its own names the epoch that it reads, and where a range is cut into parts: a topic that
was created anew in the meantime, or a loss that has grown over a cut since, fails the read instead
of joining it, and the job plans it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark_topics import tasks
from pyspark_topics.errors import DataLoss
from pyspark_topics.options import SourceOptions
from pyspark_topics.shapes import Shape
from pyspark_topics.source import SCHEMA
from pyspark_topics.splits import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def frame(
    spark: SparkSession, parts: list[Part], options: SourceOptions, shape: Shape | None = None
) -> DataFrame:
    """The rows of these parts of one range, a task for each. Raises DataLoss in a task.

    With a shape its columns stand behind the others.
    """
    numbers = spark.range(0, len(parts), 1, len(parts))
    columns = SCHEMA if shape is None else f"{SCHEMA}, {shape.ddl}"
    return numbers.mapInArrow(reading(parts, options, shape), columns)


def reading(
    parts: list[Part], options: SourceOptions, shape: Shape | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judge = None if shape is None else shape.judge()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                rows = _read(parts[number], options, is_first=number == 0)
                yield from rows if judge is None else map(judge.shaped, rows)

    return read


def _read(part: Part, options: SourceOptions, *, is_first: bool) -> Iterator[pa.RecordBatch]:
    for batch in tasks.read(part, options):
        if batch.column("_gap_reason")[-1].as_py() == tasks.RECREATED:
            raise DataLoss(f"topic {part.topic!r} is no longer the one of epoch {part.epoch}")
        first = batch.slice(0, 1)
        starts_lost = first.column("_kind")[0].as_py() == "gap"
        if not is_first and starts_lost and first.column("seq")[0].as_py() == part.from_seq + 1:
            # One loss is one row, however the range was cut.
            raise DataLoss(f"a loss of topic {part.topic!r} has grown over seq {part.from_seq}")
        # The server's schema carries metadata of its own, which is not the frame's.
        yield batch.replace_schema_metadata(None)
