"""kill -9 in the middle of 50 workers: no job is lost and none that was acknowledged comes back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.queues.fleet import Fleet

Tally = Callable[..., None]


def ride(directory: Path, tally: Tally, jobs: int, kills: int, leases_durable: bool) -> None:
    async def run() -> Fleet:
        fleet = Fleet(directory, jobs, kills, leases_durable=leases_durable)
        await fleet.run()
        return fleet

    fleet = asyncio.run(run())
    tally(
        queue_kills=kills, queue_jobs=len(fleet.confirmed), queue_lost=len(fleet.lost),
        queue_deliveries=fleet.deliveries, queue_redelivered=len(fleet.redelivered),
        queue_unanswered=fleet.unanswered,
    )  # fmt: skip
    assert len(fleet.confirmed) == jobs
    assert not fleet.lost
    assert not fleet.redelivered


@pytest.mark.slow
@pytest.mark.parametrize("leases_durable", [False, True])
def test_workers_of_a_killed_server_lose_nothing(
    tmp_path: Path, tally: Tally, leases_durable: bool
) -> None:
    ride(tmp_path, tally, jobs=3000, kills=3, leases_durable=leases_durable)


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
def test_workers_of_a_server_killed_many_times_lose_nothing(
    tmp_path: Path, tally: Tally, deadline: float
) -> None:
    for turn in itertools.count():
        directory = tmp_path / str(turn)
        directory.mkdir()
        ride(directory, tally, 20_000, kills=10, leases_durable=turn % 2 == 1)
        if time.monotonic() > deadline:
            return
