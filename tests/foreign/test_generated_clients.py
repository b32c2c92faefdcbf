"""Clients that generators make of the document: they write, read, claim and acknowledge."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Served

HERE = Path(__file__).parent
# Beside what the tests run with, so that a clean start of that is one of this, too.
ENVIRONMENT = Path(sys.prefix) / "generator"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("generated")) as served:
        yield served.wait_ready()


@pytest.fixture(scope="module")
def document(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    with served.client() as client:
        path.write_bytes(client.get("/v0/openapi.json").raw)
    return path


@pytest.fixture(scope="module")
def generator() -> Path:
    """The environment of openapi-python-client, made when it is first asked for."""
    with (HERE / ".installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = ENVIRONMENT / "made"
        if not stamp.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
            subprocess.run(
                [ENVIRONMENT / "bin" / "pip", "install", "--quiet", "-r", HERE / "generator.txt"],
                check=True,
            )
            stamp.touch()
    return ENVIRONMENT / "bin"


def test_a_client_in_python_is_made_and_works(
    served: Served, document: Path, generator: Path, tmp_path: Path
) -> None:
    """By openapi-python-client, without a word about anything that it can not make."""
    environment = {**os.environ, "PATH": f"{generator}:{os.environ['PATH']}", "PYTHONPATH": ""}
    made = subprocess.run(
        [generator / "openapi-python-client", "generate", "--path", document, "--meta", "none",
         "--output-path", tmp_path / "topics_api", "--fail-on-warning"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    used = subprocess.run(
        [generator / "python", HERE / "generated_client.py", f"http://127.0.0.1:{served.port}"],
        capture_output=True, text=True, check=False,
        env={**environment, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert used.stdout == "done\n", used.stderr


def test_types_for_typescript_are_made_and_fit(
    served: Served, document: Path, node: str, tmp_path: Path
) -> None:
    """By openapi-typescript; what uses them passes the strictest check, and works."""
    (tmp_path / "node_modules").symlink_to(HERE / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "client.ts").write_text((HERE / "generated_client.ts").read_text())
    tools = HERE / "node_modules" / ".bin"
    for command in (
        [tools / "openapi-typescript", document, "-o", tmp_path / "api.d.ts"],
        [tools / "tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck",
         "client.ts"],
        [node, "client.js", f"http://127.0.0.1:{served.port}"],
    ):  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done\n"
