"""Spark reads topics: `local[2]`, the server on the same machine, everything to `noop`, warm.

The same rows are read from Parquet for comparison. A Python source that makes its rows in memory
reaches 0.63 of Parquet: the JVM turns Arrow into rows one way or the other. A sync of the lake
writes them to a Delta table, commit included; and again with a schema that gives it columns.
Freshness is the time from a write to the commit that has it, with as many topics written at once.

`BENCH_RECORDS` makes it smaller, to see that it runs; its figures then mean nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import timed
from bench.report import Report, percentile
from bench.sse import served
from pyspark_topics.shapes import Shape
from topics.client.client import Client
from topics.lake.layout import Lake
from topics.lake.loop import SyncLoop, Wishes
from topics.lake.schemas import Extras
from topics.lake.sync import NO_EXTRAS, Moved, TopicSync
from topics.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = int(os.environ.get("BENCH_RECORDS", 2_000_000))
WRITE_RECORDS, DATA_BYTES = 5_000, 256
ROUNDS = 3
CORES = 2
BATCHES = 10
# Topics that are written at once, five times a second, and for how long.
ACTIVE, ACTIVE_S, WARM_S = (1, 5, 10), 30.0, 8.0
SCHEMA = {
    "type": "object", "required": ["id"],
    "properties": {"id": {"type": "integer"}, "text": {"type": "string"}},
}  # fmt: skip
MIB = 1 << 20


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as (port, _):
        _fill(port)
        spark = session(f"local[{CORES}]", with_delta=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            _batches(report, spark, port, Path(name) / "rows")
            _micro_batches(report, spark, port, Path(name) / "check")
            lake = Lake(str(Path(name) / "lake"))
            _lake(report, spark, port, lake)
            _freshness(report, spark, port, lake)
        finally:
            spark.stop()


def _fill(port: int) -> None:
    """Records that differ: of equal ones Parquet keeps a single value."""
    if RECORDS % WRITE_RECORDS:
        raise ValueError(f"BENCH_RECORDS must be a multiple of {WRITE_RECORDS}")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for first in range(0, RECORDS, WRITE_RECORDS):
        chance = os.urandom(WRITE_RECORDS * DATA_BYTES // 2).hex()
        records = []
        for n in range(WRITE_RECORDS):
            head = f'{{"id":{first + n},"text":"'
            text = chance[n * DATA_BYTES : (n + 1) * DATA_BYTES - len(head) - 2]
            records.append(f'{{"data":{head}{text}"}}}}')
        body = f'{{"records":[{",".join(records)}]}}'
        _post(connection, "/v0/topics/big?return_seqs=false", body)
    # The stream reads it from its start.
    _post(connection, "/v0/topics/small", '{"records":[{"data":0}]}')
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
    if parquet.count() != RECORDS:
        raise RuntimeError("not every record was read")
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
        query.processAllAvailable()
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
        _drain(small)

        def rate(place: Lake, extras: Extras) -> float:
            big = TopicSync(place, "big", client, lambda: spark, extras=extras)
            return RECORDS / timed(lambda: _drain(big))

        found = rate(lake, NO_EXTRAS)
        report.add("lake sync, records of 256 bytes", found, "records/s", "≥ 100,000")
        report.add("lake sync", found * DATA_BYTES / MIB / CORES, "MiB/s/core", "≥ 5")
        found = rate(Lake(f"{lake.root}-judged"), Extras(Shape(json.dumps(SCHEMA))))
        report.add("lake sync with a schema of two columns", found, "records/s")
        spent = []
        for n in range(BATCHES):
            client.append("small", [{"data": n}] * 50)
            spent.append(timed(lambda: _drain(small)))
        median_ms = statistics.median(spent[BATCHES // 2 :]) * 1000
        report.add("lake sync of 50 rows, median", median_ms, "ms", "≤ 1,000")


def _freshness(report: Report, spark: SparkSession, port: int, lake: Lake) -> None:
    medians = {}
    for active in ACTIVE:
        ages_s = _ages_s(spark, port, lake, [f"fresh-{active}-{n}" for n in range(active)])
        medians[active] = statistics.median(ages_s)
        report.add(f"lake freshness, {active} active, median", medians[active], "s")
        bar = "≤ 5" if active <= 5 else ""
        report.add(f"lake freshness, {active} active, p99", percentile(ages_s, 0.99), "s", bar)
    few, many = ACTIVE[-2:]
    each_s = (medians[many] - medians[few]) / (many - few)
    report.add("lake freshness, each further active topic", each_s, "s")


def _ages_s(spark: SparkSession, port: int, lake: Lake, topics: list[str]) -> list[float]:
    """How old each record was when it was committed, while all of these are written."""
    waiting: dict[str, dict[int, float]] = {topic: {} for topic in topics}
    ages_s: list[float] = []
    begun_s = time.perf_counter()

    def told(topic: str, moved: Moved) -> None:
        now_s = time.perf_counter()
        for seq in [seq for seq in list(waiting[topic]) if seq <= moved.seq]:
            written_s = waiting[topic].pop(seq)
            if written_s - begun_s >= WARM_S:
                ages_s.append(now_s - written_s)

    with Client(f"http://127.0.0.1:{port}") as client, Client(client.options.url) as writer:
        for topic in topics:
            writer.append(topic, [{"data": 0}])
        loop = SyncLoop(
            lake, client, topics, lambda: spark, give_up_after_s=60.0, wishes=Wishes(),
            told=told, says=lambda _: None,
        )  # fmt: skip
        syncing = threading.Thread(target=loop.forever)
        syncing.start()
        seq = 1
        while time.perf_counter() - begun_s < ACTIVE_S:
            seq += 1
            for topic in topics:
                waiting[topic][seq] = time.perf_counter()
                writer.append(topic, [{"data": 1}])
            time.sleep(0.2)
        deadline_s = time.perf_counter() + 60
        while any(waiting.values()) and time.perf_counter() < deadline_s:
            time.sleep(0.1)
        loop.stopping.set()
        syncing.join()
    if any(waiting.values()) or not ages_s:
        raise RuntimeError("the sync did not come to the end")
    return ages_s


def _drain(sync: TopicSync) -> None:
    while True:
        moved = sync.step()
        if moved.seq >= moved.head:
            return
