"""The list of fault kinds names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.fault_kinds import KINDS, exercised

TESTS = Path(__file__).parents[1]


def test_every_test_that_is_named_exists() -> None:
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", text))
    assert {test for tests in KINDS.values() for test in tests} <= defined


def test_a_kind_counts_when_one_of_its_tests_passed() -> None:
    assert exercised(set()) == []
    assert exercised({"test_a_frozen_clock_expires_nothing"}) == ["time: frozen"]
