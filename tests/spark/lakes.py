"""A lake beside a log: the commands as scripts call them, and the tables as anything reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from tests.spark.support import Log
from tests.support.commands import here
from tests.support.servers import environment


@dataclass
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class LakeBeside:
    """A lake in a folder, and the log that it is synced with."""

    log: Log
    root: Path

    def run(self, *arguments: str, code: int = 0) -> Said:
        """`topics lake …` in this process, whose Spark runs already."""
        return run(
            "lake", *arguments, code=code, TOPICS_LAKE=str(self.root), TOPICS_URL=self.log.url
        )

    def sync(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        said = self.run("sync", *arguments, "--once", "--json", code=code)
        found: list[dict[str, Any]] = said.json if code == 0 else []
        return found

    def audit(self, code: int = 0) -> list[dict[str, Any]]:
        """What it found; clean unless the code says otherwise."""
        answer = self.run("audit", "--json", code=code).json
        assert answer["ok"] == (code == 0) == (not answer["problems"])
        found: list[dict[str, Any]] = answer["problems"]
        return found

    def gaps(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.run("gaps", "--json").json
        return found

    def path(self, topic: str) -> Path:
        return self.root / "topics" / topic.replace(":", "~")

    def table(self, topic: str) -> DeltaTable:
        return DeltaTable(self.path(topic))

    def rows(self, topic: str) -> list[dict[str, Any]]:
        return _rows(self.table(topic))

    def letters_path(self, topic: str) -> Path:
        return self.root / "_dlq" / topic.replace(":", "~")

    def letters(self, topic: str) -> list[dict[str, Any]]:
        """The dead letters."""
        return _rows(DeltaTable(self.letters_path(topic)))

    def told(self, topic: str) -> list[Any]:
        """Seqs of records, and (first, last, reason) of gaps, in order of epoch and seq."""
        return [
            row["seq"]
            if row["_kind"] == "record"
            else (row["seq"], row["_gap_to"], row["_gap_reason"])
            for row in self.rows(topic)
        ]


def files_with(folder: Path, text: str) -> list[Path]:
    """Files of tables that hold this text: rows, and what their logs say of them."""
    return [
        file for file in folder.rglob("*") if file.is_file() and text.encode() in _content(file)
    ]


def _content(file: Path) -> bytes:
    if file.suffix != ".parquet":
        return file.read_bytes()
    return str(pq.read_table(file).to_pylist()).encode()


def _rows(table: DeltaTable) -> list[dict[str, Any]]:
    query = QueryBuilder().register("t", table)
    found = pa.table(query.execute("SELECT * FROM t").read_all()).to_pylist()
    return sorted(found, key=lambda row: (int(row["epoch"]), row["seq"]))


def run(*arguments: str, code: int = 0, **variables: str) -> Said:
    """The command line in this process."""
    ended = here(*arguments, environment=environment(NO_COLOR="1", **variables))
    said = Said(ended.returncode, ended.stdout, ended.stderr)
    assert said.code == code, said
    return said
