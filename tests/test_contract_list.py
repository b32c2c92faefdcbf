"""The lists of promises and the tests name each other: no promise without a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE, HTTP, SPARK = "contract.md", "contract-http.md", "contract-spark.md"
KV = "contract-kv.md"
ROW = re.compile(r"^\| (?P<promise>.+) \| `(?P<file>tests/\S+\.py)::(?P<test>\w+)` \|$")


@cache
def rows(document: str) -> tuple[tuple[str, str, str], ...]:
    lines = (ROOT / "docs" / document).read_text().splitlines()
    found = [ROW.match(line) for line in lines if "::" in line]
    assert all(found), "a row of the table is not `| promise | test |`"
    return tuple((m["promise"], m["file"], m["test"]) for m in found if m)


@cache
def promises_in(file: str) -> dict[str, str]:
    """Test functions of a file with their docstrings."""
    tree = ast.parse((ROOT / file).read_text())
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def files(document: str) -> list[str]:
    return sorted({file for _, file, _ in rows(document)})


@pytest.mark.parametrize(
    ("document", "file"),
    [(name, file) for name in (ENGINE, HTTP, SPARK, KV) for file in files(name)],
)
def test_every_test_in_the_list_exists(document: str, file: str) -> None:
    """A promise whose test was renamed or removed is a promise without a test."""
    named = {test for _, found, test in rows(document) if found == file}
    assert not named - promises_in(file).keys()


@pytest.mark.parametrize("file", files(ENGINE))
def test_a_file_in_the_list_is_there_as_a_whole(file: str) -> None:
    """A test without a promise is a test nobody knows the reason of."""
    assert promises_in(file).keys() == {test for _, named, test in rows(ENGINE) if named == file}
    assert all(promises_in(file).values()), "every test says in its docstring what is promised"
