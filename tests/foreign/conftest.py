from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node() -> str:
    """Node, with the packages of package-lock.json beside the tests."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    with (HERE / ".installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HERE / "node_modules" / ".package-lock.json").exists():
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    return found


@pytest.fixture(scope="session")
def go_stream(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reader in Go, built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    binary = tmp_path_factory.mktemp("go") / "stream"
    subprocess.run([go, "build", "-o", str(binary), "stream.go"], cwd=HERE, check=True)
    return str(binary)
