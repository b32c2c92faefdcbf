from __future__ import annotations

import pytest

from tests.support.engines import World
from topics.engine.engine import Engine


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def engine(world: World) -> Engine:
    return world.engine
