from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable
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
def built_go(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Builds a program in Go of this folder, and says where it is."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")

    def build(source: str) -> str:
        binary = tmp_path_factory.mktemp("go") / source.removesuffix(".go")
        subprocess.run([go, "build", "-o", str(binary), source], cwd=HERE, check=True)
        return str(binary)

    return build
