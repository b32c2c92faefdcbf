"""A planted bug: a textual change of the product, of the kind that storage engines have had."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    is_quick: bool = True
    # The part of the suites that has to find it.
    area: str = "log"
    # The workflow that is most about it.
    first: str = ""
    # Further changes (file, old, new), where two rules stand in the way of one bug.
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """Each as file, old text and new."""
        return [(self.file, self.old, self.new), *self.also]


def plant(mutant: Mutant | None, into: Path) -> None:
    """A copy of the product below `into`, with the bug in it."""
    shutil.copytree(SOURCE, into, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is None:
        return
    for file, old, new in mutant.changes:
        path = into / "topics" / file
        text = path.read_text()
        assert text.count(old) == 1, f"{mutant.name}: {text.count(old)} places to plant it"
        path.write_text(text.replace(old, new))
