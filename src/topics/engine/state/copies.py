"""Copies of records under new seqs: the rest of each record's bytes is taken over as it stands."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from topics.engine.state import record
from topics.storage.columns import Columns
from topics.types import ROUTER_META


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
    payload, ends, start = memoryview(columns.payload), columns.ends, columns.start
    raws = [bytes(payload[start(index) : ends[index]]) for index in indexes]
    metas = None if columns.metas is None else bytearray(columns.metas[i] for i in indexes)
    mark = copying.stamp

    def stamped(place: int, rest: bytes) -> bytes:
        assert mark is not None
        has_meta = bool(metas is not None and metas[place])
        return record.stamped(
            rest, has_meta=has_meta, marks=mark.meta(source_first + indexes[place])
        )

    stamp = None if mark is None else stamped
    parts = record.moved(raws, first, ts, with_node=copying.preserve_node, stamp=stamp)
    if mark is not None:
        metas = bytearray(b"\1") * len(parts)
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
        _picked(columns.kinds, indexes),
    )


def _picked(texts: list[str | None] | None, indexes: Sequence[int]) -> list[str | None] | None:
    if texts is None:
        return None
    picked = [texts[index] for index in indexes]
    return picked if any(text is not None for text in picked) else None
