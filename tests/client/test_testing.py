"""The servers that are shipped for other people's tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from topics import Unauthorized
from topics.testing.server import ServerProcess, ServerThread

SUITE = """
pytest_plugins = ["topics.testing.fixtures"]

def test_writes(topics_client):
    topics_client.append("mine", [{"data": 1}])

def test_is_the_same_server(topics_server, topics_client):
    assert topics_server.url.startswith("http://127.0.0.1:")
    assert topics_client.topic("mine").count == 1
"""


def test_a_thread_serves_and_is_gone() -> None:
    """With its data."""
    with ServerThread() as server, server.client() as client:
        client.append("t", [{"data": 1}])
    with ServerThread() as server, server.client() as client:
        assert list(client.all_topics()) == []


def test_settings_are_those_of_serve() -> None:
    """Keys, for instance."""
    with ServerThread(api_keys="key") as server:
        with server.client("key") as client:
            client.append("t", [{"data": 1}])
        with server.client() as stranger, pytest.raises(Unauthorized):
            stranger.topic("t")


@pytest.mark.slow
def test_a_process_can_be_killed_and_started_again(tmp_path: Path) -> None:
    """On the same directory and port: who has followed it goes on."""
    with ServerProcess(tmp_path) as server, server.client() as client:
        client.append("t", [{"data": 1}])
        place = server.url
        server.kill()
        server.start()
        assert server.url == place
        assert client.topic("t").count == 1
        server.stop()


@pytest.mark.slow
def test_the_fixtures_work_in_another_suite(tmp_path: Path) -> None:
    """As the documentation says."""
    (tmp_path / "test_mine.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout
