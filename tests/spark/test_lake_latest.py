"""`topics lake sync --latest`: the latest value of each tag, and the live keys of a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.spark.lakes import LakeBeside, run
from tests.spark.support import Log


@pytest.fixture
def lake(log: Log, tmp_path: Path) -> LakeBeside:
    return LakeBeside(log, tmp_path / "lake")


def latest(lake: LakeBeside, topic: str) -> dict[str, Any]:
    table = DeltaTable(lake.root / "latest" / topic.replace(":", "~"))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    return {row["tag"]: row["data"] for row in rows.to_pylist()}


def test_it_has_the_latest_value_of_each_tag(lake: LakeBeside) -> None:
    topic = lake.log.topic()
    lake.log.write_records(
        topic,
        {"data": 1, "tag": "a"},
        {"data": 2, "tag": "b"},
        {"data": 3},
        {"data": 4, "tag": "a"},
    )
    lake.sync(topic, "--latest")
    assert latest(lake, topic) == {"a": "4", "b": "2"}
    done = run(
        "erase", topic, "--tag", "a", "--prove", "--json", "--lake", str(lake.root),
        TOPICS_URL=lake.log.url,
    )  # fmt: skip
    assert done.json["left"] == []
    assert latest(lake, topic) == {"b": "2"}
    lake.log.recreate(topic)
    lake.log.write_records(topic, {"data": 9, "tag": "c"})
    lake.sync(topic, "--latest")
    assert latest(lake, topic) == {"c": "9"}


def test_of_a_bucket_it_has_the_live_keys(lake: LakeBeside) -> None:
    bucket = lake.log.name()
    keys = f"/v0/kv/{bucket}/keys"
    for key in ("u/1", "u/2", "v/1", "v/2"):
        assert lake.log.client.put(f"{keys}/{key.replace('/', '%2F')}", key).status < 300
    assert lake.log.client.delete(f"{keys}/v%2F2").status == 200
    assert lake.log.client.post(f"/v0/kv/{bucket}/delete", {"prefix": "u/"}).status == 200
    assert lake.log.client.put(f"{keys}/u%2F2", "again").status < 300
    lake.sync(f"kv:{bucket}", "--latest")
    assert latest(lake, f"kv:{bucket}") == {"v/1": '"v/1"', "u/2": '"again"'}
