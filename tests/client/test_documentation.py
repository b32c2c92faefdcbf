"""The code in README.md and docs/client.md does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Inside, environment, inside

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
PLACE = "127.0.0.1:4000"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "served") as server:
        yield server


@pytest.mark.parametrize("page", ["docs/client.md", "README.md"])
def test_every_block_of_python_runs(
    page: str, fresh: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, as somebody who reads along would."""
    monkeypatch.chdir(tmp_path)
    blocks = PYTHON.findall((ROOT / page).read_text())
    assert len(blocks) >= 2
    for block in blocks:
        if "pytest_plugins" in block:
            continue
        scope: dict[str, Any] = {"__name__": "example", "path": tmp_path / "own"}
        exec(compile(block.replace(PLACE, f"127.0.0.1:{fresh.port}"), page, "exec"), scope)


@pytest.mark.slow
def test_the_commands_of_the_readme_run(fresh: Inside, tmp_path: Path) -> None:
    """Those that speak to a server; `make` is tested by whoever runs this."""
    blocks = [
        code for code in SHELL.findall((ROOT / "README.md").read_text()) if "make" not in code
    ]
    assert len(blocks) >= 2
    variables = environment(TOPICS_URL=f"http://127.0.0.1:{fresh.port}")
    command = f"{sys.executable} -m topics"
    for block in blocks:
        code = block.replace("localhost:4000", f"localhost:{fresh.port}")
        code = re.sub(r"(^|\| )topics ", rf"\1{command} ", code, flags=re.MULTILINE)
        done = subprocess.run(
            ["sh", "-ec", code], capture_output=True, text=True, check=False, cwd=tmp_path,
            env=variables,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"error"' not in done.stdout
