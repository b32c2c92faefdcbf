"""`topics erase`: gone from the log, its files and the lake; and a proof that can fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.lakes import LakeBeside, run
from tests.spark.support import Log


@pytest.fixture
def lake(log: Log, tmp_path: Path) -> LakeBeside:
    return LakeBeside(log, tmp_path / "lake")


@pytest.fixture
def topic(lake: LakeBeside) -> str:
    """Six records, two of them of somebody who wants to be forgotten."""
    topic = lake.log.topic()
    people = ["ann", "bob", "eve", "bob", "ann", "eve"]
    lake.log.write_records(
        topic, *({"data": f"secret of {who}", "tag": who, "meta": {"m": who}} for who in people)
    )
    return topic


def erase(lake: LakeBeside, topic: str, *arguments: str, code: int = 0) -> Any:
    said = run(
        "erase", topic, "--json", "--prove", *arguments, code=code, TOPICS_URL=lake.log.url,
        TOPICS_DATA_DIR=str(lake.log.served.data_dir),
    )  # fmt: skip
    return said.json


def files_with(folder: Path, text: bytes) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text in file.read_bytes()]


def test_it_is_gone_from_the_log_and_its_files(lake: LakeBeside, topic: str) -> None:
    data = lake.log.served.data_dir
    assert files_with(data, b"secret of bob")
    done = erase(lake, topic, "--tag", "bob")
    assert (done["deleted"], done["lake"], done["left"]) == (2, None, [])
    assert not files_with(data, b"secret of bob")
    assert [record["$seq"] for record in lake.log.records(topic)] == [1, 3, 5, 6]
    # Again: there is nothing to do, and nothing left.
    assert erase(lake, topic, "--tag", "bob")["deleted"] == 0


def test_it_is_gone_from_the_lake_and_its_files(lake: LakeBeside, topic: str) -> None:
    lake.sync(topic)
    done = erase(lake, topic, "--tag", "bob", "--lake", str(lake.root))
    assert (done["deleted"], done["left"]) == (2, [])
    assert done["lake"]["rows_deleted"] == 2
    assert lake.told(topic) == [1, 3, 5, 6]
    assert lake.audit() == []
    lake.sync(topic)
    assert lake.told(topic) == [1, 3, 5, 6]


def test_what_only_the_lake_has_is_emptied(lake: LakeBeside, topic: str) -> None:
    """The log evicted them, or their epoch is over: nothing but the row explains the seq."""
    lake.sync(topic)
    lake.log.evict(topic, 1)
    done = erase(lake, topic, "--tag", "bob", "--lake", str(lake.root))
    assert (done["deleted"], done["lake"]["rows_emptied"], done["left"]) == (0, 2, [])
    emptied = lake.rows(topic)[1]
    assert (emptied["seq"], emptied["_kind"]) == (2, "record")
    assert (emptied["data"], emptied["tag"], emptied["meta"]) == (None, None, None)
    assert lake.audit() == []
    lake.log.recreate(topic)
    lake.sync(topic)
    done = erase(lake, topic, "--tag", "e*", "--lake", str(lake.root))
    assert (done["lake"]["rows_emptied"], done["left"]) == (2, [])
    assert lake.audit() == []


def test_a_table_outlives_its_topic(lake: LakeBeside, topic: str) -> None:
    lake.sync(topic)
    assert lake.log.client.delete(f"/v0/topics/{topic}").status == 200
    said = run(
        "erase", topic, "--tag", "bob", "--prove", "--json", "--lake", str(lake.root),
        TOPICS_URL=lake.log.url,
    )  # fmt: skip
    assert (said.json["lake"]["rows_emptied"], said.json["left"]) == (2, [])


def test_the_proof_fails_when_a_byte_is_left(lake: LakeBeside, topic: str, tmp_path: Path) -> None:
    """A file that somebody copied within the lake, or within the data directory."""
    lake.sync(topic)
    (file,) = lake.path(topic).glob("*.parquet")
    other = lake.root / "copies"
    other.mkdir()
    shutil.copy(file, other / "copy.parquet")
    kept = tmp_path / "kept"
    shutil.copytree(lake.log.served.data_dir, kept)
    done = erase(
        lake, topic, "--tag", "bob", "--lake", str(lake.root), "--data-dir", str(kept), code=1
    )
    found = [Path(path) for path in done["left"]]
    assert other / "copy.parquet" in found
    assert any(kept in path.parents for path in found)
    assert len(found) >= 2


def test_nothing_is_erased_when_a_place_is_not_there(lake: LakeBeside, topic: str) -> None:
    for option in ("--lake", "--data-dir"):
        said = run(
            "erase", topic, "--tag", "bob", option, "/nowhere/at/all", code=1,
            TOPICS_URL=lake.log.url,
        )  # fmt: skip
        assert "there is no" in said.err
    assert len(lake.log.records(topic)) == 6
    run("erase", topic, code=2)
    missing = run("erase", "no-such-topic", "--tag", "x", code=1, TOPICS_URL=lake.log.url)
    assert "no-such-topic" in missing.err
