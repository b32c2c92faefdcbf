from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers import Client, Inside, inside
from tests.support.streams import EventSource

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A server without keys, shared: every test has topics of its own."""
    with inside(tmp_path_factory.mktemp("watch")) as served:
        yield served


@pytest.fixture
def client(server: Inside) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name nobody else uses."""
    return f"watched-{next(_numbers)}"


def watch(client: Client, topics: Any, *, query: str = "", **fields: Any) -> dict[str, Any]:
    """A new session; its answer."""
    reply = client.post("/v0/watch" + query, {"topics": topics, **fields})
    assert reply.status == 200, reply.raw
    found: dict[str, Any] = reply.json
    return found


def stream(client: Client, topics: Any, **fields: Any) -> EventSource:
    """The open stream of a new session."""
    return EventSource(client.port, watch(client, topics, **fields)["stream_url"])
