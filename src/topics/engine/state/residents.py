"""Sealed blocks whose columns are still in memory, oldest first.

There may be hundreds of thousands, and one dictionary of them stops everybody for tens of
milliseconds when it grows. So there are many small ones, in order, and a block knows its own.
"""

from __future__ import annotations

from collections import deque

from topics.engine.state.block import Block

TOGETHER = 1024


class Residents:
    """Which blocks there are, and how many bytes they count for."""

    def __init__(self) -> None:
        self.bytes = 0
        # Each with what it counted for when it came.
        self._parts: deque[dict[Block, int]] = deque([{}])
        self._room = TOGETHER

    def add(self, block: Block) -> None:
        """As the newest."""
        self.remove(block)
        if not self._room:
            self._parts.append({})
            self._room = TOGETHER
        self._room -= 1
        self._parts[-1][block] = block.size
        block.resident_in = self._parts[-1]
        self.bytes += block.size

    def remove(self, block: Block) -> None:
        """Does nothing for one that is not there."""
        part, block.resident_in = block.resident_in, None
        if part is None:
            return
        self.bytes -= part.pop(block)
        if not part:
            # What it once held keeps its room otherwise.
            part.clear()

    def oldest(self) -> Block | None:
        while not self._parts[0]:
            if len(self._parts) == 1:
                return None
            self._parts.popleft()
        return next(iter(self._parts[0]))
