"""What the crash suites need everywhere: fixtures, and the lines that sum them up."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

from tests.support import fault_kinds, summary

PREFIX = "topics_"
IMAGES = "topics_crash_images"
SHARES = pytest.StashKey[float]()

# The same examples each time, however long one takes on a machine that is busy: a change is judged
# by itself. Who looks for more gives a seed, or another profile (--hypothesis-profile=default).
settings.register_profile(
    "topics", deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("topics")


def pytest_configure() -> None:
    # A shell without job control starts background work deaf to interrupts, and so would be the
    # commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
def deadline(request: pytest.FixtureRequest) -> float:
    """When a test of the long tier stops looking further (monotonic seconds).

    Its part of the minutes of all test processes, by its share among the tests that were asked for;
    all of them for one that runs alone.
    """
    minutes = float(os.environ.get("TEST_BUDGET_MIN", "10"))
    if request.node.get_closest_marker("alone") is not None:
        return time.monotonic() + minutes * 60
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    part = share_of(request.node) / request.config.stash[SHARES]
    return time.monotonic() + minutes * 60 * workers * part


def share_of(item: pytest.Item) -> float:
    marker = item.get_closest_marker("full")
    return 0.0 if marker is None else float(marker.kwargs.get("share", 1))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[SHARES] = sum(map(share_of, items))
    # The long tier last: its failures take minutes to come by.
    items.sort(key=lambda item: share_of(item) > 0)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    images: set[str] = set()
    totals: Counter[str] = Counter()
    passed: set[str] = set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            if report.passed:
                passed.add(report.nodeid.rpartition("::")[2].partition("[")[0])
            for name, value in report.user_properties:
                if name == IMAGES:
                    images.update(value.split())
                elif name.startswith(PREFIX):
                    totals[name.removeprefix(PREFIX)] += value
    for line in summary.lines(totals, len(images), fault_kinds.exercised(passed)):
        terminalreporter.write_line(line)
