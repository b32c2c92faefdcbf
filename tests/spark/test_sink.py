"""Writes of `format("topics")`: which rows are records, and that a batch is there exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from tests.spark.support import WAIT_S, Log
from tests.spark.test_stream_source import failure

ROW = "topic string, data string, tag string, node string, meta map<string,string>"


def frame(log: Log, *rows: dict[str, Any], schema: str = ROW) -> DataFrame:
    return log.spark.createDataFrame(list(rows), schema).coalesce(1)  # type: ignore[type-var]


def save(log: Log, rows: DataFrame, **options: Any) -> None:
    rows.write.format("topics").mode("append").options(url=log.url, **options).save()


def data(log: Log, topic: str) -> list[Any]:
    return [record["data"] for record in log.records(topic)]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_become_records_in_their_order(log: Log, delivery: str) -> None:
    topic, other = log.name(), log.name()
    rows = [
        {"topic": topic, "data": '{"b": 1.0, "a": []}', "tag": "t", "node": "n",
         "meta": {"k": "v"}},
        {"topic": other, "data": '"elsewhere"'},
        *({"topic": topic, "data": str(n)} for n in range(100)),
    ]  # fmt: skip
    save(log, frame(log, *rows), delivery=delivery, batchBytes=200)
    first, *rest = log.records(topic)
    assert first["data"] == {"b": 1.0, "a": []}
    assert (first["$tag"], first["$node"], first["meta"]) == ("t", "n", {"k": "v"})
    assert [record["data"] for record in rest] == list(range(100))
    assert data(log, other) == ["elsewhere"]


def test_the_option_topic_wins_over_the_column(log: Log) -> None:
    topic = log.name()
    save(log, frame(log, {"topic": "not-this-one", "data": "1"}), topic=topic)
    save(log, frame(log, {"data": "2"}, schema="data string, seq long"), topic=topic)
    assert data(log, topic) == [1, 2]
    assert log.client.get("/v0/topics/not-this-one").status == 404


@pytest.mark.parametrize("bad", [None, "{", "NaN", "", '1}, {"data": 2', "[" * 100_000])
def test_what_is_no_json_fails_the_write_and_nothing_is_seen(log: Log, bad: str | None) -> None:
    topic = log.topic("before")
    rows = [*({"topic": topic, "data": str(n)} for n in range(50)), {"topic": topic, "data": bad}]
    with pytest.raises(Exception, match="TOPIC_BAD_ROW"):
        save(log, frame(log, *rows), batchBytes=100)
    assert data(log, topic) == ["before"]


@pytest.mark.parametrize(
    ("schema", "row", "options"),
    [
        ("data string", {"data": "1"}, {}),
        ("topic string", {"topic": "t"}, {}),
        ("data bigint", {"data": 1}, {"topic": "t"}),
        ("data string, meta string", {"data": "1", "meta": "m"}, {"topic": "t"}),
    ],
)
def test_columns_that_are_no_records_are_refused(
    log: Log, schema: str, row: dict[str, Any], options: dict[str, str]
) -> None:
    with pytest.raises(Exception, match="TOPIC_BAD_ROW"):
        save(log, frame(log, row, schema=schema), **options)


def test_overwrite_and_bad_options_are_refused(log: Log) -> None:
    topic = log.topic("before")
    rows = frame(log, {"topic": topic, "data": "1"})
    with pytest.raises(Exception, match="overwrite is refused"):
        rows.write.format("topics").mode("overwrite").options(url=log.url).save()
    for name, value in (("delivery", "twice"), ("batchBytes", "0"), ("topic", "no name")):
        with pytest.raises(Exception, match=f"option {name}:"):
            save(log, rows, **{name: value})
    assert data(log, topic) == ["before"]


def start(log: Log, source: str, to: str, at: Path, **options: Any) -> StreamingQuery:
    """Copies a topic; `parts` splits its rows in another way."""
    parts = options.pop("parts", None)
    rows = log.stream(source, maxOffsetsPerTrigger=10, minPartitions=options.pop("split", 1))
    rows = rows.select("data", "tag")
    if parts:
        rows = rows.repartition(parts)
    writer = rows.writeStream.format("topics").options(url=log.url, topic=to, **options)
    return writer.option("checkpointLocation", str(at)).trigger(availableNow=True).start()


def test_a_stream_writes_every_batch_once(log: Log, tmp_path: Path) -> None:
    source, to = log.topic(*range(25)), log.name()
    for _ in range(2):
        assert start(log, source, to, tmp_path).awaitTermination(WAIT_S)
    assert data(log, to) == list(range(25))


def test_a_batch_that_is_run_again_in_another_split_is_there_once(log: Log, tmp_path: Path) -> None:
    """Spark forgets that the last batch was committed, as after a crash, and runs it again."""
    source, to = log.topic(*range(20)), log.name()
    assert start(log, source, to, tmp_path).awaitTermination(WAIT_S)
    for parts in (3, 2):
        for forgotten in (tmp_path / "commits").glob("*1*"):
            forgotten.unlink()
        again = start(log, source, to, tmp_path, parts=parts, split=parts)
        assert again.awaitTermination(WAIT_S)
        assert [progress["batchId"] for progress in again.recentProgress][:1] == [1]
        assert data(log, to) == list(range(20))


def test_a_new_checkpoint_under_an_old_producer_is_an_error(log: Log, tmp_path: Path) -> None:
    """Its first batches have numbers that are known: taken for repeats they would be lost."""
    source, to = log.topic(*range(5)), log.name()
    name = {"producerId": to}
    assert start(log, source, to, tmp_path / "a", **name).awaitTermination(WAIT_S)
    log.write(source, 5)
    assert "TOPIC_PRODUCER_CONFLICT" in failure(start(log, source, to, tmp_path / "b", **name))
    assert data(log, to) == list(range(5))
    assert start(log, source, to, tmp_path / "a", **name).awaitTermination(WAIT_S)
    assert data(log, to) == list(range(6))


def test_a_bad_row_in_a_stream_shows_nothing_of_its_batch(log: Log, tmp_path: Path) -> None:
    source, to = log.topic(*range(10)), log.topic("before")
    rows = log.stream(source, minPartitions=4).selectExpr(
        "case when seq = 10 then '{' else data end as data"
    )
    writer = rows.writeStream.format("topics").options(url=log.url, topic=to)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert "TOPIC_BAD_ROW" in failure(query)
    assert data(log, to) == ["before"]


def test_writes_under_one_producer_are_each_one_of_their_own(log: Log) -> None:
    topic = log.name()
    for n in range(3):
        save(log, frame(log, {"data": json.dumps(n)}, schema="data string"), topic=topic,
             producerId=topic)  # fmt: skip
    assert data(log, topic) == [0, 1, 2]
