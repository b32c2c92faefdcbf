"""docs/queues.md does what it says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.queues.conftest import Queue
from tests.support.servers import Client, Inside, inside

TEXT = (Path(__file__).parents[3] / "docs" / "queues.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path) as server:
        yield server


def on_its_port(code: str, server: Inside) -> str:
    return code.replace("localhost:4000", f"localhost:{server.port}")


def shell(server: Inside, code: str) -> str:
    """Runs commands one after the other and returns what they print."""
    quiet = on_its_port(code, server).replace("curl ", "curl -sS --max-time 5 ")
    done = subprocess.run(["sh", "-c", quiet], capture_output=True, text=True, check=False)
    # 28 is a stream that was still open when its time was up.
    assert done.returncode in (0, 28), done.stderr
    return done.stdout


def test_five_calls_are_the_life_of_a_job(fresh: Inside) -> None:
    said = shell(fresh, BLOCKS[0][1])
    assert '"count":2' in said
    assert '"acked":2' in said
    assert '"queue":{"ready":0,"in_flight":0,"dead_lettered":0}' in said


def test_the_worker_settles_every_job(fresh: Inside) -> None:
    (code,) = [code for kind, code in BLOCKS if kind == "python"]
    scope: dict[str, Any] = {}
    exec(on_its_port(code, fresh), scope)
    with fresh.client() as client:
        queue = Queue(client, "emails").configure()
        queue.fill("good", "bad", "good")
        handled = []

        def handle(data: str) -> None:
            handled.append(data)
            if data == "bad":
                raise ValueError(data)

        scope["work"](handle)
        assert handled == ["good", "bad", "good"]
        # The bad one waits for its delay.
        assert queue.counts == (0, 0, 0)
        assert client.get(queue.path).json["count"] == 1


def test_a_push_has_the_jobs(fresh: Inside) -> None:
    with Client(fresh.port) as client:
        Queue(client, "emails").configure().fill("a")
    (code,) = [code for kind, code in BLOCKS if kind == "sh" and "/work?" in code]
    said = shell(fresh, code.replace("curl -N ", "curl -N --max-time 1 "))
    assert "event: job" in said
