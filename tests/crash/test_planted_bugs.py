"""The suites themselves are tested: each planted bug must make an ordinary part of them fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness.mutant import SOURCE, Mutant, plant
from tests.crash.harness.mutants import MUTANTS
from tests.crash.harness.subset import FOUND

ROOT = Path(__file__).parents[2]
SECONDS = 60


def search(
    mutant: Mutant | None, directory: Path, seconds: float, area: str
) -> subprocess.CompletedProcess[str]:
    plant(mutant, directory / "src")
    first = "" if mutant is None else mutant.first
    environment = {
        **os.environ,
        "PYTHONPATH": f"{directory / 'src'}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.crash.harness.subset", str(seconds), area, first],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def expect_caught(mutant: Mutant, directory: Path, tally: Callable[..., None]) -> None:
    result = search(mutant, directory, SECONDS, mutant.area)
    tally(mutants=1, mutants_caught=int(result.returncode == FOUND))
    assert result.returncode == FOUND, f"not caught: {mutant.name}\n{result.stdout}{result.stderr}"


def by_name(is_quick: bool) -> list[object]:
    return [pytest.param(m, id=m.name) for m in MUTANTS if m.is_quick == is_quick]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_has_its_one_place(mutant: Mutant) -> None:
    """Whoever changes the text of it hears of it at once, and not from the long suites."""
    for file, old, _ in mutant.changes:
        text = (SOURCE / "topics" / file).read_text()
        assert text.count(old) == 1, f"{text.count(old)} places in {file}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", by_name(True))
def test_a_planted_bug_is_caught(
    mutant: Mutant, tmp_path: Path, tally: Callable[..., None]
) -> None:
    expect_caught(mutant, tmp_path, tally)


@pytest.mark.full(share=0.5)
@pytest.mark.parametrize("mutant", by_name(False))
def test_a_rarer_planted_bug_is_caught(
    mutant: Mutant, tmp_path: Path, tally: Callable[..., None]
) -> None:
    expect_caught(mutant, tmp_path, tally)


@pytest.mark.full
@pytest.mark.parametrize(
    "area", ["log", "queue", "router", "chain", "whole", "stage", "kv", "backup", "class"]
)
def test_without_a_planted_bug_nothing_is_found(area: str, tmp_path: Path, deadline: float) -> None:
    result = search(None, tmp_path, min(deadline - time.monotonic(), 120), area)
    assert result.returncode == 0, result.stdout + result.stderr
