"""The session that a sync commits with: beside the one it was given, and set as that one is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK = threading.Lock()
_BESIDE: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()


def for_commits(spark: SparkSession) -> SparkSession:
    """A session beside this one for many small commits to Delta; the same one each time.

    Each of them has Delta look at its log by a query of a few rows, and of an adaptive query every
    stage is a job with a plan of its own. On a cluster it is the session itself, as it was set up.
    """
    if not str(spark.sparkContext.master).startswith("local"):
        return spark
    with _LOCK:
        found = _BESIDE.get(spark)
        if found is None:
            found = _BESIDE[spark] = spark.newSession()
            # A new session has what Spark was started with, not what was set since.
            for name, value in spark.conf.getAll.items():
                if spark.conf.isModifiable(name):
                    found.conf.set(name, value)
            found.conf.set("spark.sql.adaptive.enabled", "false")
        return found
