"""What the tests of Spark say again and again: a topic, a read, a stream that runs to its end."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.servers import Client, Served
from topics.spark.session import session as spark_session

_numbers = itertools.count(1)
WAIT_S = 120


def session(folder: Path, master: str = "local[2]") -> SparkSession:
    """A session of our own, small and quick to start."""
    more = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    found = spark_session(master, with_delta=True, more=more)
    found.sparkContext.setLogLevel("ERROR")
    return found


@dataclass
class Log:
    """A server, and Spark beside it."""

    served: Served
    client: Client
    spark: SparkSession
    test: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.port}"

    def name(self) -> str:
        """A name that no topic has yet."""
        return re.sub(r"[^A-Za-z0-9]", "-", self.test)[:60] + f"-{next(_numbers)}"

    def topic(self, *data: Any, **config: Any) -> str:
        """A new topic with these records, one write."""
        name = self.name()
        assert self.client.put(f"/v0/topics/{name}", config).status == 201
        if data:
            self.write(name, *data)
        return name

    def write(self, topic: str, *data: Any) -> None:
        reply = self.client.write(topic, *data)
        assert reply.status == 200, reply.raw

    def write_records(self, topic: str, *records: dict[str, Any]) -> None:
        reply = self.client.post(f"/v0/topics/{topic}", {"records": list(records)})
        assert reply.status == 200, reply.raw

    def evict(self, topic: str, keep: int) -> None:
        """Lets the cap take all but the newest."""
        assert self.client.put(f"/v0/topics/{topic}", {"cap_records": keep}).status == 200

    def recreate(self, topic: str, *data: Any) -> None:
        assert self.client.delete(f"/v0/topics/{topic}").status == 200
        assert self.client.put(f"/v0/topics/{topic}", {}).status == 201
        if data:
            self.write(topic, *data)

    def state(self, topic: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v0/topics/{topic}?touch=false").json
        return found

    def records(self, topic: str) -> list[dict[str, Any]]:
        answer = self.client.post(f"/v0/topics/{topic}/range", {})
        found: list[dict[str, Any]] = answer.json["records"]
        return found

    def cursor(self, topic: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v0/topics/{topic}/cursors/{name}").json
        return found

    def read(self, topic: str, **options: Any) -> DataFrame:
        return self._given(self.spark.read.format("topics"), topic, options).load()

    def rows(self, topic: str, **options: Any) -> list[Row]:
        return self.read(topic, **options).collect()

    def stream(self, topic: str, **options: Any) -> DataFrame:
        return self._given(self.spark.readStream.format("topics"), topic, options).load()

    def _given(self, reader: Any, topic: str, options: dict[str, Any]) -> Any:
        given = {"url": self.url, **options}
        if "subscribePattern" not in given:
            given.setdefault("subscribe", topic)
        return reader.options(**given)

    def drain(self, frame: DataFrame, at: Path) -> list[Row]:
        """Runs a stream from its checkpoint to the end of what is there; all rows so far."""
        assert self.start(frame, at, availableNow=True).awaitTermination(WAIT_S)
        return self.landed(at)

    def start(self, frame: DataFrame, at: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(at / "check"))
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start(str(at / "rows"))

    def landed(self, at: Path) -> list[Row]:
        return self.spark.read.parquet(str(at / "rows")).collect()


def told(rows: list[Row]) -> list[Any]:
    """Seqs of records, and (first, last, reason) of gaps, in order of seq."""
    ordered = sorted(rows, key=lambda row: (row["topic"], int(row["epoch"]), row["seq"]))
    return [
        row["seq"] if row["_kind"] == "record" else (row["seq"], row["_gap_to"], row["_gap_reason"])
        for row in ordered
    ]
