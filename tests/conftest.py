"""What the crash suites need everywhere: fixtures, and the lines that sum them up."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

PREFIX = "topics_"
IMAGES = "topics_crash_images"


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Adds figures to the summary; properties travel from the worker processes by themselves."""

    def add(**figures: int) -> None:
        for name, value in figures.items():
            record_property(PREFIX + name, value)

    return add


@pytest.fixture
def tally_images(record_property: Callable[[str, object], None]) -> Callable[[set[str]], None]:
    """Adds disk images by their hash, so that the same one in two tests counts once."""

    def add(images: set[str]) -> None:
        record_property(IMAGES, " ".join(sorted(name[:16] for name in images)))

    return add


@pytest.fixture
def deadline() -> float:
    """When a test of the long tier stops looking further (monotonic seconds)."""
    minutes = float(os.environ.get("TOPICS_TEST_BUDGET_MIN", "10"))
    # Several tests of the long tier share the budget, two at a time.
    return time.monotonic() + minutes * 60 / 4


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    images: set[str] = set()
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            for name, value in report.user_properties:
                if name == IMAGES:
                    images.update(value.split())
                elif name.startswith(PREFIX):
                    totals[name.removeprefix(PREFIX)] += value
    if images:
        terminalreporter.write_line(
            f"crash sweep: {totals['workflows']} workflows, "
            f"{totals['crash_points']} mutating calls, {len(images)} distinct crash states, "
            f"{totals['recoveries']} recoveries, "
            f"{totals['records_checked']} acknowledged records checked; acknowledged fsync records "
            f"lost {totals['lost']}, deleted resurrected {totals['resurrected']}, "
            f"unexplained holes {totals['unexplained']}, other broken promises {totals['other']}"
        )
    if totals["lease_histories"]:
        terminalreporter.write_line(f"lease histories: {totals['lease_histories']} seeds")
    if totals["io_error_cases"]:
        terminalreporter.write_line(
            f"I/O errors: {totals['io_error_cases']} cases over {totals['io_error_calls']} calls, "
            f"{totals['io_errors_unknown']} unknown outcomes, "
            f"{totals['io_errors_broken']} broken promises"
        )
    if totals["corruption_cases"]:
        terminalreporter.write_line(
            f"corruption: {totals['corruption_cases']} damaged images: "
            f"{totals['corruption_refused']} refused, {totals['corruption_exact']} served exactly, "
            f"{totals['corruption_torn']} taken for a torn end (only the last unmarked group)"
        )
    if totals["mutants"]:
        terminalreporter.write_line(
            f"planted bugs: {totals['mutants_caught']} of {totals['mutants']} caught"
        )
    if totals["queue_kills"]:
        terminalreporter.write_line(
            f"killed queues: {totals['queue_kills']} kills among 50 workers, "
            f"{totals['queue_jobs']} jobs, {totals['queue_deliveries']} deliveries, "
            f"{totals['queue_unanswered']} acknowledgements without an answer; "
            f"jobs lost {totals['queue_lost']}, "
            f"acknowledged and delivered again {totals['queue_redelivered']}"
        )
