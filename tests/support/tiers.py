"""Which tests are of the quick gate: of many that are alike, a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def quick_first(values: Iterable[Any], count: int) -> list[ParameterSet]:
    """Parameters: the first few are of `make quick`, all of them of `make test`."""
    return [
        pytest.param(value, marks=() if place < count else pytest.mark.slow)
        for place, value in enumerate(values)
    ]
