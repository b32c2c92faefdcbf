"""docs/architecture.md is a map of these sources: what it names is there, nothing is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.module_map import PAGE, ROOT, SOURCES, modules, refreshed

TEXT = PAGE.read_text()
HAND_WRITTEN = TEXT.partition("## Every module")[0]
# A path, and perhaps what is in it: `engine/commit/committer.py::Committer.poll`.
NAMED = sorted(set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)(?:::([\w.]+))?`", TEXT)))
# `Committer.poll`, in the text or in a drawing; `Engine.submit_*` stands for many.
CALLS = sorted(set(re.findall(r"\b([A-Z]\w+)\.(_?[a-z]\w*)\b(?!\*)", HAND_WRITTEN)))
LINKS = re.findall(r"\]\(#([^)]*)\)", TEXT)
QUESTIONS = {
    "decides tombstone or silence": "engine/reading/tombstones.py::decide",
    "parks a write under pressure": "server/loop/parking.py::Parking.park",
    "re-derives a copy at recovery": "engine/recovery/rederive.py::replay_map",
    "expires a lease": "engine/state/queue.py::Queue.expire",
    "renders a record": "engine/state/record.py::RECORD",
}


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, constants and what classes have, as `name` and `Class.name`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found.update(each.id for each in node.targets if isinstance(each, ast.Name))
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}.{name}" for name in _members(node))
    return frozenset(found)


def _members(node: ast.ClassDef) -> set[str]:
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(inner.name)
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            found.add(inner.target.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
    return found


@cache
def everything() -> frozenset[str]:
    """What any module has."""
    return frozenset().union(*(names_in(path) for path in SOURCES.rglob("*.py")))


def file_of(named: str) -> Path:
    return ROOT / named if named.startswith("tests/") else SOURCES / named


@pytest.mark.parametrize(("file", "name"), [pair for pair in NAMED if "/" in pair[0]])
def test_what_the_page_names_is_there(file: str, name: str) -> None:
    assert file_of(file).is_file()
    assert not name or name in names_in(file_of(file))


@pytest.mark.parametrize(("owner", "name"), CALLS)
def test_a_call_that_the_page_names_is_there(owner: str, name: str) -> None:
    """Inherited or its own: somewhere a class with one of these names has it."""
    own = f"{owner}.{name}" in everything()
    inherited = owner == "Engine" and f"Lifecycle.{name}" in everything()
    assert own or inherited


@pytest.mark.parametrize("link", LINKS)
def test_a_link_within_the_page_has_a_heading(link: str) -> None:
    headings = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    assert link in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_newcomer_finds_the_one_place(question: str) -> None:
    """The page answers with one path, which is this one."""
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| {question} |")]
    assert rows == [f"| {question} | `{QUESTIONS[question]}` |"]


def test_a_records_bytes_are_known_in_one_module() -> None:
    """The fakes have a form of their own, to hold ours against."""
    knowing = [path for path in SOURCES.rglob("*.py") if '{"$seq":' in path.read_text()]
    assert [path.name for path in knowing if path.parent.name != "testing"] == ["record.py"]


def test_layers_and_modules_are_those_of_the_sources() -> None:
    """`python -m tests.support.module_map` writes them anew."""
    assert refreshed(TEXT) == TEXT


def test_every_module_is_in_the_list() -> None:
    listed = [line for line in modules() if line.startswith("- ")]
    files = [path for path in SOURCES.parent.rglob("*.py") if path.name != "__init__.py"]
    assert len(listed) == len(files)


def test_every_page_of_the_docs_is_reachable() -> None:
    index = (PAGE.parent / "README.md").read_text()
    pages = {path.name for path in PAGE.parent.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\((\w[\w-]*\.md)\)", index))
    for root_page in ("README.md", "CONTRIBUTING.md"):
        assert "docs/architecture.md" in (ROOT / root_page).read_text()
