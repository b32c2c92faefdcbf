"""A Spark session as this project needs it: its workers, its jars, its measure for one machine.

Starts need no network: the jars of Delta are files of our cache. Whatever a cluster sets by itself
(`spark-submit`, a running session) stays as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from topics.spark import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def settings(master: str, *, with_delta: bool) -> dict[str, str]:
    """What a session is started with, before what the caller adds."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        cores = str(os.cpu_count() or 1)
        # With 200 partitions a small query is mostly the starting of tasks.
        found |= {
            "spark.sql.shuffle.partitions": cores,
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    if with_delta:
        found |= _DELTA | {"spark.jars": ",".join(map(str, jars.local()))}
    return found


def session(
    master: str = LOCAL, *, with_delta: bool = False, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A session, new or the one that runs. Raises jars.JarMissing."""
    from pyspark.sql import SparkSession

    # Another interpreter may lack pyarrow, and then Spark only says that a worker "failed to
    # connect back".
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("topics")
    for name, value in (settings(master, with_delta=with_delta) | dict(more or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
