"""The engine for whoever embeds it: any path, real signatures, values that read well."""

from __future__ import annotations

import datetime
import decimal
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.engines import World
from topics import Engine, Hold, InvalidRequest, Page, Record, Settings, Tombstone, TopicConfig

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_on_embedding_does_what_it_says(
    tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block runs as it stands, the recipes for threads included."""
    exec(compile(BLOCKS[number], "embedding.md", "exec"), {"path": tmp_path / "data"})
    assert capsys.readouterr().out.strip() in ("1 {'n': 1}", "100", "1")


def test_any_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text, a Path, a relative one, one that is not there yet."""
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "a"), tmp_path / "b" / "deep", Path("c"), "d"):
        with Engine.open(path) as engine:
            engine.append("t", [{"data": 1}])
        with Engine.open(path) as engine:
            assert engine.state("t").head_seq == 1
    with Engine.open(b"e") as engine:  # type: ignore[arg-type]
        engine.append("t", [{"data": 1}])
    assert {entry.name for entry in tmp_path.iterdir()} == {"a", "b", "c", "d", "e"}


def test_the_directory_of_a_few_records_is_small(tmp_path: Path) -> None:
    """The files of the log are allocated when they are made."""
    with Engine.open(tmp_path) as engine:
        engine.append("t", [{"data": 1}])
        size = sum(entry.stat().st_blocks * 512 for entry in tmp_path.rglob("*") if entry.is_file())
    assert size < 6 * 1024 * 1024


def test_a_large_write_fits_small_files_of_the_log(tmp_path: Path) -> None:
    """A group that is larger than a file gets one of its size."""
    with Engine.open(tmp_path) as engine:
        for _ in range(3):
            engine.append("t", [{"data": "x" * 1_000_000}] * 12)
    with Engine.open(tmp_path) as engine:
        assert engine.state("t").count == 36


@pytest.mark.parametrize(
    "value",
    [
        b"x", bytearray(b"x"), {1, 2}, frozenset(),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        datetime.date(2024, 1, 1), datetime.timedelta(1), uuid.UUID(int=1), decimal.Decimal(1),
        float("nan"), float("inf"), object(), 1j, Tombstone, {"a": [b"x"]}, [{"b": {1}}],
        {("a",): 1},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_not_json_is_refused(world: World, value: Any) -> None:
    """It would read back as something else."""
    with pytest.raises(InvalidRequest, match="is not JSON"):
        world.engine.append("t", [{"data": value}])
    assert world.engine.list_topics() == []


def test_what_is_json_reads_back_as_it_was(world: World) -> None:
    """Values, and raw JSON text in its own spelling."""
    values: list[Any] = [
        None, True, 0, -1, 2**70, 1.5, -0.0, "", "é\n\"", [], {}, [1, [2, {"a": None}]],
        {"b": 1, "a": 2},
    ]  # fmt: skip
    world.engine.append("t", [{"data": value} for value in values])
    world.engine.append("t", [{"data": msgspec.Raw(b'{"n": 1.0}')}])
    records = world.engine.diff("t").records
    assert [record.value for record in records] == [*values, {"n": 1.0}]
    assert bytes(records[-1].data) == b'{"n": 1.0}'


def test_records_and_jobs_show_their_json_and_have_a_value(world: World) -> None:
    """In a prompt or a log one sees what was written."""
    engine = world.engine
    engine.put_topic("q", type="queue")
    engine.append("q", [{"data": {"n": 1}, "tag": "x", "node": "w", "meta": {"k": "v"}}])
    (record,) = engine.diff("q", include_tags=True).records
    shown = f"Record(seq=1, ts={record.ts}, data={{\"n\":1}}, node='w', tag='x', meta={{'k': 'v'}})"
    assert repr(record) == shown
    (same,) = engine.range("q", from_seq=0).records
    assert (same.seq, same.value) == (1, {"n": 1})
    (job,) = engine.claim("q", "w").jobs
    assert job.value == {"n": 1}
    assert (job.record.seq, job.record.meta) == (1, {"k": "v"})
    assert '"data":{"n":1}' in repr(job)


def test_fields_of_a_config_can_be_given_by_name(world: World) -> None:
    """Or as a mapping, or both."""
    config, created = world.engine.put_topic("t", cap_records=5, discard="reject")
    assert (config.cap_records, config.discard, created) == (5, "reject", True)
    config, _ = world.engine.put_topic("t", {"cap_records": 5}, ttl_ms=7)
    assert (config.cap_records, config.ttl_ms, config.discard) == (5, 7, "old")
    with pytest.raises(InvalidRequest):
        world.engine.put_topic("t", tll_ms=7)  # type: ignore[call-arg]


def test_what_calls_take_and_give_is_exported() -> None:
    """Annotations need no private module."""
    kinds = (Page, Record, Tombstone, TopicConfig, Settings, Hold)
    assert all(isinstance(kind, type) for kind in kinds)


WRONG = """
from topics import Engine
def f(engine: Engine) -> None:
    engine.diff("t", form_seq=3)
    engine.range("t", form_seq=3)
    engine.put_cursor("t", "c", sec=3)
    engine.put_topic("t", cap_record=3)
    engine.patch_topic("t", cap_record=3)
    engine.diff("t", from_seq="3")
"""


@pytest.mark.slow
def test_a_type_checker_refuses_what_no_call_takes(tmp_path: Path) -> None:
    """A misspelt option is found before it runs."""
    (tmp_path / "wrong.py").write_text(WRONG)
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", str(tmp_path / "wrong.py")],
        capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    lines = {int(found) for found in re.findall(r"wrong\.py:(\d+): error", done.stdout)}
    assert lines == set(range(4, 10)), done.stdout
