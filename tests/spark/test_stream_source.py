"""Streaming reads of `format("topics")`: nothing twice, nothing missed, every loss said."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.sql.streaming import StreamingQuery

from tests.spark.support import WAIT_S, Log, told


def wait_for(query: StreamingQuery, log: Log, topic: str, cursor: str, seq: int) -> None:
    """Until the stream's progress on the server is there."""
    deadline = time.monotonic() + WAIT_S
    while log.cursor(topic, cursor).get("seq") != seq:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def failure(query: StreamingQuery) -> str:
    with pytest.raises(Exception) as failed:  # noqa: PT011
        query.awaitTermination(WAIT_S)
    return str(failed.value)


def batch_sizes(query: StreamingQuery) -> list[int]:
    found = [progress["numInputRows"] for progress in query.recentProgress]
    return [size for size in found if size]


def test_a_stream_goes_on_from_its_checkpoint(log: Log, tmp_path: Path) -> None:
    topic = log.topic(*range(5))
    assert told(log.drain(log.stream(topic), tmp_path)) == [1, 2, 3, 4, 5]
    log.write(topic, 5, 6)
    assert told(log.drain(log.stream(topic), tmp_path)) == [1, 2, 3, 4, 5, 6, 7]
    assert told(log.drain(log.stream(topic), tmp_path)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_batch_takes_so_many_records_over_all_topics(log: Log, tmp_path: Path) -> None:
    """A gap counts as one; what is there at the start is read to its end."""
    one, two = log.topic(*range(12)), log.topic(*range(3))
    log.evict(one, keep=8)
    frame = log.stream("", subscribe=f"{one},{two}", maxOffsetsPerTrigger=4)
    query = log.start(frame, tmp_path, availableNow=True)
    assert query.awaitTermination(WAIT_S)
    assert batch_sizes(query) == [4, 4, 4]
    rows = log.landed(tmp_path)
    assert told([row for row in rows if row["topic"] == one]) == [(1, 4, "cap"), *range(5, 13)]
    assert told([row for row in rows if row["topic"] == two]) == [1, 2, 3]
    last = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert last["topics"][one]["lost"] == 4


def test_a_batch_takes_so_many_bytes(log: Log, tmp_path: Path) -> None:
    """Bytes of data and meta; one record may cross the bound, and the first reached wins."""
    topic = log.topic(*["x" * 98] * 10)
    frame = log.stream(topic, maxBytesPerTrigger=250)
    query = log.start(frame, tmp_path / "bytes", availableNow=True)
    assert query.awaitTermination(WAIT_S)
    assert batch_sizes(query) == [3, 3, 3, 1]
    both = log.stream(topic, maxBytesPerTrigger=250, maxOffsetsPerTrigger=2)
    query = log.start(both, tmp_path / "both", availableNow=True)
    assert query.awaitTermination(WAIT_S)
    assert batch_sizes(query) == [2] * 5


def test_new_topics_join_a_pattern(log: Log, tmp_path: Path) -> None:
    prefix = log.topic(1, 2)
    frame = log.stream("", subscribePattern=f"{prefix}.*", cursor="c")
    query = log.start(frame, tmp_path)
    try:
        wait_for(query, log, prefix, "c", 2)
        late = f"{prefix}-late"
        log.client.write(late, 7, 8, 9, create=True)
        wait_for(query, log, late, "c", 3)
    finally:
        query.stop()
    rows = log.landed(tmp_path)
    assert told([row for row in rows if row["topic"] == late]) == [1, 2, 3]
    assert told([row for row in rows if row["topic"] == prefix]) == [1, 2]


def test_a_loss_under_a_lagging_query_is_exactly_the_servers_gap(log: Log, tmp_path: Path) -> None:
    topic = log.topic(*range(5))
    lenient = {"failOnDataLoss": "false", "minPartitions": 3}
    log.drain(log.stream(topic), tmp_path)
    log.write(topic, *range(20))
    log.evict(topic, keep=6)
    gap = log.client.diff(topic, from_seq=5).json["tombstone"]
    assert "TOPIC_DATA_LOSS" in failure(log.start(log.stream(topic), tmp_path, availableNow=True))
    rows = told(log.drain(log.stream(topic, **lenient), tmp_path))
    assert rows == [1, 2, 3, 4, 5, (gap["gap_from"], gap["gap_to"], "cap"), *range(20, 26)]
    assert (gap["gap_from"], gap["gap_to"]) == (6, 19)


def test_what_was_lost_before_the_first_batch_is_a_row(log: Log, tmp_path: Path) -> None:
    topic = log.topic(*range(20))
    log.evict(topic, keep=5)
    frame = log.stream(topic, maxOffsetsPerTrigger=2)
    assert told(log.drain(frame, tmp_path / "a")) == [(1, 15, "cap"), *range(16, 21)]
    named = log.stream(topic, startingOffsets=json.dumps({topic: 3}))
    assert "TOPIC_DATA_LOSS" in failure(log.start(named, tmp_path / "b", availableNow=True))
    above = log.stream(topic, startingOffsets=json.dumps({topic: 22}))
    assert "TOPIC_DATA_LOSS" in failure(log.start(above, tmp_path / "c", availableNow=True))
    at_head = log.stream(topic, startingOffsets=json.dumps({topic: 21}))
    query = log.start(at_head, tmp_path / "d", availableNow=True)
    assert query.awaitTermination(WAIT_S)
    assert batch_sizes(query) == []


def test_a_topic_recreated_under_a_stream_is_never_silence(log: Log, tmp_path: Path) -> None:
    """An error, or one gap with the old epoch up to the last head known; then the new epoch."""
    topic = log.topic(*range(5))
    first = log.stream(topic, maxOffsetsPerTrigger=3)
    query = log.start(first, tmp_path, processingTime="1 hour")
    while not query.recentProgress:
        assert query.isActive, query.exception()
        time.sleep(0.1)
    query.stop()
    old = log.state(topic)["epoch"]
    log.recreate(topic, *range(9))
    assert "TOPIC_DATA_LOSS" in failure(log.start(log.stream(topic), tmp_path, availableNow=True))
    rows = log.drain(log.stream(topic, failOnDataLoss="false"), tmp_path)
    (gap,) = [row for row in rows if row["_kind"] == "gap"]
    assert (gap["epoch"], gap["_gap_reason"], gap["data"]) == (old, "recreated", None)
    read = max(row["seq"] for row in rows if row["epoch"] == old and row["_kind"] == "record")
    assert (gap["seq"], gap["_gap_to"]) == (read + 1, 5)
    assert told([row for row in rows if row["epoch"] != old]) == list(range(1, 10))


def test_a_running_stream_meets_a_recreated_topic(log: Log, tmp_path: Path) -> None:
    topic = log.topic(*range(3))
    queries = {}
    try:
        # One after the other: Spark gives a worker ten seconds to start.
        for flag in ("true", "false"):
            frame = log.stream(topic, failOnDataLoss=flag, cursor=f"c-{flag}")
            queries[flag] = log.start(frame, tmp_path / flag)
            wait_for(queries[flag], log, topic, f"c-{flag}", 3)
        log.recreate(topic, "new")
        assert "TOPIC_DATA_LOSS" in failure(queries["true"])
        wait_for(queries["false"], log, topic, "c-false", 1)
    finally:
        for query in queries.values():
            query.stop()
    assert told(log.landed(tmp_path / "false")) == [1, 2, 3, (4, 3, "recreated"), 1]


def test_a_topic_that_is_gone(log: Log, tmp_path: Path) -> None:
    """An error, or the stream waits for it."""
    topic, other = log.topic(1), log.topic(1)
    both = f"{topic},{other}"
    log.drain(log.stream("", subscribe=both), tmp_path)
    assert log.client.delete(f"/v0/topics/{topic}").status == 200
    log.write(other, 2)
    strict = log.stream("", subscribe=both)
    assert "TOPIC_DATA_LOSS" in failure(log.start(strict, tmp_path, availableNow=True))
    lenient = log.stream("", subscribe=both, failOnDataLoss="false")
    rows = log.drain(lenient, tmp_path)
    assert told([row for row in rows if row["topic"] == other]) == [1, 2]
    fresh = log.start(log.stream(log.name()), tmp_path / "fresh", availableNow=True)
    assert "TOPIC_NOT_FOUND" in failure(fresh)


def test_gaps_can_be_dropped(log: Log, tmp_path: Path) -> None:
    topic = log.topic(*range(5))
    log.evict(topic, keep=2)
    frame = log.stream(topic, failOnDataLoss="false", gapMode="drop")
    assert told(log.drain(frame, tmp_path)) == [4, 5]
