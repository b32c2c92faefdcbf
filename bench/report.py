"""Figures, their targets, and the table they are printed in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    # "≥ 0.22": the bar this figure is held against; empty when it only informs.
    target: str = ""

    @property
    def holds(self) -> bool | None:
        if not self.target:
            return None
        sign, bar = self.target.split()
        limit = float(bar.replace(",", ""))
        return self.value >= limit if sign == "≥" else self.value <= limit


class Report:
    def __init__(self, *, as_json: bool) -> None:
        self.figures: list[Figure] = []
        self._as_json = as_json

    def add(self, name: str, value: float, unit: str, target: str = "") -> None:
        figure = Figure(name, value, unit, target)
        self.figures.append(figure)
        if not self._as_json:
            print(_line(figure), flush=True)

    def run(self, title: str, suite: Callable[[Report], None]) -> None:
        print(f"\n{title}", file=sys.stderr if self._as_json else sys.stdout, flush=True)
        suite(self)

    def finish(self) -> int:
        missed = [figure for figure in self.figures if figure.holds is False]
        if self._as_json:
            print(json.dumps([asdict(f) | {"holds": f.holds} for f in self.figures], indent=1))
        else:
            held = sum(figure.holds is True for figure in self.figures)
            print(f"\n{held} targets held, {len(missed)} missed")
            for figure in missed:
                print(f"  missed: {figure.name}")
        return 1 if missed else 0


def _line(figure: Figure) -> str:
    value = f"{figure.value:,.3f}" if abs(figure.value) < 100 else f"{figure.value:,.0f}"
    verdict = {True: "holds", False: "MISSED", None: ""}[figure.holds]
    return f"  {figure.name:<58} {value:>14} {figure.unit:<12} {figure.target:<12} {verdict}"


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
