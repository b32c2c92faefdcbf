"""Waiting for what has to become true, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 30.0


def until(holds: Callable[[], object]) -> None:
    """Returns as soon as it holds; after a long time it is taken never to."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
