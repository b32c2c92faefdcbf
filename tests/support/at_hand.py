"""Fixtures: a real server, one for each module, its address, and a client of it.

A conftest imports those that its tests name.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Inside, inside
from topics import Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("server") / "data") as served:
        yield served


@pytest.fixture
def url(server: Inside) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client
