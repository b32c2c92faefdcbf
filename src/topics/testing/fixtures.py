"""Fixtures for pytest: a server for the whole run, and a client for each test.

Put `pytest_plugins = ["topics.testing.fixtures"]` into the conftest at the root of your tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.client.client import Client
from topics.testing.server import ServerThread


@pytest.fixture(scope="session")
def topics_server() -> Iterator[ServerThread]:
    """A server in a thread, shared by all tests: give each its own topics."""
    with ServerThread() as server:
        yield server


@pytest.fixture
def topics_client(topics_server: ServerThread) -> Iterator[Client]:
    with topics_server.client() as client:
        yield client
