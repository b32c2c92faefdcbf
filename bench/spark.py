"""Spark reads topics: `local[2]`, the server on the same machine, everything to `noop`, warm.

The same rows are read from Parquet for comparison. A Python source that makes its rows in memory
reaches 0.63 of Parquet: the JVM turns Arrow into rows one way or the other. A sync of the lake
writes them to a Delta table, commit included.
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import timed
from bench.report import Report
from bench.sse import served
from topics.client.client import Client
from topics.lake.layout import Lake
from topics.lake.sync import TopicSync
from topics.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS, WRITE_RECORDS, DATA_BYTES = 2_000_000, 5_000, 256
ROUNDS = 3
CORES = 2
BATCHES = 10
MIB = 1 << 20


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (port, _):
        _fill(port)
        spark = session(f"local[{CORES}]", with_delta=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            _batches(report, spark, port, Path(name) / "rows")
            _micro_batches(report, spark, port, Path(name) / "check")
            _lake(report, spark, port, Lake(str(Path(name) / "lake")))
        finally:
            spark.stop()


def _fill(port: int) -> None:
    data = json.dumps("x" * (DATA_BYTES - 2))
    record = f'{{"data":{data}}}'
    body = f'{{"records":[{",".join([record] * WRITE_RECORDS)}]}}'
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(RECORDS // WRITE_RECORDS):
        _post(connection, "/v0/topics/big?return_seqs=false", body)
    connection.close()


def _post(connection: http.client.HTTPConnection, path: str, body: str) -> None:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    if answer.status >= 400:
        raise RuntimeError(f"a write was answered {answer.status}")


def _source(spark: SparkSession, port: int) -> DataFrame:
    reader = spark.read.format("topics").option("url", f"http://127.0.0.1:{port}")
    return reader.option("subscribe", "big").option("minPartitions", 2 * CORES).load()


def _to_noop(frame: DataFrame) -> float:
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def _batches(report: Report, spark: SparkSession, port: int, folder: Path) -> None:
    topics = _source(spark, port)
    topics.write.parquet(str(folder))
    parquet = spark.read.parquet(str(folder))
    mine, theirs = [], []
    for _ in range(ROUNDS):
        mine.append(_to_noop(topics))
        theirs.append(_to_noop(parquet))
    rate = RECORDS / min(mine)
    report.add("batch read, records of 256 bytes", rate, "records/s", "≥ 300,000")
    report.add("the same rows from Parquet", RECORDS / min(theirs), "records/s")
    report.add("batch read beside Parquet", min(theirs) / min(mine), "×", "≥ 0.4")
    report.add("batch read", rate * DATA_BYTES / MIB / CORES, "MiB/s/core", "≥ 5")


def _micro_batches(report: Report, spark: SparkSession, port: int, folder: Path) -> None:
    reader = spark.readStream.format("topics").option("url", f"http://127.0.0.1:{port}")
    reader = reader.option("subscribe", "small").option("failOnDataLoss", "false")
    query = (
        reader.load().writeStream.format("noop").option("checkpointLocation", str(folder)).start()
    )
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(BATCHES):
        _post(connection, "/v0/topics/small", '{"records":[' + ",".join(['{"data":1}'] * 50) + "]}")
        time.sleep(1.5)
    query.stop()
    connection.close()
    spent = [
        progress["batchDuration"] for progress in query.recentProgress if progress["numInputRows"]
    ]
    # The first ones warm the JVM.
    median_ms = statistics.median(spent[len(spent) // 2 :])
    report.add("micro-batch of 50 rows, median", median_ms, "ms", "≤ 1,000")


def _lake(report: Report, spark: SparkSession, port: int, lake: Lake) -> None:
    with Client(f"http://127.0.0.1:{port}") as client:
        small = TopicSync(lake, "small", client, lambda: spark)
        small.step()
        big = TopicSync(lake, "big", client, lambda: spark)
        seconds = timed(lambda: _drain(big))
        rate = RECORDS / seconds
        report.add("lake sync, records of 256 bytes", rate, "records/s", "≥ 100,000")
        report.add("lake sync", rate * DATA_BYTES / MIB / CORES, "MiB/s/core", "≥ 5")
        spent = []
        for n in range(BATCHES):
            client.append("small", [{"data": n}] * 50)
            spent.append(timed(lambda: _drain(small)))
        median_ms = statistics.median(spent[BATCHES // 2 :]) * 1000
        report.add("lake sync of 50 rows, median; each further active topic", median_ms, "ms")


def _drain(sync: TopicSync) -> None:
    while True:
        moved = sync.step()
        if moved.seq >= moved.head:
            return
