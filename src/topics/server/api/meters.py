"""What routes have answered: how often, with which status, and how long it took.

Counted by whoever answers, in plain numbers, with a time that was read anyway where there is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

# Few, because every answer looks for its place among them.
EDGES_MS = (0.5, 1.0, 2.5, 5.0, 10.0, 50.0, 250.0, 1000.0, 10_000.0)
# The client went away before its answer: what proxies write down for it.
GONE = 499


class Meter:
    """One route. Most answers are 200: those are what no other status has counted."""

    __slots__ = ("counts", "method", "others", "path", "total_ms")

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.path = path
        # How many took at most as long as each edge; the last count is of all that took longer.
        self.counts = [0] * (len(EDGES_MS) + 1)
        self.total_ms = 0.0
        self.others: dict[int, int] = {}

    def note(self, status: int, took_ms: float) -> None:
        self.counts[bisect_left(EDGES_MS, took_ms)] += 1
        self.total_ms += took_ms
        if status != 200:
            self.others[status] = self.others.get(status, 0) + 1

    def note_all(self, began_s: list[float], now_s: float) -> None:
        """Notes answers of 200 that are given now; most of them took about as long as the first."""
        counts, many = self.counts, len(began_s)
        self.total_ms += (now_s * many - sum(began_s)) * 1000
        slowest = bisect_left(EDGES_MS, (now_s - min(began_s)) * 1000)
        if slowest == bisect_left(EDGES_MS, (now_s - max(began_s)) * 1000):
            counts[slowest] += many
            return
        for one_s in began_s:
            counts[bisect_left(EDGES_MS, (now_s - one_s) * 1000)] += 1

    def statuses(self) -> Iterator[tuple[int, int]]:
        """Each status that was answered, and how often."""
        fine = sum(self.counts) - sum(self.others.values())
        if fine:
            yield 200, fine
        yield from sorted(self.others.items())
