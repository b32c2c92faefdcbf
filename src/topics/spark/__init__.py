"""Spark beside the log: what a session needs that is not the data source itself.

- `jars`: the jars of Delta, fetched once and kept.
"""
