"""Our style, enforced: bounds on files, functions and lines, no leftovers, one door to the disk.

A reader should never scroll to find where a function ends, and storage and engine must stay
drivable by a test that owns their disk, their clock and their chance.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ALL_FILES = SOURCES + sorted(
    path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")
)
# One letter of each in brackets, or this file would be its own finding.
LEFTOVERS = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")

# Modules that reach the machine behind the doors' back, and the only places that may use them.
DOORS_ONLY = {"os", "io", "pathlib", "shutil", "tempfile", "time", "random"}
MAY_REACH_THE_MACHINE = (
    "topics/storage/fs.py",
    "topics/clock.py",
    "topics/toml_file.py",
    "topics/cli/",
    "topics/client/",
    "topics/lake/",
    "topics/server/",
    "topics/spark/",
    "topics/testing/",
    "pyspark_topics/",
)
# A private name is one's own on these.
OWN = ("self", "cls", "super()")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# One test for a rule, not for a file: there are hundreds, and pytest takes longer than a look.
def found_in(paths: list[Path], look: Callable[[Path], Iterable[str]]) -> list[str]:
    return [f"{name_of(path)}: {found}" for path in paths for found in look(path)]


def test_a_source_file_is_short_enough_to_know() -> None:
    def look(path: Path) -> Iterator[str]:
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES_MAX:
            yield f"{lines} lines: it wants to be two files"

    assert not found_in(SOURCES, look)


def test_a_function_ends_before_the_reader_scrolls() -> None:
    def look(path: Path) -> Iterator[str]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield f"{node.name} at line {node.lineno} has {lines} lines"

    assert not found_in(SOURCES, look)


def test_a_module_says_what_it_owns() -> None:
    silent = [name_of(path) for path in SOURCES if not ast.get_docstring(tree_of(path))]
    assert not silent, "without a docstring"


def test_no_line_is_wider_than_the_page() -> None:
    def look(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > LINE_COLUMNS_MAX:
                yield f"line {number} has {len(line)} columns"

    assert not found_in(ALL_FILES, look)


def test_nothing_is_left_for_later() -> None:
    def look(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if LEFTOVERS.search(line):
                yield f"line {number}: {line.strip()}"

    assert not found_in(ALL_FILES, look)


def test_a_test_reaches_into_nobody_elses_privates() -> None:
    """What it wants to know it asks, so that what is private can change without it."""
    ours = [path for path in ALL_FILES if path not in SOURCES]
    assert not found_in(ours, lambda path: privates(tree_of(path)))


def privates(tree: ast.Module) -> Iterator[str]:
    """Where a module uses a private name of something that is not itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        else:
            continue
        for name in names:
            # Whose it is takes long to spell: only private names are worth it.
            if name.startswith("_") and not name.startswith("__") and not is_own(node):
                yield f"line {node.lineno}: {name}"


def is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) in OWN


def test_the_machine_is_reached_through_the_doors_only() -> None:
    def look(path: Path) -> Iterable[str]:
        inside = path.relative_to(ROOT / "src").as_posix()
        return () if inside.startswith(MAY_REACH_THE_MACHINE) else reaches(tree_of(path))

    assert not found_in(SOURCES, look), "go through topics.storage.fs or topics.clock"


def reaches(tree: ast.Module) -> Iterator[str]:
    """Where a module imports the machine or opens a file by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "open":
                yield f"line {node.lineno}: open()"
            continue
        else:
            continue
        for module in modules:
            if module.partition(".")[0] in DOORS_ONLY:
                yield f"line {node.lineno}: import {module}"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("engine._maintenance.run()", 1),
        ("a.b[0]._c", 1),
        ("from topics.engine.engine import _x", 1),
        ("self._own = 1", 0),
        ("super()._work()", 0),
        ("module.__file__", 0),
    ],
)
def test_the_check_of_privates_sees_them(code: str, count: int) -> None:
    assert len(list(privates(ast.parse(code)))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import os", 1),
        ("import os.path as p", 1),
        ("from time import monotonic", 1),
        ("from random import Random", 1),
        ("def f():\n    import os", 1),
        ("open('x')", 1),
        ("fs.open('x')", 0),
        ("from topics.storage.fs import opened", 0),
        ("import timeit_like", 0),
    ],
)
def test_the_door_check_sees_every_way_around_it(code: str, count: int) -> None:
    assert len(list(reaches(ast.parse(code)))) == count
