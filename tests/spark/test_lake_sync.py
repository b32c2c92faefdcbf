"""`topics lake sync`: what becomes of a topic in its table, on real Spark and real Delta."""

from __future__ import annotations

import contextlib
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.lakes import LakeBeside, files_with
from tests.spark.support import Log
from topics.client.client import Client
from topics.lake import sync as syncing
from topics.lake.layout import Lake
from topics.lake.sessions import for_commits
from topics.lake.sync import TopicSync

COLUMNS = {
    "topic": "string", "epoch": "string", "seq": "bigint", "ts": "timestamp", "node": "string",
    "tag": "string", "meta": "map<string,string>", "data": "string", "_kind": "string",
    "_gap_to": "bigint", "_gap_reason": "string",
}  # fmt: skip


@pytest.fixture
def lake(log: Log, tmp_path: Path) -> LakeBeside:
    return LakeBeside(log, tmp_path / "lake")


def test_records_and_gaps_have_the_columns_of_the_lake(lake: LakeBeside) -> None:
    topic = lake.log.name() + ":x"
    lake.log.client.put(f"/v0/topics/{topic}", {})
    lake.log.write_records(
        topic, {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": "two"}
    )
    (line,) = lake.sync(topic)
    state = lake.log.state(topic)
    assert line == {
        "topic": topic, "epoch": state["epoch"], "seq": 2, "head_seq": 2, "lag": 0, "rows": 2,
        "rejected": 0,
    }  # fmt: skip
    assert lake.path(topic).name == topic.replace(":", "~")
    frame = lake.log.spark.read.format("delta").load(str(lake.path(topic)))
    assert dict(frame.dtypes) == COLUMNS
    assert frame.columns == list(COLUMNS)
    first, second = lake.rows(topic)
    written = lake.log.records(topic)[0]["$ts"]
    assert first == {
        "topic": topic, "epoch": state["epoch"], "seq": 1,
        "ts": datetime.fromtimestamp(written / 1000, UTC), "node": "n", "tag": "t",
        "meta": [("k", "v")], "data": '{"a": 1}', "_kind": "record", "_gap_to": None,
        "_gap_reason": None,
    }  # fmt: skip
    assert (second["data"], second["tag"], second["meta"]) == ('"two"', None, None)
    assert lake.audit() == []


def test_a_sync_that_finds_nothing_new_commits_nothing(lake: LakeBeside) -> None:
    topic = lake.log.topic(*range(5))
    lake.sync(topic)
    version = lake.table(topic).version()
    (line,) = lake.sync(topic)
    assert (line["rows"], line["lag"]) == (0, 0)
    assert lake.table(topic).version() == version
    lake.log.write(topic, 5)
    (line,) = lake.sync(topic)
    assert (line["rows"], line["seq"]) == (1, 6)
    assert lake.table(topic).version() == version + 1
    assert lake.told(topic) == [1, 2, 3, 4, 5, 6]


def test_an_empty_topic_has_an_empty_table_and_no_match_is_exit_1(lake: LakeBeside) -> None:
    topic = lake.log.topic()
    lake.sync(topic)
    assert lake.rows(topic) == []
    assert "no topic matches 'nothing-*'" in lake.run("sync", "nothing-*", "--once", code=1).err
    assert lake.audit() == []


def test_eviction_under_a_lagging_sync_is_exactly_the_servers_gap(lake: LakeBeside) -> None:
    topic = lake.log.topic(*range(10))
    lake.sync(topic)
    lake.log.evict(topic, 5)
    lake.log.write(topic, *range(20))
    lake.sync(topic)
    (gap,) = lake.log.client.post(f"/v0/topics/{topic}/range", {"from_seq": 10}).json["gaps"]
    assert lake.told(topic) == [*range(1, 11), (11, 25, "cap"), *range(26, 31)]
    assert (gap["gap_from"], gap["gap_to"]) == (11, 25)
    epoch = lake.log.state(topic)["epoch"]
    assert lake.gaps() == [
        {"topic": topic, "epoch": epoch, "first": 11, "last": 25, "reason": "cap"}
    ]
    gone = next(row for row in lake.rows(topic) if row["_kind"] == "gap")
    assert (gone["node"], gone["tag"], gone["data"]) == (None, None, None)
    assert lake.audit() == []


def test_a_gap_that_goes_on_behind_the_head_that_was_seen_is_one(lake: LakeBeside) -> None:
    """Spark takes seconds to start, and a topic at its cap loses more in that time."""
    topic = lake.log.topic(*range(5))
    lake.log.evict(topic, 2)
    lake.log.write(topic, *range(5))
    with Client(lake.log.url) as client:
        sync = TopicSync(Lake(str(lake.root)), topic, client, lambda: lake.log.spark)
        moved = sync.step(5)
        assert (moved.seq, moved.head) == (8, 8)
    lake.sync(topic)
    assert lake.told(topic) == [(1, 8, "cap"), 9, 10]


def test_one_gap_is_one_row_however_the_range_is_split(
    lake: LakeBeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss grows over every cut between the plan and the read: the read is planned again."""
    monkeypatch.setattr(syncing, "TASK_ROWS_MIN", 10)
    topic = lake.log.topic(*range(100))
    lake.log.evict(topic, 60)
    with Client(lake.log.url) as client:
        sync = TopicSync(Lake(str(lake.root)), topic, client, lambda: lake.log.spark)
        planned = sync.plan

        def late(*arguments: Any) -> Any:
            found = planned(*arguments)
            lake.log.evict(topic, 5)
            return found

        monkeypatch.setattr(sync, "plan", late)
        with pytest.raises(Exception, match="has grown over seq"):
            sync.step()
        monkeypatch.undo()
        assert sync.step().seq == 100
    assert lake.told(topic) == [(1, 95, "cap"), 96, 97, 98, 99, 100]
    assert lake.audit() == []


def test_what_was_deleted_is_silence_and_accounted_for(lake: LakeBeside) -> None:
    topic = lake.log.topic()
    lake.log.write_records(topic, *({"data": n, "tag": "ab"[n % 2]} for n in range(10)))
    delete = {"match": ["tag", "Eq", "b"]}
    assert lake.log.client.post(f"/v0/topics/{topic}/delete", delete).status == 200
    (line,) = lake.sync(topic)
    assert (line["seq"], line["lag"]) == (10, 0)
    assert lake.told(topic) == [1, 3, 5, 7, 9]
    (line,) = lake.run("status", "--json").json
    assert (line["seq"], line["head_seq"], line["lag"]) == (10, 10, 0)
    version = lake.table(topic).version()
    lake.sync(topic)
    assert lake.table(topic).version() == version
    assert lake.audit() == []


def test_a_recreated_topic_is_one_gap_of_the_old_epoch(lake: LakeBeside) -> None:
    topic = lake.log.topic(*range(5))
    lake.sync(topic)
    old = lake.log.state(topic)["epoch"]
    lake.log.recreate(topic, *range(3))
    lake.sync(topic)
    new = lake.log.state(topic)["epoch"]
    assert lake.told(topic) == [1, 2, 3, 4, 5, (6, 5, "recreated"), 1, 2, 3]
    assert [row["epoch"] for row in lake.rows(topic)] == [old] * 6 + [new] * 3
    lake.sync(topic)
    assert len(lake.gaps()) == 1
    assert lake.audit() == []
    lake.log.recreate(topic)
    lake.sync(topic)
    assert lake.told(topic)[-1] == (4, 3, "recreated")
    # The epoch that was empty is over, too, though no row tells of it.
    lake.log.recreate(topic, 1)
    lake.sync(topic)
    assert lake.told(topic)[-2:] == [(1, 0, "recreated"), 1]
    assert lake.audit() == []


def test_what_was_known_of_a_recreated_topic_and_not_read_is_in_its_gap(lake: LakeBeside) -> None:
    topic = lake.log.topic(*range(5))
    with Client(lake.log.url) as client:
        sync = TopicSync(Lake(str(lake.root)), topic, client, lambda: lake.log.spark)
        assert sync.step(3).seq == 3
    lake.log.recreate(topic, 1)
    lake.sync(topic)
    assert lake.told(topic) == [1, 2, 3, (4, 5, "recreated"), 1]
    assert lake.audit() == []


def test_two_syncs_at_once_never_double(lake: LakeBeside) -> None:
    topic = lake.log.topic(*range(50))
    over = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            with Client(lake.log.url) as client:
                sync = TopicSync(Lake(str(lake.root)), topic, client, lambda: lake.log.spark)
                while not over.is_set() or sync.step().seq < 50 + 8 * 10:
                    sync.step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        lake.log.write(topic, *range(10))
    over.set()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert lake.told(topic) == list(range(1, 131))
    assert lake.audit() == []


def test_a_commit_that_was_planned_before_another_is_none(
    lake: LakeBeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the lock of a directory prevents, and an object store does not."""
    monkeypatch.setattr(Lake, "writing", lambda *_: contextlib.nullcontext())
    topic = lake.log.topic(*range(10))
    with Client(lake.log.url) as client:
        slow, fast = (
            TopicSync(Lake(str(lake.root)), topic, client, lambda: lake.log.spark) for _ in range(2)
        )
        append = slow.append

        def late(*arguments: Any) -> None:
            slow.append = append  # type: ignore[method-assign]
            assert fast.step(4).seq == 4
            append(*arguments)

        slow.append = late  # type: ignore[method-assign]
        assert slow.step().seq == 4
        assert slow.step().seq == 10
    assert lake.told(topic) == list(range(1, 11))


def test_a_restored_table_goes_on_from_its_version(lake: LakeBeside) -> None:
    topic = lake.log.topic(1, 2, 3)
    lake.sync(topic)
    version = lake.table(topic).version()
    lake.log.write(topic, 4, 5)
    lake.sync(topic)
    said = lake.run("restore", topic, "--to", str(version), "--json").json
    assert said == {"topic": topic, "restored_to": version, "version": version + 2}
    assert lake.told(topic) == [1, 2, 3]
    assert lake.audit() == []
    lake.sync(topic)
    assert lake.told(topic) == [1, 2, 3, 4, 5]
    assert lake.audit() == []
    assert "has no version 99" in lake.run("restore", topic, "--to", "99", code=1).err
    assert "has no table" in lake.run("restore", "other", "--to", "0", code=1).err


def test_restored_to_before_an_epoch_that_is_over_it_is_told_as_lost(lake: LakeBeside) -> None:
    topic = lake.log.topic(1, 2, 3)
    lake.sync(topic)
    lake.log.recreate(topic, 1)
    lake.sync(topic)
    lake.run("restore", topic, "--to", "0")
    lake.sync(topic)
    assert lake.told(topic) == [(1, 3, "recreated"), 1]
    assert lake.audit() == []


def test_deletes_that_are_propagated_are_gone_from_the_files(lake: LakeBeside) -> None:
    topic = lake.log.topic()
    lake.log.write_records(topic, *({"data": f"secret-{n}", "tag": "ab"[n % 2]} for n in range(9)))
    lake.sync(topic)
    delete = {"match": ["tag", "Eq", "b"]}
    assert lake.log.client.post(f"/v0/topics/{topic}/delete", delete).status == 200
    lake.sync(topic)
    assert len(lake.told(topic)) == 9
    assert lake.audit() == []
    lake.sync(topic, "--propagate-deletes")
    assert lake.told(topic) == [1, 3, 5, 7, 9]
    version = lake.table(topic).version()
    lake.sync(topic, "--propagate-deletes")
    assert lake.table(topic).version() == version
    assert lake.audit() == []
    assert files_with(lake.path(topic), "secret-3")
    lake.run("vacuum", "--retention-hours", "0")
    assert not files_with(lake.path(topic), "secret-3")
    assert files_with(lake.path(topic), "secret-4")
    lake.log.recreate(topic)
    lake.sync(topic)
    assert lake.audit() == []


def test_optimize_makes_few_files_and_changes_no_row(lake: LakeBeside) -> None:
    topic = lake.log.topic(1)
    for n in range(3):
        lake.sync(topic)
        lake.log.write(topic, n)
    lake.sync(topic)
    rows = lake.rows(topic)
    (line,) = lake.run("optimize", "--json").json
    assert line == {"topic": topic, "files_added": 1, "files_removed": 4}
    assert lake.rows(topic) == rows
    lake.log.write(topic, 9)
    lake.sync(topic)
    assert lake.told(topic) == [1, 2, 3, 4, 5]
    assert lake.audit() == []


def test_new_tables_can_be_parted_by_day(lake: LakeBeside) -> None:
    topic = lake.log.topic(1, 2)
    lake.log.recreate(topic, 1, 2)
    lake.sync(topic, "--partition-by", "day")
    assert lake.table(topic).metadata().partition_columns == ["_day"]
    assert list(lake.rows(topic)[0])[-1] == "_day"
    lake.log.recreate(topic)
    lake.sync(topic)
    assert lake.told(topic) == [1, 2, (3, 2, "recreated")]
    assert lake.audit() == []


def test_commits_have_a_session_that_is_set_as_the_one_it_stands_beside(log: Log) -> None:
    """Days of tables follow from the time zone: what was set since Spark started goes along."""
    started = log.spark.newSession()
    started.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    beside = for_commits(started)
    assert beside is for_commits(started)
    assert beside.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert beside.conf.get("spark.sql.adaptive.enabled") == "false"
    assert started.conf.get("spark.sql.adaptive.enabled") == "true"
