"""Chains of routers, a rejecting queue and a failing store: kills and stops without end."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.soak.pipelines import Pipelines
from tests.support.s3 import S3Server
from tests.support.store_proxy import FlakyStore

Tally = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[S3Server, FlakyStore]]:
    with S3Server(tmp_path) as s3, FlakyStore(s3) as flaky:
        yield s3, flaky


def ride(
    directory: Path, store: tuple[S3Server, FlakyStore], tally: Tally, *, seed: int, lives: int
) -> None:
    s3, flaky = store
    directory.mkdir()
    variables = {**flaky.env, "TOPICS_COLD_DIR": s3.url(f"soak-{seed}")}
    before = flaky.failed
    pipelines = Pipelines(directory, seed, **variables)
    pipelines.run(lives, acks=400)
    figures = pipelines.figures
    assert min(figures["jobs"], figures["copies"], figures["rejected"]) > 0, "the load was none"
    assert flaky.failed > before, "the store was never asked"
    figures["store_failures"] = flaky.failed - before
    tally(**{f"pipeline_{name}": count for name, count in figures.items()})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pipelines_keep_every_promise(
    tmp_path: Path, store: tuple[S3Server, FlakyStore], tally: Tally
) -> None:
    ride(tmp_path / "data", store, tally, seed=1, lives=4)


@pytest.mark.full(share=24)
@pytest.mark.timeout(0)
def test_pipelines_keep_every_promise_for_long(
    tmp_path: Path, store: tuple[S3Server, FlakyStore], tally: Tally, deadline: float
) -> None:
    """Two to four seconds for each life: the full budget has a hundred kills and as many stops."""
    for seed in itertools.count(2):
        directory = tmp_path / f"data-{seed}"
        ride(directory, store, tally, seed=seed, lives=12)
        shutil.rmtree(directory)
        if time.monotonic() > deadline:
            return
