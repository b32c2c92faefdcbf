"""Which legal part of the unsynced state survives a machine crash.

A plan answers two questions for each pending operation: which 512-byte sectors and which size of a
file reach the disk, and which directory operations do. It is data, so a failing crash is named by
its plan and seed and can be replayed. `fakenodes.py` and `fakedisk.py` keep the answers legal: a
sector holds the content of one moment, and a name operation survives only with its predecessors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from topics.testing.sparsebytes import PAGE_BYTES, SECTOR_BYTES


@dataclass(frozen=True, slots=True)
class FileOperation:
    """A change of one file since its last sync; `order` is its place among all on the disk."""

    order: int
    kind: Literal["write", "truncate", "allocate"]
    length: int
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class NameOperation:
    """A change of one directory since its last sync.

    A rename between directories is a `rename-in` and a `rename-out`; the latter `needs` the former
    (directory, order), so that a crash may leave both names but never neither.
    """

    order: int
    kind: Literal["create", "mkdir", "rename", "unlink", "rename-in", "rename-out"]
    name: str
    ino: int
    source: str | None = None
    needs: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Survival:
    """`ranges` of bytes reach the disk; `size` follows them, is kept in full, or stays behind.

    A truncate or an allocate survives exactly when `size` is "all".
    """

    ranges: tuple[tuple[int, int], ...]
    size: Literal["data", "all", "none"]


LOST = Survival((), "none")


@dataclass(frozen=True, slots=True)
class _Setting:
    index: int
    count: int
    cut: int
    rng: random.Random


def _ranges(
    operation: FileOperation, unit: int, keep: Callable[[int], bool]
) -> tuple[tuple[int, int], ...]:
    if operation.kind != "write" or not operation.length:
        return ()
    first = operation.offset // unit
    last = (operation.offset + operation.length - 1) // unit
    found: list[tuple[int, int]] = []
    for number in range(first, last + 1):
        if not keep(number):
            continue
        if found and found[-1][1] == number * unit:
            found[-1] = (found[-1][0], (number + 1) * unit)
        else:
            found.append((number * unit, (number + 1) * unit))
    return tuple(found)


def _whole(operation: FileOperation) -> tuple[tuple[int, int], ...]:
    if operation.kind != "write" or not operation.length:
        return ()
    end = -(-(operation.offset + operation.length) // SECTOR_BYTES) * SECTOR_BYTES
    return ((operation.offset // SECTOR_BYTES * SECTOR_BYTES, end),)


def _kept(operation: FileOperation) -> Survival:
    return Survival(_whole(operation), "all")


def _some(operation: FileOperation, unit: int, keep: Callable[[int], bool]) -> Survival:
    size: Literal["data", "all"] = "data" if operation.kind == "write" else "all"
    return Survival(_ranges(operation, unit, keep), size)


def _prefix(operation: FileOperation, setting: _Setting) -> Survival:
    if operation.order < setting.cut:
        return _kept(operation)
    if operation.order > setting.cut or operation.kind != "write":
        return LOST
    middle = (operation.offset + operation.length // 2) // SECTOR_BYTES
    return _some(operation, SECTOR_BYTES, lambda sector: sector < middle)


def _edge_page(operation: FileOperation, *, last: bool) -> Survival:
    offset = operation.offset + (operation.length - 1 if last else 0)
    return _some(operation, PAGE_BYTES, lambda page: page == offset // PAGE_BYTES)


DataRule = Callable[[FileOperation, _Setting], Survival]

DATA_RULES: dict[str, DataRule] = {
    "lose": lambda op, at: LOST,
    "keep": lambda op, at: _kept(op),
    "prefix": _prefix,
    "suffix": lambda op, at: _kept(op) if op.order >= at.cut else LOST,
    "size-only": lambda op, at: Survival((), "all"),
    "size-lost": lambda op, at: Survival(_whole(op), "none"),
    "odd-sectors": lambda op, at: _some(op, SECTOR_BYTES, lambda sector: sector % 2 == 1),
    "even-sectors": lambda op, at: _some(op, SECTOR_BYTES, lambda sector: sector % 2 == 0),
    "first-page": lambda op, at: _edge_page(op, last=False),
    "last-page": lambda op, at: _edge_page(op, last=True),
    "last-write": lambda op, at: _kept(op) if at.index == at.count - 1 else LOST,
    "all-but-last": lambda op, at: LOST if at.index == at.count - 1 else _kept(op),
    "random-sectors": lambda op, at: _some(op, SECTOR_BYTES, lambda _: at.rng.random() < 0.5),
    "random-pages": lambda op, at: _some(op, PAGE_BYTES, lambda _: at.rng.random() < 0.5),
    "random-writes": lambda op, at: _kept(op) if at.rng.random() < 0.5 else LOST,
}

NameRule = Callable[[NameOperation, int, random.Random], bool]

NAME_RULES: dict[str, NameRule] = {
    "lose": lambda op, cut, rng: False,
    "keep": lambda op, cut, rng: True,
    "prefix": lambda op, cut, rng: op.order < cut,
    "suffix": lambda op, cut, rng: op.order >= cut,
    "no-renames": lambda op, cut, rng: not op.kind.startswith("rename"),
    "no-unlinks": lambda op, cut, rng: op.kind not in ("unlink", "rename-out"),
    "only-unlinks": lambda op, cut, rng: op.kind == "unlink",
    "random-subset": lambda op, cut, rng: rng.random() < 0.5,
}


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """A named, replayable choice of what survives; `data` and `names` are keys of the rules above.

    "random" as a rule draws another rule for each file or directory. `fraction` places the cut of
    the prefix and suffix rules among everything pending on the disk, in the order of the calls.
    """

    name: str
    data: str
    names: str
    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.data != "random" and self.data not in DATA_RULES:
            raise ValueError(f"unknown data rule {self.data!r}")
        if self.names != "random" and self.names not in NAME_RULES:
            raise ValueError(f"unknown name rule {self.names!r}")

    @staticmethod
    def standard() -> tuple[CrashPlan, ...]:
        return STANDARD_PLANS

    @staticmethod
    def random(seed: int) -> CrashPlan:
        fraction = random.Random(seed).random()
        return CrashPlan(f"random-{seed}", "random", "random", fraction, seed)


STANDARD_PLANS: tuple[CrashPlan, ...] = (
    CrashPlan("lose-all", "lose", "lose"),
    CrashPlan("keep-all", "keep", "keep"),
    CrashPlan("prefix", "prefix", "prefix"),
    CrashPlan("prefix-quarter", "prefix", "prefix", 0.25),
    CrashPlan("prefix-three-quarters", "prefix", "prefix", 0.75),
    CrashPlan("suffix", "suffix", "suffix"),
    CrashPlan("size-before-data", "size-only", "keep"),
    CrashPlan("data-before-size", "size-lost", "keep"),
    CrashPlan("odd-sectors", "odd-sectors", "keep"),
    CrashPlan("even-sectors", "even-sectors", "keep"),
    CrashPlan("first-page-only", "first-page", "keep"),
    CrashPlan("last-page-only", "last-page", "keep"),
    CrashPlan("last-write-only", "last-write", "keep"),
    CrashPlan("all-but-last-write", "all-but-last", "keep"),
    CrashPlan("dirs-lost-data-kept", "keep", "lose"),
    CrashPlan("dirs-kept-data-lost", "lose", "keep"),
    CrashPlan("dirs-prefix-data-kept", "keep", "prefix"),
    CrashPlan("dirs-suffix-data-kept", "keep", "suffix"),
    CrashPlan("renames-lost", "keep", "no-renames"),
    CrashPlan("unlinks-undone", "keep", "no-unlinks"),
    CrashPlan("only-unlinks-kept", "keep", "only-unlinks"),
    CrashPlan("random-sectors", "random-sectors", "random-subset"),
    CrashPlan("random-pages", "random-pages", "random-subset"),
    CrashPlan("random-writes", "random-writes", "random-subset"),
)


class Judge:
    """One plan applied to one disk; answers depend on plan, seeds and operations alone."""

    def __init__(self, plan: CrashPlan, disk_seed: int, orders: Sequence[int]) -> None:
        ranked = sorted(orders)
        position = int(len(ranked) * plan.fraction)
        self._plan = plan
        self._seed = f"{plan.seed}/{disk_seed}"
        self._cut = ranked[min(position, len(ranked) - 1)] if ranked else 0
        self._name_rules: dict[int, tuple[str, int, random.Random]] = {}

    def file(self, ino: int, pending: Sequence[FileOperation]) -> list[Survival]:
        rng = random.Random(f"{self._seed}/file/{ino}")
        rule, cut = self._plan.data, self._cut
        if rule == "random":
            rule = rng.choice(list(DATA_RULES))
            cut = rng.choice(pending).order
        count = len(pending)
        decide = DATA_RULES[rule]
        return [
            decide(operation, _Setting(index, count, cut, rng))
            for index, operation in enumerate(pending)
        ]

    def keeps_name(self, directory_ino: int, operation: NameOperation) -> bool:
        if directory_ino not in self._name_rules:
            rng = random.Random(f"{self._seed}/directory/{directory_ino}")
            rule, cut = self._plan.names, self._cut
            if rule == "random":
                rule = rng.choice(list(NAME_RULES))
                cut = operation.order + rng.randrange(8)
            self._name_rules[directory_ino] = (rule, cut, rng)
        rule, cut, rng = self._name_rules[directory_ino]
        return NAME_RULES[rule](operation, cut, rng)
