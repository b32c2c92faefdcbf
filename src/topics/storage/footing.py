"""What a shard's bytes stand on: what a router copied is durable no earlier than its source is.

A map in one shard says which records of another were copied, and has none of their bytes. If it
counted as durable by itself, a crash of the machine could take those and leave what was built on
the map: a delete of a copy that was acknowledged, a record that a reader of durable ones was given.
So a shard vouches for its bytes, from the first one that stands on another shard, only as far as
that one vouches for its own. What is written stands on what was written before, never in a circle.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from topics.storage.frames import Mark


class Standing(Protocol):
    """What is asked of a shard."""

    index: int
    lsn: int
    # How far its bytes are on the disk, with the frame behind that; how far it vouches for them.
    flushed: tuple[Mark, int]
    synced: Mark
    poison: Exception | None

    @property
    def position(self) -> Mark: ...

    def vouch(self, upto: Mark, lsn: int) -> None: ...


@dataclass(slots=True)
class Footing:
    """From `at` on, with frame `lsn`, a shard stands on what `other` had in front of `upto`."""

    at: Mark
    lsn: int
    other: Standing
    upto: Mark


S = TypeVar("S", bound=Standing)


class Footings(Generic[S]):
    """Those of all shards of a log. Added by the engine's thread; sync threads settle them."""

    def __init__(self) -> None:
        self._shards: dict[int, S] = {}
        self._of: dict[int, deque[Footing]] = {}
        self._lock = threading.Lock()

    def enter(self, shard: S) -> None:
        self._shards[shard.index] = shard
        self._of[shard.index] = deque()

    def add(self, shard: S, other: S) -> None:
        """What is written to `shard` from here on stands on all that `other` has now."""
        upto = other.position
        if other is shard or not other.synced < upto:
            return
        with self._lock:
            standing = self._of[shard.index]
            last = standing[-1] if standing else None
            if last is not None and last.at == shard.position and last.other is other:
                last.upto = upto
            else:
                standing.append(Footing(shard.position, shard.lsn, other, upto))

    def is_firm(self, shard: S) -> bool:
        """Whether a shard stands on nothing that is still to become durable."""
        return not self._of[shard.index]

    def below(self, shard: S) -> list[S]:
        """The shards to be synced so that all of this one is durable, itself included."""
        return [shard] if self.is_firm(shard) else list(self._shards.values())

    def is_given_up(self, shard: S) -> bool:
        """Whether nothing more of a shard can become durable: a sync of one below has failed."""
        return any(each.poison is not None for each in self.below(shard))

    def settle(self) -> None:
        """Vouches for every shard as far as what it stands on is durable."""
        with self._lock:
            is_moving = True
            while is_moving:
                moved = [self._settle(shard) for shard in self._shards.values()]
                # Others may stand on one that has moved.
                is_moving = len(moved) > 1 and any(moved)

    def _settle(self, shard: S) -> bool:
        standing = self._of[shard.index]
        while standing and not standing[0].other.synced < standing[0].upto:
            standing.popleft()
        upto, lsn = shard.flushed
        if standing and standing[0].at < upto:
            upto, lsn = standing[0].at, standing[0].lsn
        if shard.poison is not None or not shard.synced < upto:
            return False
        shard.vouch(upto, lsn)
        return shard.poison is None
