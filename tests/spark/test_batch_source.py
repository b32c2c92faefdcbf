"""Batch reads of `format("topics")`: what is read, from where to where, and how it is split."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as f

from tests.spark.support import Log, told

SCHEMA = (
    "struct<topic:string,epoch:string,seq:bigint,ts:timestamp,node:string,tag:string,"
    "meta:map<string,string>,data:string,_kind:string,_gap_to:bigint,_gap_reason:string>"
)


def test_rows_have_the_columns_of_the_lake(log: Log) -> None:
    """Found without registration; data is JSON text as it was written, ts the server's time."""
    topic = log.topic()
    log.write_records(
        topic,
        {"data": {"b": 1.0, "a": [None, "é"]}, "node": "n", "tag": "t", "meta": {"k": "v"}},
        {"data": "text"},
    )
    frame = log.read(topic)
    assert frame.schema.simpleString() == SCHEMA
    first, second = frame.orderBy("seq").collect()
    (written, _) = log.records(topic)
    assert json.loads(first["data"]) == written["data"]
    assert first.asDict() == {
        "topic": topic, "epoch": log.state(topic)["epoch"], "seq": 1, "ts": first["ts"],
        "node": "n", "tag": "t", "meta": {"k": "v"}, "data": first["data"],
        "_kind": "record", "_gap_to": None, "_gap_reason": None,
    }  # fmt: skip
    ms = frame.select(f.unix_millis("ts").alias("ms")).first()
    assert ms is not None
    assert ms["ms"] == written["$ts"]
    assert (second["data"], second["tag"], second["node"], second["meta"]) == (
        '"text"', None, None, None,
    )  # fmt: skip


def test_columns_that_nobody_wants_are_null(log: Log) -> None:
    topic = log.topic()
    log.write_records(topic, {"data": 1, "tag": "t", "meta": {"k": "v"}})
    (row,) = log.rows(topic, includeMeta="false", includeTags="false")
    assert (row["meta"], row["tag"], row["data"]) == (None, None, "1")


def test_seqs_name_the_first_read_and_the_first_not_read(log: Log) -> None:
    topic = log.topic(*range(10))
    spans = {"startingOffsets": json.dumps({topic: 4}), "endingOffsets": json.dumps({topic: 7})}
    assert told(log.rows(topic, **spans)) == [4, 5, 6]
    assert told(log.rows(topic, startingOffsets="earliest")) == list(range(1, 11))
    assert log.rows(topic, startingOffsets=json.dumps({topic: 11})) == []
    with pytest.raises(Exception, match="TOPIC_DATA_LOSS"):
        log.rows(topic, startingOffsets=json.dumps({topic: 12}))


def test_times_win_over_seqs(log: Log) -> None:
    topic = log.topic()
    for n in range(3):
        log.write(topic, n)
        time.sleep(0.005)
    times = [record["$ts"] for record in log.records(topic)]
    late = json.dumps({topic: 3})
    assert told(log.rows(topic, startingTimestamp=times[1], startingOffsets=late)) == [2, 3]
    assert told(log.rows(topic, endingTimestamp=times[2])) == [1, 2]
    assert log.rows(topic, startingTimestamp=times[2] + 60_000) == []


def test_many_topics_and_patterns_of_whole_names(log: Log) -> None:
    one = log.topic(1, 2)
    two = log.topic(3)
    rows = log.rows("", subscribe=f"{one}, {two}")
    assert sorted((row["topic"], row["seq"]) for row in rows) == [(one, 1), (one, 2), (two, 1)]
    found = log.rows("", subscribePattern=f"{one}|{two}")
    assert {row["topic"] for row in found} == {one, two}
    assert log.rows("", subscribePattern=one[:-2]) == []


def test_what_was_lost_before_is_a_row(log: Log) -> None:
    """With `earliest` the first seq read is 1, so it never fails; a named place below does."""
    topic = log.topic(*range(20))
    log.evict(topic, keep=5)
    for options in ({}, {"minPartitions": 4}, {"maxRecordsPerPartition": 1}):
        assert told(log.rows(topic, **options)) == [(1, 15, "cap"), 16, 17, 18, 19, 20]
    # It may have been of the time of the first one that is left.
    since = {"startingTimestamp": log.records(topic)[0]["$ts"]}
    assert told(log.rows(topic, **since)) == [(1, 15, "cap"), 16, 17, 18, 19, 20]
    (gap,) = [row for row in log.rows(topic) if row["_kind"] == "gap"]
    assert (gap["epoch"], gap["ts"], gap["node"], gap["tag"], gap["data"]) == (
        log.state(topic)["epoch"], None, None, None, None,
    )  # fmt: skip
    named = {"startingOffsets": json.dumps({topic: 3})}
    with pytest.raises(Exception, match="TOPIC_DATA_LOSS"):
        log.rows(topic, **named)
    lenient = {**named, "failOnDataLoss": "false"}
    assert told(log.rows(topic, **lenient)) == [(3, 15, "cap"), 16, 17, 18, 19, 20]
    assert told(log.rows(topic, **lenient, gapMode="drop")) == [16, 17, 18, 19, 20]


def test_what_was_deleted_is_silence(log: Log) -> None:
    topic = log.topic(*range(10))
    assert log.client.post(f"/v0/topics/{topic}/delete", {"before_seq": 4}).status == 200
    assert told(log.rows(topic, minPartitions=3)) == list(range(4, 11))


def test_one_topic_is_read_in_parallel(log: Log) -> None:
    topic = log.topic(*range(20))
    split = log.read(topic, minPartitions=4).withColumn("part", f.spark_partition_id())
    rows = split.collect()
    assert len({row["part"] for row in rows}) >= 4
    assert told(rows) == list(range(1, 21))
    small = log.read(topic, maxRecordsPerPartition=3).withColumn("part", f.spark_partition_id())
    assert max(row["count"] for row in small.groupBy("part").count().collect()) <= 3


@pytest.mark.parametrize("push", ["false", "true"])
def test_filters_give_the_same_rows_pushed_or_not(log: Log, push: str) -> None:
    topic = log.topic()
    log.write_records(topic, *({"data": n, "tag": f"t{n % 3}"} for n in range(1, 31)))
    log.evict(topic, keep=20)
    middle = datetime.fromtimestamp(log.records(topic)[0]["$ts"] / 1000, UTC)
    log.spark.conf.set("spark.sql.python.filterPushdown.enabled", push)
    try:
        frame = log.read(topic, pushdown=push)
        assert told(frame.where("seq > 25").collect()) == [26, 27, 28, 29, 30]
        assert told(frame.where("seq <= 5").collect()) == [(1, 10, "cap")]
        assert told(frame.where("seq between 5 and 12").collect()) == [11, 12]
        assert told(frame.where("tag = 't0'").collect()) == list(range(12, 31, 3))
        assert told(frame.where("tag like 't%' and seq = 11").collect()) == [11]
        assert told(frame.where(f.col("ts") >= f.lit(middle)).collect()) == list(range(11, 31))
        assert frame.where("seq > 1000").collect() == []
    finally:
        log.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_filters_need_sparks_consent(log: Log) -> None:
    """Spark refuses a reader that could take filters while its conf forbids them."""
    topic = log.topic(1)
    with pytest.raises(Exception, match="filterPushdown"):
        log.rows(topic, pushdown="true")
    assert told(log.read(topic).where("seq = 1").collect()) == [1]


def test_the_token_is_in_no_plan_and_in_no_error(
    log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "s3cret-of-mine"
    frame = log.read(log.topic(1), token=secret)
    frame.explain(True)
    refused = log.read(log.name(), token=secret)
    with pytest.raises(Exception, match="TOPIC_NOT_FOUND") as failed:
        refused.collect()
    assert secret not in str(failed.value)
    said = capfd.readouterr()
    assert "topics" in said.out
    assert secret not in said.out + said.err
