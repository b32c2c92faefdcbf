"""Copies of records under new seqs: the rest of each record's bytes is taken over as it stands."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import msgspec

from topics.storage.columns import Columns

# Meta of our own in a copy that is made exactly once; clients may not write it.
ROUTER_META = "_topics_router"
_NODE = b',"$node":'
_DATA = b',"data":'
_META = b',"meta":{'
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Copying:
    """What carries through: everything, but for what the router leaves out or adds.

    `stamp` makes meta of our own for a source seq, in place of what is there under its names.
    """

    preserve_node: bool = True
    preserve_tag: bool = True
    stamp: Stamp | None = None


class Stamp(Protocol):
    def meta(self, seq: int) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RouterStamp:
    router: str
    source_topic: str
    source_id: int
    source_epoch: int

    def key(self, seq: int) -> str:
        """Stable for one source record and one router, whatever is repeated."""
        return f"{self.router}/{self.source_id}/{self.source_epoch}/{seq}"

    def meta(self, seq: int) -> dict[str, Any]:
        mark = {
            "router": self.router,
            "source_topic": self.source_topic,
            "source_epoch": str(self.source_epoch),
            "source_seq": seq,
            "idempotency_key": self.key(seq),
        }
        return {ROUTER_META: mark}


def copies(
    columns: Columns,
    indexes: Sequence[int],
    source_first: int,
    copying: Copying,
    first: int,
    ts: int,
) -> Columns:
    """The records at `indexes` of a run, as a run from seq `first` on with the time `ts`."""
    payload = memoryview(columns.payload)
    head = b',"$ts":%d' % ts
    parts = []
    metas = bytearray(len(indexes)) if columns.metas is not None or copying.stamp else None
    for place, index in enumerate(indexes):
        raw = bytes(payload[columns.start(index) : columns.ends[index]])
        # Behind `{"$seq":N,"$ts":M`: numbers have no comma.
        rest = raw[raw.index(b",", raw.index(b",") + 1) :]
        if not copying.preserve_node and rest.startswith(_NODE):
            rest = rest[rest.index(_DATA) :]
        has_meta = bool(columns.metas is not None and columns.metas[index])
        if copying.stamp is not None:
            rest = _stamped(rest, has_meta, copying.stamp.meta(source_first + index))
            has_meta = True
        if metas is not None and has_meta:
            metas[place] = 1
        parts.append(b'{"$seq":%d%b%b' % (first + place, head, rest))
    nodes = columns.nodes if copying.preserve_node else None
    tags = columns.tags if copying.preserve_tag else None
    return Columns(
        b"".join(parts),
        array("I", accumulate(map(len, parts))),
        array("I", (0,)),
        array("q", (ts,)),
        _picked(nodes, indexes),
        _picked(tags, indexes),
        metas if metas is not None and any(metas) else None,
    )


def _picked(texts: list[str | None] | None, indexes: Sequence[int]) -> list[str | None] | None:
    if texts is None:
        return None
    picked = [texts[index] for index in indexes]
    return picked if any(text is not None for text in picked) else None


def _stamped(rest: bytes, has_meta: bool, marks: dict[str, Any]) -> bytes:
    """The record's end with meta of our own in it."""
    if not has_meta:
        return rest[:-2] + b',"meta":' + _ENCODER.encode(marks) + b"},"
    at = rest.rindex(_META)
    meta = msgspec.json.decode(rest[at + len(_META) - 1 : -2])
    others = {name: value for name, value in meta.items() if name not in marks}
    return rest[:at] + b',"meta":' + _ENCODER.encode(marks | others) + b"},"
