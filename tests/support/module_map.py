"""The generated parts of docs/architecture.md: layers and modules, as the sources have them.

python -m tests.support.module_map    # writes them anew
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "topics"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end of {} -->"


def said(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def layers() -> Iterator[str]:
    """The layers that import-linter keeps, top first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in config["contracts"]:
        if contract["type"] != "layers":
            continue
        yield f"{contract['name']}"
        yield from (f"    {layer}" for layer in contract["layers"])
        yield ""


def rooms() -> Iterator[Path]:
    """Every package, the outer ones before those inside of them."""
    return iter(sorted(path.parent for path in SOURCES.parent.rglob("__init__.py")))


def modules() -> Iterator[str]:
    """Each room with its modules, one line for each."""
    for room in rooms():
        name = room.relative_to(SOURCES.parent).as_posix()
        yield f"**{name}**: {said(room / '__init__.py')}"
        yield ""
        for path in sorted(room.glob("*.py")):
            if path.name != "__init__.py":
                yield f"- `{path.name}`: {said(path)}"
        yield ""


def generated() -> dict[str, str]:
    fenced = "\n".join(layers()).rstrip()
    return {"layers": f"```\n{fenced}\n```", "modules": "\n".join(modules()).rstrip()}


def refreshed(page: str) -> str:
    """The page with its generated parts as they have to be."""
    for name, text in generated().items():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        assert closed, f"the page has no part for {name}"
        page = f"{head}{begin}\n\n{text}\n\n{end}{tail}"
    return page


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
