from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.servers import Client, Served

KEYS = ",".join(
    (
        "root-secret",
        "reader:read",
        "writer:w",
        "deleter:delete",
        "manager:a",
        "both:rw",
        "tenant::t42:|shared.",
        "tenant-reader:r:t42:",
    )
)
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without keys, shared: every test has topics of its own."""
    with Served(tmp_path_factory.mktemp("open")) as served:
        yield served.wait_ready()
        assert served.stop() == 0


# Of a module, because some of its tests look at all topics that a key can see.
@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with keys of every kind."""
    with Served(tmp_path_factory.mktemp("locked"), TOPICS_API_KEYS=KEYS) as served:
        yield served.wait_ready()
        assert served.stop() == 0
        assert not any(entry.partition(":")[0] + '"' in served.log() for entry in KEYS.split(","))


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name nobody else uses."""
    return f"topic-{next(_numbers)}"
