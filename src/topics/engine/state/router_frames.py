"""What routers write into the log: that they are there, that they ended, what they forwarded.

All three are frames of the destination. Applying one twice is applying it once: a definition has a
version, a map has a step, and an id is never used again.
"""

from __future__ import annotations

from array import array
from typing import Literal

import msgspec

from topics.engine.state.copies import Copying, RouterStamp

# Text of a tag, and whether it is a prefix.
Match = tuple[str, bool]
Guarantee = Literal["at_least_once", "exactly_once"]
# (state, first, last): source seqs that were copied (LIVE), could not be (SOURCE_TRIM), or were
# lost with their copies (CRASH).
Run = tuple[int, int, int]


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Match | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a router has come: the last source seq dealt with, the copies, the maps."""

    cursor: int
    forwarded_total: int = 0
    step: int = 0


class RouterFrame(msgspec.Struct, array_like=True):
    id: int
    name: str
    version: int
    source_id: int
    dest_id: int
    options: RouterOptions
    created_ts: int
    place: Place
    # Up to this source seq the destination may hold copies that an earlier router made.
    known_upto: int = 0
    # The source's epoch, and the seq after which everything that its filter takes was brought.
    source_epoch: int = 0
    began: int = 0


class Fed(msgspec.Struct, frozen=True, array_like=True):
    """What a bucket has of another one from a router that ended: all that `filter` takes after
    `began`, up to `upto`.
    """

    source_id: int
    source_epoch: int
    filter: Match | None
    began: int
    upto: int

    def covers(self, wanted: Match | None) -> bool:
        """Whether all that `wanted` takes was taken."""
        if self.filter is None or wanted == self.filter:
            return True
        text, is_prefix = self.filter
        return is_prefix and wanted is not None and wanted[0].startswith(text)


class MapFrame(msgspec.Struct, array_like=True):
    """Which source seqs became which seqs of the frame's topic, from the frame's first seq on.

    Without runs it only moves the cursor: the copies are elsewhere, or nowhere on the disk.
    """

    router_id: int
    router: str
    source_id: int
    source_name: str
    source_epoch: int
    preserve_node: bool
    preserve_tag: bool
    exactly_once: bool
    place: Place
    packed: bytes

    @property
    def runs(self) -> list[Run]:
        values = array("Q", self.packed)
        return list(zip(values[0::3], values[1::3], values[2::3], strict=True))

    @property
    def copying(self) -> Copying:
        stamp = None
        if self.exactly_once:
            stamp = RouterStamp(self.router, self.source_name, self.source_id, self.source_epoch)
        return Copying(self.preserve_node, self.preserve_tag, stamp)


def pack(runs: list[Run]) -> bytes:
    return array("Q", [value for run in runs for value in run]).tobytes()


encode = msgspec.msgpack.Encoder().encode
decode_router = msgspec.msgpack.Decoder(RouterFrame).decode
decode_map = msgspec.msgpack.Decoder(MapFrame).decode
decode_end = msgspec.msgpack.Decoder(int).decode
decode_fed = msgspec.msgpack.Decoder(Fed).decode
