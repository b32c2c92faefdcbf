"""Spark and the lake beside a real S3 endpoint: all that needs no jar of Hadoop's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.spark.lakes import LakeBeside, run
from tests.spark.support import WAIT_S, Log, told
from tests.support.s3 import S3Server
from tests.support.servers import Served
from tests.support.store_proxy import corrected

RECORDS = 2000


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def cold(
    s3: S3Server, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Log]:
    """A log whose segments move to a bucket at once, and are kept nowhere else."""
    small = {
        "TOPICS_HOT_BYTES": "0", "TOPICS_SEAL_RECORDS": "500", "TOPICS_BLOCK_CACHE_BYTES": "0",
        "TOPICS_RESIDENT_BYTES": "0", "TOPICS_COLD_DIR": s3.url("cold"),
    }  # fmt: skip
    with Served(tmp_path, **small, **s3.env) as served, served.wait_ready().client() as client:
        yield Log(served, client, spark, request.node.name)


def wait_for_objects(s3: S3Server) -> None:
    until_s = time.monotonic() + WAIT_S
    while not list(s3.root.glob("cold/**/*.seg")):
        assert time.monotonic() < until_s, "nothing was moved to the bucket"
        time.sleep(0.05)


def test_records_in_a_bucket_are_read_like_others(cold: Log, s3: S3Server, tmp_path: Path) -> None:
    """By a batch in several partitions, and by a stream from the beginning, gaps in their place."""
    topic = cold.topic(cap_records=RECORDS - 100)
    for start in range(0, RECORDS, 500):
        cold.write(topic, *range(start, start + 500))
    wait_for_objects(s3)
    expected = [(1, 100, "cap"), *range(101, RECORDS + 1)]
    assert told(cold.rows(topic, minPartitions=4)) == expected
    frame = cold.stream(topic, startingOffsets="earliest")
    assert told(cold.drain(frame, tmp_path / "stream")) == expected


def upload(s3: S3Server, folder: Path, bucket: str) -> str:
    url, store = s3.url(bucket), s3.store(bucket)
    for file in folder.rglob("*"):
        if file.is_file():
            obstore.put(store, str(file.relative_to(folder)), file.read_bytes())
    return url


def test_a_lake_in_a_bucket_is_looked_at_and_tended_without_spark(
    log: Log, s3: S3Server, tmp_path: Path
) -> None:
    """Everything but `sync`: what is said of a copy in a bucket is what is said of the lake."""
    lake = LakeBeside(log, tmp_path / "lake")
    topic = log.topic()
    for _ in range(2):
        log.write(topic, 1, 2, 3, 4)
        lake.sync(topic)
    log.write(topic, 5, 6, 7)
    log.evict(topic, 1)
    lake.sync(topic)
    url = upload(s3, lake.root, "lake")
    with corrected(s3) as variables:

        def ask(*arguments: str, code: int = 0) -> Any:
            told = run(
                "lake", *arguments, "--json",
                code=code, TOPICS_LAKE=url, TOPICS_URL=log.url, **variables,
            )  # fmt: skip
            return told.json

        assert ask("gaps") == lake.gaps() != []
        for command in ("audit", "optimize", "vacuum", "audit"):
            ask(command)
        assert ask("gaps") == lake.gaps()
        # A row that leaves it behind its back is missed, there as here.
        there = next(path.name for path in (s3.root / "lake" / "topics").iterdir())
        DeltaTable(f"{url}/topics/{there}", storage_options=variables).delete("seq = 2")
        found = ask("audit", code=1)["problems"]
        assert [(problem["first"], problem["last"]) for problem in found] == [(2, 2)]
