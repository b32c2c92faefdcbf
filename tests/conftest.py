"""What the crash suites need everywhere: fixtures, and the lines that sum them up."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support import fault_kinds, summary

PREFIX = "topics_"
IMAGES = "topics_crash_images"
SHARES = pytest.StashKey[float]()


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

    Its part of the minutes of all test processes, by its share among the tests that were asked for.
    """
    minutes = float(os.environ.get("TOPICS_TEST_BUDGET_MIN", "10"))
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
    if totals["fuzz_requests"]:
        terminalreporter.write_line(
            f"generated requests: {totals['fuzz_requests']} over {totals['fuzz_operations']} "
            f"operations, {totals['fuzz_failures']} not answered as documented, "
            f"{totals['fuzz_rules']} refused by a rule that a schema can not say"
        )
    write_bad_input(terminalreporter, totals)


def write_bad_input(terminalreporter: pytest.TerminalReporter, totals: Counter[str]) -> None:
    """The table of bad input: how many cells each route has, by the code that refused them."""
    by_route: dict[str, Counter[str]] = {}
    for name, count in totals.items():
        if name.startswith("bad_input "):
            _, method, path, code = name.split()
            by_route.setdefault(f"{method} {path}", Counter())[code] += count
    if not by_route:
        return
    cells = sum(sum(codes.values()) for codes in by_route.values())
    terminalreporter.write_line(
        f"bad input: {cells} cells on {len(by_route)} routes refused with their code, state "
        "unchanged after each route"
    )
    for route, codes in sorted(by_route.items()):
        shown = ", ".join(f"{code} {count}" for code, count in codes.most_common())
        terminalreporter.write_line(f"  {route:44} {sum(codes.values()):4}  {shown}")
