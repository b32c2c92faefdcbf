"""Sealed blocks whose columns are still in memory, oldest first.

There may be hundreds of thousands, and one dictionary of them stops everybody for tens of
milliseconds when it grows. So there are many small ones, in order, and a block knows its own.
"""

from __future__ import annotations

from collections import deque

from topics.engine.state.block import Block

TOGETHER = 1024
# A dictionary keeps the room of the most it ever held: with so few left it is made anew.
FEW = 64


class Part:
    """Some of them, each with what it counted for when it came."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: dict[Block, int] = {}


class Residents:
    """Which blocks there are, and how many bytes they count for."""

    def __init__(self) -> None:
        self.bytes = 0
        self._parts: deque[Part] = deque([Part()])
        self._room = TOGETHER

    def add(self, block: Block) -> None:
        """As the newest."""
        self.remove(block)
        if not self._room:
            self._parts.append(Part())
            self._room = TOGETHER
        self._room -= 1
        part = block.resident_in = self._parts[-1]
        part.blocks[block] = block.size
        self.bytes += block.size

    def remove(self, block: Block) -> None:
        """Does nothing for one that is not there."""
        part, block.resident_in = block.resident_in, None
        if part is None:
            return
        self.bytes -= part.blocks.pop(block)
        if len(part.blocks) in (0, FEW):
            part.blocks = dict(part.blocks)

    def oldest(self) -> Block | None:
        while not self._parts[0].blocks:
            if len(self._parts) == 1:
                return None
            self._parts.popleft()
        return next(iter(self._parts[0].blocks))
