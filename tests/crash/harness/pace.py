"""Which of its calls a sweep crashes, and for how long it goes on."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator


class Pace:
    """Every nth call. In passes it comes to every call in the end; when the time runs out before,
    those it came to are spread over the whole workflow."""

    def __init__(self, every: int = 1, until_s: float = math.inf) -> None:
        self._every = every
        self._until_s = until_s
        self._offset = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until_s

    def leaves_out(self, point: int) -> bool:
        return point % self._every != self._offset or self.is_over

    def passes(self) -> Iterator[None]:
        for offset in random.Random(self._every).sample(range(self._every), self._every):
            if self.is_over:
                return
            self._offset = offset
            yield
