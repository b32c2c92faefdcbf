"""What a check found: problems, which mean that data is damaged or wrong, and warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

# Called with the bytes looked at so far and the bytes to look at in all.
Progress = Callable[[int, int], None]


def in_words(item: dict[str, Any]) -> str:
    """A problem or a warning, for people."""
    where = f"topic {item['topic']}" if "topic" in item else item["path"]
    return f"{where}: {item['problem']}: {item['detail']}"


class Checked(msgspec.Struct):
    """How much was looked at."""

    files: int = 0
    bytes: int = 0
    groups: int = 0
    frames: int = 0
    records: int = 0
    topics: int = 0
    segments: int = 0
    snapshots: int = 0


class Report(msgspec.Struct):
    ok: bool = True
    problems: list[dict[str, Any]] = msgspec.field(default_factory=list)
    warnings: list[dict[str, Any]] = msgspec.field(default_factory=list)
    checked: Checked = msgspec.field(default_factory=Checked)

    def problem(self, path: str, problem: str, detail: str, **more: Any) -> None:
        self.ok = False
        self.problems.append({"path": path, "problem": problem, "detail": detail, **more})

    def warn(self, path: str, problem: str, detail: str, **more: Any) -> None:
        self.warnings.append({"path": path, "problem": problem, "detail": detail, **more})

    def note(self, matters: bool, path: str, problem: str, detail: str) -> None:
        """A problem where it matters, a warning where nothing needs the file."""
        (self.problem if matters else self.warn)(path, problem, detail)
