"""`topics lake sync --schema`: columns of a user's schema, and dead letters for what it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.spark.lakes import LakeBeside, files_with, run
from tests.spark.support import Log
from topics.client.client import Client
from topics.lake.dead_letters import LOST, NOT_REJECTED, DeadLetters
from topics.lake.layout import Lake
from topics.lake.schemas import Extras, read_schema
from topics.lake.sync import TopicSync

SCHEMA = {
    "type": "object",
    "required": ["amount"],
    "properties": {
        "amount": {"type": "integer"},
        "customerId": {"type": "string"},
        "ts": {"type": "string", "format": "date-time"},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
GOOD = {"amount": 1, "customerId": "c", "ts": "2026-01-02T03:04:05Z", "to": {"city": "Ulm"}}
BAD = {"amount": "one", "customerId": "secret"}


@pytest.fixture
def lake(log: Log, tmp_path: Path) -> LakeBeside:
    return LakeBeside(log, tmp_path / "lake")


def schema_file(tmp_path: Path, schema: Any) -> str:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    return str(file)


def letters(lake: LakeBeside, topic: str) -> list[tuple[int, str, str]]:
    return [(each["seq"], each["data"], each["reason"]) for each in lake.letters(topic)]


def test_properties_are_columns_and_the_rest_are_dead_letters(
    lake: LakeBeside, tmp_path: Path
) -> None:
    topic = lake.log.topic(GOOD, GOOD, BAD)
    lake.log.evict(topic, 2)
    (line,) = lake.sync(topic, "--schema", schema_file(tmp_path, SCHEMA), "--variant")
    assert (line["rows"], line["rejected"]) == (3, 1)
    frame = lake.log.spark.read.format("delta").load(str(lake.path(topic)))
    assert frame.dtypes[11:] == [
        ("amount", "bigint"), ("customerId", "string"), ("data_ts", "timestamp"),
        ("to", "struct<city:string>"), ("_schema", "string"), ("_rejected", "string"),
        ("data_variant", "variant"),
    ]  # fmt: skip
    gap, good, bad = (
        frame.selectExpr("seq", "amount", "to.city", "_rejected", "data_variant:amount::string")
        .orderBy("seq")
        .collect()
    )
    assert tuple(gap) == (1, None, None, None, None)
    assert tuple(good) == (2, 1, "Ulm", None, "1")
    assert tuple(bad) == (3, None, None, "amount: is not an integer", "one")
    assert lake.rows(topic)[2]["data"] == json.dumps(BAD)
    assert letters(lake, topic) == [(3, json.dumps(BAD), "amount: is not an integer")]
    epoch = lake.log.state(topic)["epoch"]
    assert lake.run("rejected", "--json").json == [
        {"topic": topic, "epoch": epoch, "seq": 3, "reason": "amount: is not an integer"}
    ]
    assert lake.audit() == []
    # A sync that says nothing goes on with what the lake keeps; an end of an epoch has no columns.
    lake.log.write(topic, BAD)
    (line,) = lake.sync(topic)
    assert line["rejected"] == 1
    lake.log.recreate(topic, BAD, GOOD)
    lake.sync(topic)
    assert [seq for seq, _, _ in letters(lake, topic)] == [3, 4, 1]
    assert lake.audit() == []


def test_another_schema_may_add_columns_and_change_none(lake: LakeBeside, tmp_path: Path) -> None:
    topic = lake.log.topic(GOOD, BAD)
    lake.sync(topic)
    assert "amount" not in lake.rows(topic)[0]
    lake.sync(topic, "--schema", schema_file(tmp_path, SCHEMA))
    wider = json.loads(json.dumps(SCHEMA))
    wider["properties"]["to"]["properties"]["zip"] = {"type": "string"}
    wider["properties"]["more"] = {"type": "array", "items": {"type": "number"}}
    lake.log.write(topic, GOOD)
    lake.sync(topic)
    lake.log.write(topic, GOOD | {"to": {"zip": "89073"}, "more": [1]})
    lake.sync(topic, "--schema", schema_file(tmp_path, wider))
    lake.log.write(topic, GOOD)
    lake.sync(topic, "--schema", schema_file(tmp_path, SCHEMA))
    rows = lake.rows(topic)
    assert [row["to"] for row in rows[2:]] == [
        {"city": "Ulm", "zip": None}, {"city": None, "zip": "89073"}, {"city": "Ulm", "zip": None},
    ]  # fmt: skip
    assert [row["more"] for row in rows[2:]] == [None, [1.0], None]
    judged = [row["_schema"] for row in rows]
    assert judged[:2] == [None, None]
    assert judged[2] == judged[4] != judged[3]
    other = schema_file(tmp_path, {"properties": {"amount": {"type": "string"}}})
    said = lake.run("sync", topic, "--once", "--schema", other, code=1)
    assert "column amount of topic" in said.err
    broken = schema_file(tmp_path, {"properties": {"amount": {"type": "text"}}})
    said = lake.run("sync", topic, "--once", "--schema", broken, code=2)
    assert "#/properties/amount/type" in said.err.replace("\n", "")
    lake.run("sync", topic, "--once", "--schema", "/nowhere.json", code=2)
    assert lake.audit() == []


def test_a_crash_between_the_commits_loses_and_doubles_nothing(
    lake: LakeBeside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = lake.log.topic(GOOD, BAD)
    extras = Extras(read_schema(Path(schema_file(tmp_path, SCHEMA))))
    with Client(lake.log.url) as client:

        def sync() -> TopicSync:
            place = Lake(str(lake.root))
            return TopicSync(place, topic, client, lambda: lake.log.spark, extras=extras)

        first = sync()
        first.step()
        lake.log.write(topic, BAD, GOOD, BAD)
        with monkeypatch.context() as patch:
            patch.setattr(DeadLetters, "append", _killed)
            with pytest.raises(KeyboardInterrupt):
                first.step()
        assert lake.told(topic) == [1, 2, 3, 4, 5]
        assert [seq for seq, _, _ in letters(lake, topic)] == [2]
        assert lake.audit() == []
        for _ in range(2):
            assert sync().step().seq == 5
            assert [seq for seq, _, _ in letters(lake, topic)] == [2, 3, 5]
        assert lake.told(topic) == [1, 2, 3, 4, 5]
        assert lake.audit() == []


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_audit_misses_a_dead_letter(lake: LakeBeside, tmp_path: Path) -> None:
    topic = lake.log.topic(GOOD, BAD, BAD, GOOD)
    lake.sync(topic, "--schema", schema_file(tmp_path, SCHEMA))
    epoch = lake.log.state(topic)["epoch"]
    there = DeadLetters(Lake(str(lake.root)), topic)
    version = there.snapshot().version
    there.delete(epoch, np.array([3]))
    (found,) = lake.audit(code=1)
    assert (found["first"], found["last"], found["problem"]) == (3, 3, LOST)
    there.snapshot().table.restore(version)
    rows = there.snapshot().select("*", "seq = 2")
    there.append(rows, there.snapshot())
    assert "more than once" in lake.audit(code=1)[0]["problem"]
    there.snapshot().table.restore(version)
    there.snapshot().table.update({"seq": "4"}, predicate="seq = 3")
    assert {each["problem"] for each in lake.audit(code=1)} == {LOST, NOT_REJECTED}
    # The next sync that writes brings them into line.
    lake.sync(topic)
    assert [seq for seq, _, _ in letters(lake, topic)] == [2, 3]
    assert lake.audit() == []


def test_deletes_restores_and_erasure_reach_the_dead_letters(
    lake: LakeBeside, tmp_path: Path
) -> None:
    topic = lake.log.topic()
    people = ["ann", "bob", "eve", "ann", "bob", "eve"]
    lake.log.write_records(
        topic, *({"data": {"amount": f"secret of {who}"}, "tag": who} for who in people)
    )
    lake.sync(topic, "--schema", schema_file(tmp_path, SCHEMA), "--variant")
    version = lake.table(topic).version()
    assert len(lake.letters(topic)) == 6
    delete = {"match": ["tag", "Eq", "ann"]}
    assert lake.log.client.post(f"/v0/topics/{topic}/delete", delete).status == 200
    lake.sync(topic, "--propagate-deletes")
    assert [seq for seq, _, _ in letters(lake, topic)] == [2, 3, 5, 6]
    assert files_with(lake.letters_path(topic), "secret of ann")
    lake.run("vacuum", "--retention-hours", "0")
    assert not files_with(lake.root, "secret of ann")
    # What the log has lost stays as an empty row of the table, and is no dead letter any more.
    lake.log.evict(topic, 2)
    done = run(
        "erase", topic, "--tag", "bob", "--prove", "--json", "--lake", str(lake.root),
        TOPICS_URL=lake.log.url, TOPICS_DATA_DIR=str(lake.log.served.data_dir),
    ).json  # fmt: skip
    assert done["left"] == []
    assert (done["lake"]["rows_deleted"], done["lake"]["rows_emptied"]) == (1, 1)
    assert [seq for seq, _, _ in letters(lake, topic)] == [3, 6]
    assert not files_with(lake.root, "secret of bob")
    frame = lake.log.spark.read.format("delta").load(str(lake.path(topic)))
    found = frame.selectExpr("seq", "data_variant:amount::string").orderBy("seq").collect()
    assert [tuple(row) for row in found] == [(2, None), (3, "secret of eve"), (6, "secret of eve")]
    assert lake.audit() == []
    assert version < lake.table(topic).version()
    lake.run("restore", topic, "--to", "0")
    assert lake.letters(topic) == []
    assert lake.audit() == []
    lake.sync(topic)
    assert [seq for seq, _, _ in letters(lake, topic)] == [6]
    assert lake.audit() == []
