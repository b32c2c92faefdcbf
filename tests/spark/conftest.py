"""One Spark for all of these tests, and a server for each file: a JVM is slow to start.

Everything runs in one process after the other tests: two JVMs on a small machine are slower than
one, and their warnings are not ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.support import Log, session
from tests.support.servers import Served

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    found = session(tmp_path_factory.mktemp("spark"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as process:
        yield process.wait_ready()


@pytest.fixture
def log(served: Served, spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Log]:
    with served.client() as client:
        yield Log(served, client, spark, request.node.name)
