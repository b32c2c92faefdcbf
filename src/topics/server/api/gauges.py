"""Metrics as values, and their two spellings: Prometheus text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Family:
    """One metric. `samples` pairs a label's value ("" without a label) with a number."""

    name: str
    kind: str
    about: str
    label: str = ""
    samples: list[tuple[str, float]] = field(default_factory=list)

    def text(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for value, number in self.samples:
            labels = f'{{{self.label}="{_escaped(value)}"}}' if self.label else ""
            yield f"{self.name}{labels} {_number(number)}"

    def json(self) -> Any:
        if self.label:
            return dict(self.samples)
        return self.samples[0][1] if self.samples else 0


@dataclass(slots=True)
class Pairs:
    """One metric with two labels: samples of (first value, second value, number)."""

    name: str
    kind: str
    about: str
    labels: tuple[str, str]
    samples: Sequence[tuple[str, str, float]]

    def text(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        first, second = self.labels
        for one, other, number in self.samples:
            labels = f'{first}="{_escaped(one)}",{second}="{_escaped(other)}"'
            yield f"{self.name}{{{labels}}} {_number(number)}"

    def json(self) -> Any:
        nested: dict[str, dict[str, float]] = {}
        for one, other, number in self.samples:
            nested.setdefault(one, {})[other] = number
        return nested


@dataclass(slots=True)
class Histogram:
    """A distribution; `counts` has one more entry than `edges`, for what is above them all."""

    name: str
    about: str
    edges: Sequence[float]
    counts: Sequence[int]
    total: float

    def text(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} histogram"
        for edge, count in self._cumulative():
            yield f'{self.name}_bucket{{le="{edge}"}} {count}'
        yield f"{self.name}_sum {_number(self.total)}"
        yield f"{self.name}_count {sum(self.counts)}"

    def json(self) -> Any:
        return {
            "buckets": dict(self._cumulative()),
            "sum": self.total,
            "count": sum(self.counts),
        }

    def _cumulative(self) -> Iterable[tuple[str, int]]:
        below = 0
        for edge, count in zip((*self.edges, math.inf), self.counts, strict=True):
            below += count
            yield _number(edge), below


Metric = Family | Pairs | Histogram


def one(name: str, kind: str, about: str, value: float) -> Family:
    """A metric of one number; a claim counts as 1 or 0."""
    number = int(value) if isinstance(value, bool) else value
    return Family(name, kind, about, samples=[("", number)])


def as_text(metrics: Iterable[Metric]) -> bytes:
    lines = [line for metric in metrics for line in metric.text()]
    return ("\n".join(lines) + "\n").encode()


def as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    return {metric.name: metric.json() for metric in metrics}


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
