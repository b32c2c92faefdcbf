"""A real server for the client's tests, one for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Inside, inside
from topics import Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    directory: Path = tmp_path_factory.mktemp("client") / "data"
    with inside(directory) as served:
        yield served


@pytest.fixture
def url(server: Inside) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client
