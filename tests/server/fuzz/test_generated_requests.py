"""Requests that schemathesis generates from the server's own document, valid and invalid.

Every check of schemathesis is on: no server error, nothing undocumented, answers as described,
what fits the document is taken and what does not is refused, what was deleted is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Served

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SEED = 20_240_607
QUICK_EXAMPLES = 20
ROUND_EXAMPLES = 100
ROUNDS_MAX = 10
SECRET = "fuzzer-secret"

Tally = Callable[..., None]


def fuzz(served: Served, directory: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """One run of schemathesis against a server; its report, after it found nothing."""
    with served.wait_ready(SECRET).client(SECRET) as client:
        assert client.write("kept", *range(3)).status in (200, 201)
        assert client.put("/v0/topics/kept-queue", {"type": "queue"}).status in (200, 201)
        assert client.write("kept-queue", *range(100)).status == 200
    report = directory / "report.json"
    command = [
        "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run",
        f"http://127.0.0.1:{served.port}/v0/openapi.json", "--checks", "all", "--no-color",
        "--report-json-path", str(report), *arguments,
    ]  # fmt: skip
    ended = subprocess.run(
        [sys.executable, *command], cwd=directory, capture_output=True, text=True, check=False,
        env={
            **os.environ, "SCHEMATHESIS_HOOKS": "tests.server.fuzz.hooks",
            "PYTHONPATH": str(ROOT), **variables,
        },
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2000:]
    assert '"level":"error"' not in served.log(), "the server's log has an error"
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def figures(report: dict[str, Any]) -> dict[str, int]:
    assert report["complete"]
    assert report["operations"]["tested"] == report["operations"]["total"]
    return {
        "fuzz_runs": 1,
        "fuzz_operations": report["operations"]["tested"],
        "fuzz_requests": report["test_cases"]["generated"],
        "fuzz_failures": report["test_cases"]["unique_failures"],
        "fuzz_rules": report["filtered"],
    }


def unreached(report: dict[str, Any]) -> set[str]:
    """Operations none of whose valid requests was taken."""
    return {
        operation
        for operation, phases in report["valid_rates"].items()
        if not any(counts["accepted"] for counts in phases.values())
    }


@pytest.mark.slow
def test_generated_requests_are_answered_as_documented(tmp_path: Path, tally: Tally) -> None:
    with Served(tmp_path) as served:
        report = fuzz(served, tmp_path, "-n", str(QUICK_EXAMPLES), "--seed", str(SEED))
        assert served.stop() == 0
    # An HTTP client does not get beyond the door of a WebSocket.
    assert unreached(report) == {"GET /v0/ws"}
    tally(**figures(report))


@pytest.mark.slow
def test_no_generated_request_gets_past_the_key(tmp_path: Path, tally: Tally) -> None:
    """With keys, the document says so, and every operation refuses requests without one."""
    with Served(tmp_path, TOPICS_API_KEYS=SECRET, TOPICS_PROBE_AUTH="1") as served:
        header = ("--header", f"Authorization: Bearer {SECRET}")
        limits = ("--phases", "fuzzing", "-n", "5", "--seed", str(SEED))
        report = fuzz(served, tmp_path, *header, *limits)
        assert served.stop() == 0
    tally(**figures(report))


@pytest.mark.full(share=2)
@pytest.mark.timeout(0)
def test_many_generated_requests(tmp_path: Path, deadline: float, tally: Tally) -> None:
    """Up to a thousand for each operation in every phase, as the time allows."""
    with Served(tmp_path) as served:
        for number in range(ROUNDS_MAX):
            seed = str(SEED + number)
            report = fuzz(served, tmp_path, "-n", str(ROUND_EXAMPLES), "--seed", seed)
            tally(**figures(report))
            if time.monotonic() > deadline:
                break
        assert served.stop() == 0
