"""Damaged files of stages: those of a commit are a part of the log, others cost themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.directories import image
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.offline.check import check
from topics.engine.offline.repair import repair
from topics.errors import CorruptData, StageExpired
from topics.settings import Settings
from topics.storage.fs import OsFs
from topics.types import Committed

pytestmark = pytest.mark.slow

SETTINGS = Settings(threads=False, wal_shards=2)
Damage = Callable[[Path], None]


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:30])


def removed(path: Path) -> None:
    path.unlink()


def opened(path: Path) -> Engine:
    return Engine.open(str(path), settings=SETTINGS)


def filled(path: Path) -> tuple[list[str], Committed]:
    """Stages 1 to 3 are committed to two topics, the fourth is not."""
    with opened(path) as engine:
        engine.append("t", [{"data": "before"}])
        names = [
            engine.stage(topic, [{"data": n} for n in range(3)], producer="p", batch=0).stage
            for topic in ("t", "t", "u")
        ]
        done = engine.commit("p", 0, query="q", stages=names)
        engine.append("t", [{"data": "after"}])
        names.append(engine.stage("t", [{"data": 9}], producer="p", batch=1).stage)
    return names, done


@pytest.mark.parametrize("damage", quick_first([flipped, cut, removed], 1))
@pytest.mark.parametrize("which", quick_first([0, 1], 1))
def test_a_commit_without_a_stage_is_refused_told_and_repaired(
    tmp_path: Path, damage: Damage, which: int
) -> None:
    """Nothing opens by itself; repair makes a corruption of that stage's records only."""
    path = tmp_path / "data"
    names, done = filled(path)
    damage(path / "stage" / f"{names[which]}.stage")
    before = image(path) | {"LOCK": b""}
    with pytest.raises(CorruptData):
        opened(path)
    assert image(path) | {"LOCK": b""} == before
    assert not check(OsFs(), str(path)).ok
    planned = repair(OsFs(), str(path), accept_loss=False, settings=SETTINGS)
    first = done.topics["t"].first_seq + 3 * which
    assert [(lost.topic, lost.first, lost.last) for lost in planned.lost] == [
        ("t", first, first + 2)
    ]
    repaired = repair(OsFs(), str(path), accept_loss=True, settings=SETTINGS)
    assert repaired.applied
    assert not repaired.remaining
    with opened(path) as engine:
        states = [
            part.state for part in engine.explain("t") for _ in range(part.first, part.last + 1)
        ]
        expected = ["live"] * 8
        expected[first - 1 : first + 2] = ["corruption"] * 3
        assert states == expected
        assert engine.commit("p", 0, query="q", stages=[]) == Committed(True, done.topics)
        assert engine.state("u").count == 3
        assert engine.commit("p", 1, query="q", stages=[names[3]]).topics["t"].first_seq == 9


@pytest.mark.parametrize("damage", [flipped, cut, removed])
def test_a_stage_that_nobody_committed_costs_itself(tmp_path: Path, damage: Damage) -> None:
    """A warning of the check; the directory opens, and whoever commits it is told."""
    path = tmp_path / "data"
    names, _ = filled(path)
    damage(path / "stage" / f"{names[3]}.stage")
    report = check(OsFs(), str(path))
    assert report.ok
    assert bool(report.warnings) == (damage is not removed)
    with opened(path) as engine:
        with pytest.raises((StageExpired, CorruptData)):
            engine.commit("p", 1, query="q", stages=[names[3]])
        assert engine.state("t").count == 8


@pytest.mark.parametrize("call", [lambda e: e.scrub(), lambda e: e.rewrite("t")])
def test_nothing_is_left_of_a_deleted_batch(
    tmp_path: Path, call: Callable[[Engine], object]
) -> None:
    """No file of the directory has its bytes, those of its stages included."""
    path = tmp_path / "data"
    with opened(path) as engine:
        secret = "a secret that was staged"
        made = engine.stage("t", [{"data": secret}], producer="p", batch=0)
        engine.commit("p", 0, query="q", stages=[made.stage])
        engine.delete("t", before_seq=2)
        call(engine)
    assert not [f for f in path.rglob("*") if f.is_file() and secret.encode() in f.read_bytes()]
