"""`format("topics")` for Spark: topics as a source and a sink. Spark finds it by its name.

Whatever runs on an executor imports the standard library, pyspark and pyarrow, nothing else of
ours: a cluster gets this package alone.

- `source`: the data source that Spark finds; `batch` and `stream` read, `sink` writes.
- `options`: every option with its default, read before anything else is done.
- `places`: where a read begins and ends. `accounts`: what the server says became of every seq.
- `admission`: how much a batch takes. `splits`: where a range is cut. `offsets`: a stream's place.
- `cursors`: a stream's name on the server. `tasks`: what runs on executors. `push`: filters.
- `ranges`: ranges as frames for jobs. `shapes`: a user's schema at work; `columns`: what it makes.
- `json_schema`, `json_rules`, `json_values`: JSON Schema as functions.
- `rows`: rows to records. `http`: calls, retries. `errors`: what can go wrong, by its code.
"""

from __future__ import annotations

from pyspark_topics.source import DefaultSource

__all__ = ["DefaultSource"]
