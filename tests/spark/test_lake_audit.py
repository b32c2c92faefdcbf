"""`topics lake audit`: what is taken away behind its back is found; and what only looks."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.spark.lakes import LakeBeside, run
from tests.spark.support import Log
from tests.support.servers import Served


@pytest.fixture
def lake(log: Log, tmp_path: Path) -> LakeBeside:
    return LakeBeside(log, tmp_path / "lake")


@pytest.fixture
def topic(lake: LakeBeside) -> str:
    return synced(lake)


@pytest.fixture(scope="module")
def kept(
    served: Served, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A topic that nobody touches, and a lake to be copied: a copy audits the same."""
    with served.client() as client:
        lake = LakeBeside(Log(served, client, spark, "kept"), tmp_path_factory.mktemp("kept") / "l")
        yield synced(lake), lake.root


@pytest.fixture
def copied(lake: LakeBeside, kept: tuple[str, Path]) -> str:
    """The topic of a lake that is a copy."""
    shutil.copytree(kept[1], lake.root)
    return kept[0]


def synced(lake: LakeBeside) -> str:
    """Records 1 to 4 of which 2 is deleted, the cap's gap 5 to 8, records 9 and 10."""
    topic = lake.log.topic()
    lake.log.write_records(topic, *({"data": n, "tag": f"t{n}"} for n in range(1, 5)))
    delete(lake, topic, "t2")
    lake.sync(topic)
    lake.log.evict(topic, 2)
    lake.log.write_records(topic, *({"data": n, "tag": f"t{n}"} for n in range(5, 11)))
    lake.sync(topic)
    assert lake.told(topic) == [1, 3, 4, (5, 8, "cap"), 9, 10]
    assert lake.audit() == []
    return topic


def delete(lake: LakeBeside, topic: str, tag: str) -> None:
    reply = lake.log.client.post(f"/v0/topics/{topic}/delete", {"match": ["tag", "Eq", tag]})
    assert reply.json["deleted"] == 1


def found(lake: LakeBeside, topic: str) -> list[tuple[int, int, str]]:
    problems = lake.audit(code=1)
    assert {problem["topic"] for problem in problems} == {topic}
    assert all(set(p) == {"topic", "epoch", "first", "last", "problem"} for p in problems)
    return [(p["first"], p["last"], p["problem"].partition(":")[0]) for p in problems]


@pytest.mark.parametrize(
    ("taken", "first", "last", "problem"),
    [
        ("seq = 9", 9, 9, "missing"),
        ("seq = 10", 10, 10, "missing"),
        ("seq = 3", 3, 3, "lost without a gap"),
        ("_kind = 'gap'", 5, 8, "lost without a gap"),
    ],
)
def test_a_row_that_is_taken_away_is_found(
    lake: LakeBeside, copied: str, taken: str, first: int, last: int, problem: str
) -> None:
    """The last one, too: its row does not take the position along."""
    lake.table(copied).delete(taken)
    assert found(lake, copied) == [(first, last, problem)]


def test_a_table_that_was_emptied_is_found(lake: LakeBeside, copied: str) -> None:
    lake.table(copied).delete()
    assert [problem[:2] for problem in found(lake, copied)] == [(1, 1), (3, 8), (9, 10)]


def test_rows_that_are_there_twice_are_found(lake: LakeBeside, copied: str) -> None:
    rows = lake.rows(copied)
    schema = lake.table(copied).schema().to_arrow()
    write_deltalake(
        lake.table(copied), pa.Table.from_pylist(rows[1:4], schema=pa.schema(schema)), mode="append"
    )
    assert found(lake, copied) == [
        (5, 8, "duplicate"), (3, 4, "duplicate"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "problems"),
    [
        ({"seq": 6}, [(6, 6, "both a record and in a gap")]),
        (
            {"_kind": "gap", "_gap_to": 9, "seq": 9},
            [
                (9, 9, "a gap over records that the server has"),
                (9, 9, "both a record and in a gap"),
            ],
        ),
    ],
)
def test_rows_that_contradict_are_found(
    lake: LakeBeside, copied: str, changed: dict[str, Any], problems: list[tuple[int, int, str]]
) -> None:
    row = lake.rows(copied)[0] | changed
    schema = pa.schema(lake.table(copied).schema().to_arrow())
    write_deltalake(lake.table(copied), pa.Table.from_pylist([row], schema=schema), mode="append")
    assert found(lake, copied) == problems


def test_an_account_that_is_taken_away_is_found(lake: LakeBeside, topic: str) -> None:
    """Of an epoch that is over nobody else can say what was deleted in it."""
    lake.log.recreate(topic, 1)
    lake.sync(topic)
    assert lake.audit() == []
    old = str(int(lake.rows(topic)[0]["epoch"]))
    file = lake.root / "_accounts" / topic / f"{old}.json"
    kept = file.read_bytes()
    file.unlink()
    assert found(lake, topic) == [
        (1, 10, "the epoch is over, and its account is not in the lake"),
        (2, 2, "unaccounted"),
    ]
    file.write_bytes(kept)
    lake.table(topic).delete("_gap_reason = 'recreated'")
    assert found(lake, topic) == [(11, 10, "the epoch is over, and no gap says so")]


def test_an_account_of_the_epoch_that_lasts_is_missed(lake: LakeBeside, copied: str) -> None:
    """Once the epoch is over it is the only one; and it says how far commits came."""
    shutil.rmtree(lake.root / "_accounts")
    assert found(lake, copied) == [(1, 10, "the account of this epoch is not in the lake")]


def test_a_table_that_is_taken_away_is_found(lake: LakeBeside, copied: str) -> None:
    """What is not there can not be said to be right, with a pattern or without one."""
    shutil.rmtree(lake.path(copied))
    assert found(lake, copied) == [(1, 10, "the table is not there")]
    lake.sync(copied)
    assert lake.audit() == []
    assert lake.told(copied) == [(1, 8, "cap"), 9, 10]


def test_a_row_of_an_epoch_that_is_over_is_missed(lake: LakeBeside, topic: str) -> None:
    lake.log.recreate(topic, 1)
    lake.sync(topic)
    old = lake.rows(topic)[0]["epoch"]
    lake.table(topic).delete(f"epoch = '{old}' AND seq >= 9")
    assert found(lake, topic)[-1] == (9, 10, "unaccounted")


def test_what_the_server_deletes_later_is_no_finding(lake: LakeBeside, topic: str) -> None:
    delete(lake, topic, "t9")
    assert lake.audit() == []
    lake.log.recreate(topic, 1)
    assert lake.audit() == []
    lake.sync(topic)
    assert lake.audit() == []


def test_a_copied_lake_audits_the_same(lake: LakeBeside, topic: str, tmp_path: Path) -> None:
    lake.log.recreate(topic, 1)
    lake.sync(topic)
    copy = LakeBeside(lake.log, tmp_path / "copy")
    shutil.copytree(lake.root, copy.root)
    shutil.rmtree(lake.root)
    assert copy.audit() == []
    assert copy.told(topic)[-1] == 1
    copy.sync(topic)
    assert copy.told(topic)[-1] == 1
    copy.table(topic).delete("seq = 1")
    assert copy.audit(code=1)


def test_a_lake_without_its_server(lake: LakeBeside, copied: str) -> None:
    """The ledger needs no server; audit, status and sync say that it is away."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = {
            "TOPICS_URL": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "TOPICS_LAKE": str(lake.root),
        }
        for arguments in (
            ["audit"], ["audit", "--json"], ["status"],
            ["sync", "*", "--once", "--give-up-after", "1s"],
            ["sync", "*", "--continuous", "--give-up-after", "1s"],
        ):  # fmt: skip
            assert run("lake", *arguments, code=3, **away).out == ""
        assert len(run("lake", "gaps", "--json", **away).json) == 1


def test_what_is_not_there(lake: LakeBeside, tmp_path: Path) -> None:
    for arguments in (["audit"], ["gaps"], ["status"], ["optimize"], ["vacuum"]):
        said = run(
            "lake", *arguments, "--lake", str(tmp_path / "no"), code=1, TOPICS_URL=lake.log.url
        )
        assert "there is no lake" in said.err
    lake.sync(lake.log.topic(1))
    for arguments in (["audit"], ["gaps"], ["status"], ["optimize"], ["vacuum"]):
        assert "no table of the lake" in lake.run(*arguments, "nothing*", code=1).err
    lake.run("sync", "--once", code=2)
    lake.run("sync", "*", "--once", "--continuous", code=2)
    lake.run("vacuum", "--retention-hours", "-1", code=2)


def test_status_says_how_far_each_table_is(lake: LakeBeside, topic: str) -> None:
    epoch = lake.log.state(topic)["epoch"]
    lake.log.write(topic, 1, 2)
    behind = {"topic": topic, "epoch": epoch, "seq": 10, "head_seq": 12, "lag": 2}
    assert lake.run("status", "--json").json == [behind]
    cursors = lake.log.client.get(f"/v0/topics/{topic}/cursors").json["cursors"]
    assert [(cursor["seq"], cursor["lag"]) for cursor in cursors] == [(10, 2)]
    assert cursors[0]["cursor"].startswith("lake-")
    assert lake.log.client.delete(f"/v0/topics/{topic}").status == 200
    gone = behind | {"head_seq": None, "lag": None}
    assert lake.run("status", "--json").json == [gone]
    assert lake.audit() == []
