"""kill -9 of a server under load: what it acknowledged is there, and nothing else has come up."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.soak.soak import Soak

Tally = Callable[..., None]


def ride(directory: Path, tally: Tally, *, seed: int, kills: int, acks: int, power: bool) -> None:
    directory.mkdir(exist_ok=True)
    soak = Soak(directory, seed, is_power_failing=power)
    soak.run(kills, acks)
    soak.figures["power_failures"] = soak.figures["kills"] * power
    assert soak.figures["records"] > acks, "the load was none"
    tally(**{f"soak_{name}": count for name, count in soak.figures.items()})


@pytest.mark.slow
def test_a_killed_server_keeps_every_promise(tmp_path: Path, tally: Tally) -> None:
    """Five times under load, and in between while it recovers from that."""
    ride(tmp_path, tally, seed=1, kills=5, acks=250, power=False)


@pytest.mark.slow
def test_a_server_whose_power_fails_keeps_every_promise(tmp_path: Path, tally: Tally) -> None:
    """What was not synced is gone with the process: acknowledged means synced."""
    ride(tmp_path, tally, seed=1, kills=3, acks=250, power=True)


@pytest.mark.full(share=4)
@pytest.mark.timeout(0)
def test_a_server_killed_very_often_keeps_every_promise(
    tmp_path: Path, tally: Tally, deadline: float
) -> None:
    for seed in itertools.count(2):
        directory = tmp_path / str(seed)
        ride(directory, tally, seed=seed, kills=8, acks=400, power=seed % 3 == 0)
        shutil.rmtree(directory)
        if time.monotonic() > deadline:
            return
