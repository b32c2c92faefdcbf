"""What Spark expects of a Python source and does not say, held against the reader itself."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampType

from pyspark_topics import DefaultSource
from pyspark_topics.batch import BatchReader
from pyspark_topics.cursors import LEASE_MS
from pyspark_topics.options import source_options
from pyspark_topics.splits import Part
from pyspark_topics.stream import StreamReader
from tests.spark.killing import restarted
from tests.support.servers import Client, Served

RUNNING: list[StreamReader] = []


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as found:
        yield found
    while RUNNING:
        RUNNING.pop().stop()


def topic(client: Client, *data: Any) -> str:
    name = f"t{len(client.get('/v0/topics?page_size=1000').json['topics'])}"
    client.put(f"/v0/topics/{name}", {})
    if data:
        client.write(name, *data)
    return name


def stream(client: Client, name: str, **options: str) -> StreamReader:
    given = {"url": f"http://127.0.0.1:{client.port}", **options}
    if name:
        given["subscribe"] = name
    reader = StreamReader(source_options(given, is_stream=True))
    RUNNING.append(reader)
    return reader


def batch(client: Client, name: str, **options: str) -> BatchReader:
    given = {"url": f"http://127.0.0.1:{client.port}", "subscribe": name, **options}
    return BatchReader(source_options(given, is_stream=False))


def test_the_module_has_what_spark_looks_for() -> None:
    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource.name() == "topics"


def test_readers_and_partitions_can_be_pickled(client: Client) -> None:
    """They are copied to processes that share nothing, in use or not."""
    name = topic(client, 1, 2)
    reader = stream(client, name, cursor="c")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    copy = pickle.loads(pickle.dumps(reader))
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    assert [row for part in parts for one in copy.read(part) for row in one["seq"].to_pylist()] == [
        1, 2,
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(batch(client, name))).partitions()


def test_an_idle_stream_stands_still_as_text(client: Client) -> None:
    """Spark compares offsets as texts: the same when nothing is new, names in order."""
    first, second = topic(client, 1), topic(client, 2)
    reader = stream(client, f"{second},{first}")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert json.dumps(end) != json.dumps(start)
    again = reader.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert json.dumps(again) == json.dumps(end)
    assert list(end["topics"]) == sorted(end["topics"])
    assert json.dumps(reader.initialOffset()) == json.dumps(start)


def test_limits_are_sparks_own_and_all_means_all(client: Client) -> None:
    name = topic(client, *range(10))
    bounded = stream(client, name, maxOffsetsPerTrigger="3", maxBytesPerTrigger="1000")
    assert bounded.getDefaultReadLimit() == ReadMaxRows(3)
    only_bytes = stream(client, name, maxBytesPerTrigger="1000")
    assert only_bytes.getDefaultReadLimit() == ReadMaxBytes(1000)
    assert stream(client, name).getDefaultReadLimit() == ReadAllAvailable()
    start = bounded.initialOffset()
    some = bounded.latestOffset(start, ReadMaxRows(3))
    assert some["topics"][name]["seq"] == 3
    assert bounded.latestOffset(start, ReadAllAvailable())["topics"][name]["seq"] == 10


def test_available_now_ends_where_it_first_looked(client: Client) -> None:
    """Not where it was prepared: Spark may first run a batch again that was planned before."""
    name = topic(client, 1)
    reader = stream(client, name)
    assert isinstance(reader, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    client.write(name, 2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["topics"][name]["seq"] == 2
    client.write(name, 3)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_available_now_gives_its_name_back_at_the_end(client: Client) -> None:
    """Spark ends the process without a word; whoever comes next need not wait for a lease."""
    name = topic(client, 1)
    reader, following = stream(client, name, cursor="c"), stream(client, name, cursor="c")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    began = time.monotonic()
    following.initialOffset()
    assert time.monotonic() - began < LEASE_MS / 1000
    with pytest.raises(Exception, match="TOPIC_CURSOR_IN_USE"):
        reader.latestOffset(end, ReadAllAvailable())


def test_a_topic_joins_where_its_cursor_is(client: Client) -> None:
    """First its place is kept, then it is read: a batch that is planned again begins there too."""
    reader = stream(client, "", subscribePattern="join-.*", cursor="c")
    start = reader.initialOffset()
    client.write("join-a", *range(5))
    assert client.put("/v0/topics/join-a/cursors/c", {"seq": 3}).status == 200
    joined = reader.latestOffset(start, ReadAllAvailable())
    assert (joined["topics"]["join-a"]["seq"], reader.partitions(start, joined)) == (3, [])
    end = reader.latestOffset(joined, ReadAllAvailable())
    (part,) = reader.partitions(joined, end)
    assert [row for one in reader.read(part) for row in one["seq"].to_pylist()] == [4, 5]
    assert client.get("/v0/topics/join-a/cursors/c.start").json["seq"] == 0


def test_the_gap_of_a_recreated_topic_counts_as_a_row(client: Client) -> None:
    """A batch has no more rows than were asked for, whatever became of its topics."""
    name = topic(client, 1)
    reader = stream(client, name, maxOffsetsPerTrigger="2", failOnDataLoss="false")
    place = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    assert client.delete(f"/v0/topics/{name}").status == 200
    client.put(f"/v0/topics/{name}", {})
    client.write(name, *range(5))
    counts = []
    while (end := reader.latestOffset(place, ReadMaxRows(2))) != place:
        parts = reader.partitions(place, end)
        counts.append(sum(one.num_rows for part in parts for one in reader.read(part)))
        place = end
    assert counts == [2, 2, 2]


def test_a_cursor_of_an_epoch_that_is_over_knows_no_head_but_its_place(tmp_path: Path) -> None:
    """A new checkpoint under its name tells as lost what that epoch had, not what the next has."""
    with ExitStack() as ended:
        served = ended.enter_context(Served(tmp_path)).wait_ready()
        with served.client() as before:
            before.put("/v0/topics/e", {"durability": "ephemeral"})
            before.write("e", 1, 2, 3)
            before.put("/v0/topics/e/cursors/c", {"seq": 3})
        served.kill()
        served = ended.enter_context(restarted(served, tmp_path)).wait_ready()
        client = ended.enter_context(served.client())
        client.write("e", *range(20))
        reader = stream(client, "e", cursor="c", failOnDataLoss="false")
        ended.callback(RUNNING.clear)
        ended.callback(reader.stop)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        rows = [
            row for part in reader.partitions(start, end)
            for one in reader.read(part) for row in one.to_pylist()
        ]  # fmt: skip
        assert [(row["seq"], row["_gap_to"]) for row in rows if row["_kind"] == "gap"][:1] == [
            (4, 3)
        ]
        assert rows[0]["_gap_reason"] == "recreated"
        assert len([row for row in rows if row["_kind"] == "record"]) == 20


def test_partitions_are_a_list_the_same_each_time_and_none_for_nothing(client: Client) -> None:
    name = topic(client, *range(10))
    reader = stream(client, name, minPartitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    assert isinstance(parts, list)
    assert parts == reader.partitions(start, end)
    assert len(parts) >= 3
    assert reader.partitions(end, end) == []
    # Spark asks for a bare partition when there is none.
    assert list(batch(client, name).read(InputPartition(None))) == []


def test_batches_have_exactly_the_schema_that_spark_checks(client: Client) -> None:
    """Of the server's pages and of the rows that are made here."""
    name = topic(client, 1)
    text, seq = StringType(), LongType()
    names = ["topic", "epoch", "seq", "ts", "node", "tag", "meta", "data", "_kind", "_gap_to",
             "_gap_reason"]  # fmt: skip
    types = [text, text, seq, TimestampType(), text, text, MapType(text, text), text, text, seq,
             text]  # fmt: skip
    schema = StructType()
    for column, kind in zip(names, types, strict=True):
        schema.add(column, kind)
    expected = to_arrow_schema(schema, timezone="UTC")
    for options in ({}, {"includeMeta": "false", "includeTags": "false"}):
        reader = batch(client, name, failOnDataLoss="false", **options)
        (part,) = reader.partitions()
        (page,) = reader.read(part)
        assert expected.equals(page.schema)
        gone = Part(name, "0", 0, 5, is_recreated=True)
        (made,) = reader.read(gone)
        assert expected.equals(made.schema)


def test_commit_and_stop_carry_nothing(client: Client) -> None:
    """Spark calls them late or never; a stream goes on the same, and gives its name back."""
    name = topic(client, 1, 2)
    reader = stream(client, name, cursor="c")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.commit(end)
    reader.stop()
    reader = stream(client, name, cursor="c")
    client.write(name, 3)
    assert reader.latestOffset(end, ReadAllAvailable())["topics"][name]["seq"] == 3


def test_a_topic_that_is_gone_before_a_task_reads_it_is_told(client: Client) -> None:
    name = topic(client, 1, 2, 3)
    reader = batch(client, name, failOnDataLoss="false")
    strict = batch(client, name)
    (part,) = reader.partitions()
    assert client.delete(f"/v0/topics/{name}").status == 200
    (told,) = reader.read(part)
    assert told.select(["seq", "_gap_to", "_gap_reason"]).to_pylist() == [
        {"seq": 1, "_gap_to": 3, "_gap_reason": "recreated"}
    ]
    with pytest.raises(Exception, match="TOPIC_DATA_LOSS"):
        list(strict.read(part))


def test_a_gap_that_grows_before_it_is_read_is_no_failure(client: Client) -> None:
    """A topic at its cap evicts all the time: where a read from `earliest` begins is never safe.

    Seqs that a reader has passed are, and so are those that came after it stood at the end.
    """
    name = topic(client, *range(30))
    capped = f"/v0/topics/{name}"
    client.put(capped, {"cap_records": 20})
    reader = batch(client, name, minPartitions="5")
    moving = stream(client, name, minPartitions="5")
    parts = reader.partitions()
    start = moving.initialOffset()
    end = moving.latestOffset(start, ReadAllAvailable())
    planned = moving.partitions(start, end)
    client.put(capped, {"cap_records": 3})
    for read, asked in ((reader, parts), (moving, planned)):
        rows = [row for part in asked for one in read.read(part) for row in one.to_pylist()]
        assert [row["seq"] for row in rows if row["_kind"] == "record"] == [28, 29, 30]
        lost = [seq for row in rows if row["_kind"] == "gap"
                for seq in range(row["seq"], row["_gap_to"] + 1)]  # fmt: skip
        assert lost == list(range(1, 28))
    client.write(name, *range(10))
    with pytest.raises(Exception, match="TOPIC_DATA_LOSS"):
        moving.latestOffset(end, ReadAllAvailable())
    empty = topic(client)
    waiting = stream(client, empty)
    start = waiting.initialOffset()
    client.put(f"/v0/topics/{empty}", {"cap_records": 3})
    client.write(empty, *range(10))
    with pytest.raises(Exception, match="TOPIC_DATA_LOSS"):
        waiting.latestOffset(start, ReadAllAvailable())


def test_looking_leaves_the_recency_clock_alone(client: Client) -> None:
    name = topic(client, 1)
    before = client.get(f"/v0/topics/{name}?touch=false").json["last_read_ts"]
    reader = stream(client, name, minPartitions="2")
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert client.get(f"/v0/topics/{name}?touch=false").json["last_read_ts"] == before
