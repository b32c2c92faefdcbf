"""Batch reads: from a start to an end that are fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_topics import places, push, tasks
from pyspark_topics.accounts import account, existing
from pyspark_topics.http import Server
from pyspark_topics.options import SourceOptions
from pyspark_topics.splits import Part, Planned, split

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """One batch read. It holds nothing but options, so that it can be pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = push.Wanted()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        planned = []
        with Server(options.access) as server:
            for topic, state in existing(server, options).items():
                place = places.start_of(server, options, topic, state)
                end = places.end_of(server, options, topic, state)
                end = places.check_order(options, topic, place.seq, end)
                found = account(server, topic, state, place.seq, end)
                found = push.narrowed(server, topic, found, self._wanted)
                planned.append(Planned(topic, found, place.known, place.growing))
        parts = split(
            planned, partitions_min=options.partitions_min, rows_max=options.partition_records_max
        )
        return [replace(part, match=self._wanted.match) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions Spark asks once all the same, for a bare one.
        if not isinstance(partition, Part):
            return iter(())
        return tasks.read(partition, self._options)


class PushingReader(BatchReader):
    """A reader that takes filters. Spark refuses it unless its conf allows them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = push.wanted(filters)
        # All of them are applied again: a gap's row is judged by its own columns.
        return filters
