"""What `make` would do, in a copy of what it looks at: nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
READ = ("Makefile", "pyproject.toml", "constraints.txt")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in READ:
        shutil.copy(ROOT / name, tmp_path)
        os.utime(tmp_path / name, (1_700_000_000, 1_700_000_000))
    (tmp_path / ".venv").mkdir()
    return tmp_path


def would(checkout: Path, *arguments: str) -> str:
    command = ["make", "-n", "-C", str(checkout), *arguments]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stdout


def test_run_installs_what_running_needs_and_says_so(checkout: Path) -> None:
    said = would(checkout, "run")
    assert "installing . and what it needs into .venv" in said
    assert "-e '.'" in said
    assert "dev" not in said.partition("pip install")[2]
    assert said.index("-e '.'") < said.index("topics serve")


def test_run_installs_nothing_where_there_is_enough(checkout: Path) -> None:
    """Also where there is more: the environment of `make setup` is not built anew for less."""
    for stamp in (".built-run", ".built-dev+spark", ".built-dev"):
        path = checkout / ".venv" / stamp
        path.touch()
        said = would(checkout, "run")
        assert "pip" not in said
        assert "rm -rf" not in said
        assert "topics serve" in said
        path.unlink()


def test_setup_builds_on_nothing_that_run_has_left(checkout: Path) -> None:
    (checkout / ".venv" / ".built-run").touch()
    said = would(checkout, "setup", "EXTRAS=dev")
    assert said.index("rm -rf .venv") < said.index("-e '.[dev]'")


def test_a_changed_dependency_is_installed(checkout: Path) -> None:
    """By `run` what `run` has made, by `setup` what `setup` has."""
    for stamp, target in ((".built-run", "."), (".built-dev+spark", ".[dev,spark]")):
        path = checkout / ".venv" / stamp
        path.touch()
        os.utime(path, (1_600_000_000, 1_600_000_000))
        assert f"-e '{target}'" in would(checkout, "run")
        path.unlink()
