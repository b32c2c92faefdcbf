"""Memory from one heap: a payload that stays is not a mapping of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from topics.storage import heap
def mappings():
    with open("/proc/self/maps") as maps:
        return len(maps.readlines())
settled = heap.use_one_heap()
before = mappings()
kept = [bytes(300_000) for _ in range(200)]
print(settled, mappings() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_payloads_share_the_heap() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    settled, added = done.stdout.split()
    if settled == "False":
        pytest.skip("this is not glibc")
    assert int(added) < 20
