from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.protocol.app import LOOPS, Served, serving
from tests.server.protocol.wire import Wire


@pytest.fixture(scope="module", params=sorted(LOOPS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server with default limits, on each kind of loop."""
    with serving(loop=request.param) as served:
        yield served


@pytest.fixture
def wire(served: Served) -> Iterator[Wire]:
    with Wire(served.port) as wire:
        yield wire
