"""The names of all topics in byte order, for listing them a page at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sortedcontainers import SortedSet


class Names:
    """Sorted from the first time that their order is asked for: most servers never ask."""

    __slots__ = ("_all", "_sorted")

    def __init__(self, names: Mapping[str, object]) -> None:
        self._all = names
        self._sorted: SortedSet | None = None

    def add(self, name: str) -> None:
        if self._sorted is not None:
            self._sorted.add(name)

    def discard(self, name: str) -> None:
        if self._sorted is not None:
            self._sorted.discard(name)

    def page(self, prefixes: Iterable[str], *, after: str, limit: int) -> list[str]:
        """Up to `limit` names after `after` that begin with one of the prefixes."""
        if self._sorted is None:
            self._sorted = SortedSet(self._all)
        found: list[str] = []
        for prefix in _widest(sorted(set(prefixes))):
            for name in self._sorted.irange(max(prefix, after)):
                if len(found) >= limit or not name.startswith(prefix):
                    break
                if name > after:
                    found.append(name)
        return found


def _widest(prefixes: Sequence[str]) -> list[str]:
    """Without those that another one covers, so that no name is found twice."""
    kept: list[str] = []
    for prefix in prefixes:
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept
