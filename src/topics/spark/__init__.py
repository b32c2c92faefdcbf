"""Spark beside the log: what a session needs that is not the data source itself.

- `session`: a session as this project needs it.
- `jars`: the jars of Delta, fetched once and kept.
"""
