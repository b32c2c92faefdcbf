"""Crash before every mutating call of a bucket's life, and recover.

Promises: what was acknowledged in class fsync is there, in class disk all but what the log says was
lost; no deleted key comes back, in the bucket or in its replica; the past is true or said to be
gone.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kv.kv_sweep import sweep

QUICK = ("lose-all", "keep-all")
NAMES = (*QUICK, "prefix", "odd-sectors", "dirs-lost-data-kept", "last-write-only")


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_crash_anywhere_brings_no_key_back(durability: str) -> None:
    """Only what is lost or kept as a whole."""
    assert sweep(durability, QUICK[:1]) > 50


@pytest.mark.full(share=1)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_crash_anywhere_in_any_way_brings_no_key_back(
    durability: str, tally: Callable[..., None]
) -> None:
    """Also what is torn."""
    checks = sweep(durability, NAMES)
    assert checks > 300
    tally(states=checks)
