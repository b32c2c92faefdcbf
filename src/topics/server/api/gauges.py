"""Metrics as values, and their two spellings: Prometheus text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
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

    def text(self) -> Iterator[str]:
        yield from _head(self.name, self.kind, self.about)
        names = (self.label,) if self.label else ()
        for value, number in self.samples:
            yield f"{self.name}{_labels(names, (value,))} {_number(number)}"

    def json(self) -> Any:
        if self.label:
            return dict(self.samples)
        return self.samples[0][1] if self.samples else 0


@dataclass(slots=True)
class Table:
    """One metric with several labels: samples of their values and a number. Nested in JSON."""

    name: str
    kind: str
    about: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]

    def text(self) -> Iterator[str]:
        yield from _head(self.name, self.kind, self.about)
        for values, number in self.samples:
            yield f"{self.name}{_labels(self.labels, values)} {_number(number)}"

    def json(self) -> Any:
        return _nested(self.samples)


@dataclass(slots=True)
class Spread:
    """A distribution; `counts` has one more entry than there are edges, for what is above all."""

    counts: Sequence[int]
    total: float
    values: tuple[str, ...] = ()


@dataclass(slots=True)
class Histogram:
    """Distributions over the same edges, one for each combination of the labels' values."""

    name: str
    about: str
    edges: Sequence[float]
    spreads: Sequence[Spread]
    labels: tuple[str, ...] = ()

    def text(self) -> Iterator[str]:
        yield from _head(self.name, "histogram", self.about)
        for spread in self.spreads:
            for edge, count in self._cumulative(spread):
                labels = _labels((*self.labels, "le"), (*spread.values, edge))
                yield f"{self.name}_bucket{labels} {count}"
            labels = _labels(self.labels, spread.values)
            yield f"{self.name}_sum{labels} {_number(spread.total)}"
            yield f"{self.name}_count{labels} {sum(spread.counts)}"

    def json(self) -> Any:
        return _nested([(spread.values, self._whole(spread)) for spread in self.spreads])

    def _whole(self, spread: Spread) -> dict[str, Any]:
        return {
            "buckets": dict(self._cumulative(spread)),
            "sum": spread.total,
            "count": sum(spread.counts),
        }

    def _cumulative(self, spread: Spread) -> Iterator[tuple[str, int]]:
        below = 0
        for edge, count in zip((*self.edges, math.inf), spread.counts, strict=True):
            below += count
            yield _number(edge), below


Metric = Family | Table | Histogram


def one(name: str, kind: str, about: str, value: float) -> Family:
    """A metric of one number; a claim counts as 1 or 0."""
    number = int(value) if isinstance(value, bool) else value
    return Family(name, kind, about, samples=[("", number)])


def as_text(metrics: Iterable[Metric]) -> bytes:
    lines = [line for metric in metrics for line in metric.text()]
    return ("\n".join(lines) + "\n").encode()


def as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    return {metric.name: metric.json() for metric in metrics}


def _nested(samples: Iterable[tuple[tuple[str, ...], Any]]) -> Any:
    """Values of labels as keys, the first label outermost."""
    found: Any = {}
    for values, what in samples:
        if not values:
            return what
        place = found
        for value in values[:-1]:
            place = place.setdefault(value, {})
        place[values[-1]] = what
    return found


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
