"""Clients that nobody here wrote, with many requests at once, on one connection where they can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import Served

HERE = Path(__file__).parent
WORKERS, WRITES = 16, 20
# Beside its writes each reads megabytes, and has an upload refused that is on its way.
ANSWERS = WORKERS * (WRITES + 2)
LARGE_RECORDS = 30
WAIT_S = 60

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path).wait_ready() as served:
        with served.client() as client:
            for _ in range(LARGE_RECORDS):
                assert client.write("large", "x" * 100_000).status in (200, 201)
        yield served


def work(served: Served, *command: str) -> None:
    """Everything was answered, and each record was written once."""
    url = f"http://127.0.0.1:{served.port}/v0"
    done = subprocess.run(
        [part.replace("URL", url) for part in command],
        cwd=HERE, capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == (str(ANSWERS), 0), done.stderr[-2000:]
    with served.client() as client:
        page = client.post("/v0/topics/small/range", {"from_seq": 0}).json
    assert page["complete"]
    wanted = sorted(f"{worker}-{number}" for worker in range(WORKERS) for number in range(WRITES))
    assert sorted(record["data"] for record in page["records"]) == wanted


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_httpx(served: Served, version: str) -> None:
    work(served, sys.executable, "httpx_many.py", "URL", version)


def test_node(served: Served, node: str) -> None:
    work(served, node, "many.mjs", "URL")


def test_go(served: Served, built_go: Callable[[str], str]) -> None:
    work(served, built_go("many.go"), "URL")
