"""How old rows get before a continuous sync has committed them, and what one more topic costs.

A few threads bring all topics further, so the time from a change to its commit grows with the
topics that are written at the same time: it is measured, and said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Said this long after the first commit, then this often while topics are written.
FIRST_S, EVERY_S = 10.0, 60.0


class Freshness:
    """What was measured since it was last said."""

    def __init__(
        self,
        threads: int,
        pause_s: float,
        says: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads, self._pause_s, self._says, self._clock = threads, pause_s, says, clock
        # Topics are brought further by threads of their own.
        self._lock = threading.Lock()
        self._seen_s: dict[str, float] = {}
        self._ages_s: dict[str, float] = {}
        self._spent_s: list[float] = []
        self._due_s: float | None = None
        self._after_s = FIRST_S

    def seen(self, topic: str) -> None:
        """A topic has changed, and nothing of that is committed yet."""
        self._seen_s.setdefault(topic, self._clock())

    def committed(self, topic: str, spent_s: float) -> None:
        """It was brought as far as it was seen, with so much time of a thread."""
        now_s = self._clock()
        with self._lock:
            # What was seen had been there for a pause at most.
            age_s = now_s - self._seen_s.pop(topic, now_s) + self._pause_s
            self._ages_s[topic] = max(age_s, self._ages_s.get(topic, 0.0))
            self._spent_s.append(spent_s)
            if self._due_s is None:
                self._due_s = now_s + self._after_s

    def unchanged(self, topic: str) -> None:
        """It has come to nothing that a table has a row of."""
        self._seen_s.pop(topic, None)

    def tell_if_due(self) -> None:
        if self._due_s is not None and self._clock() >= self._due_s:
            self.tell()

    def tell(self) -> None:
        """Says what was measured, if anything was."""
        with self._lock:
            ages_s, spent_s = list(self._ages_s.values()), self._spent_s
            self._ages_s, self._spent_s, self._due_s = {}, [], None
            self._after_s = EVERY_S
        if ages_s:
            active = len(ages_s)
            each_s = sum(spent_s) / len(spent_s) / min(active, self._threads)
            self._says(
                f"{active} active {'topic' if active == 1 else 'topics'}: rows are in their tables "
                f"after at most {max(ages_s):.1f} s; "
                f"each further active topic costs about {each_s:.2f} s"
            )
