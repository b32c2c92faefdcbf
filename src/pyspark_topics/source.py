"""The data source as Spark finds it: `format("topics")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from pyspark_topics.options import sink_options, source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = (
    "topic string, epoch string, seq long, ts timestamp, node string, tag string, "
    "meta map<string,string>, data string, _kind string, _gap_to long, _gap_reason string"
)


class DefaultSource(DataSource):
    """Topics of a server, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_topics.batch import BatchReader, PushingReader

        options = source_options(self.options, is_stream=False)
        # Spark refuses a reader that could take filters while its conf forbids them.
        return (PushingReader if options.pushdown else BatchReader)(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_topics.stream import StreamReader

        return StreamReader(source_options(self.options, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_topics.sink import BatchWriter, check_writable

        options = sink_options(self.options)
        check_writable(schema, options, overwrite=overwrite)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_topics.sink import StreamWriter, check_writable

        options = sink_options(self.options)
        check_writable(schema, options, overwrite=overwrite)
        return StreamWriter(options)
