"""A server for the commands that speak to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands import Topics
from tests.support.servers import Inside, inside
from topics import Client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("cli") / "data") as served:
        yield served


@pytest.fixture
def url(server: Inside) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def topics(url: str) -> Topics:
    return Topics(url)
