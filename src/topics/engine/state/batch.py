"""The records of one write, held to their limits and rendered once for every reader."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

from topics.engine.state.kinds import kind_of
from topics.engine.state.record import (
    PLAIN_REST_BYTES,
    RECORD,
    REST,
    meta_part,
    node_part,
    plain_overhead,
    plain_rests,
    plain_run,
)
from topics.engine.state.write_request import PlainRecord, RecordInput, check_count
from topics.errors import InvalidRequest, RecordTooLarge
from topics.settings import Settings
from topics.storage.columns import Columns
from topics.types import ROUTER_META

_ENCODER = msgspec.json.Encoder()


def is_full(
    records: list[RecordInput] | list[PlainRecord],
) -> TypeGuard[list[RecordInput]]:
    """Records of one request are all of one type."""
    return type(records[0]) is not PlainRecord


class Batch:
    """A checked write that only waits for its first seq and its time."""

    __slots__ = ("data", "kinds", "metas", "nodes", "record_bytes_max", "tags")

    def __init__(
        self,
        records: list[RecordInput] | list[PlainRecord],
        node: str | None,
        settings: Settings,
    ) -> None:
        if not records:
            raise InvalidRequest("records must not be empty")
        check_count(len(records), settings)
        self.record_bytes_max = settings.max_record_bytes
        self.data = [record.data for record in records]
        self.tags: list[str | None] | None = None
        self.nodes: list[str | None] | None = None
        self.metas: list[bytes] | None = None
        self.kinds: list[str | None] | None = None
        if is_full(records):
            self.tags = _texts("tag", [r.tag for r in records], settings.max_tag_bytes)
            own = [node if r.node is None else r.node for r in records]
            self.nodes = _texts("node", own, settings.max_node_bytes)
            self.metas = _metas([r.meta for r in records], settings)
            if self.metas is not None:
                kinds = [None if r.meta is None else kind_of(r.meta, r.data) for r in records]
                self.kinds = kinds if any(kinds) else None
        elif node is not None:
            self.nodes = _texts("node", [node] * len(records), settings.max_node_bytes)

    def render(self, first: int, ts: int) -> Columns:
        """The batch as wire records from seq `first` on. Raises RecordTooLarge."""
        sizes = self._sizes()
        plain = self.nodes is None and self.metas is None
        if plain:
            payload = plain_run(self.data, first, ts)
            sizes += plain_overhead(first, len(sizes), ts)
            ends = array("I", np.cumsum(sizes, dtype=np.uint32).tobytes())
        else:
            quoted, nodes, metas = self._parts()
            parts = [
                RECORD % (seq, ts, quoted[node], data, meta_part(meta))
                for seq, (data, node, meta) in enumerate(
                    zip(self.data, nodes, metas, strict=True), first
                )
            ]
            payload = b"".join(parts)
            ends = array("I", accumulate(map(len, parts)))
        return self._columns(payload, ends, ts)

    def rests(self) -> Columns:
        """The batch without seqs and times, which come later. Raises RecordTooLarge."""
        sizes = self._sizes()
        if self.nodes is None and self.metas is None:
            sizes += PLAIN_REST_BYTES
            ends = array("I", np.cumsum(sizes, dtype=np.uint32).tobytes())
            return self._columns(plain_rests(self.data), ends, 0)
        quoted, nodes, metas = self._parts()
        parts = [
            REST % (quoted[node], data, meta_part(meta))
            for data, node, meta in zip(self.data, nodes, metas, strict=True)
        ]
        return self._columns(b"".join(parts), array("I", accumulate(map(len, parts))), 0)

    def _columns(self, payload: bytes, ends: array[int], ts: int) -> Columns:
        metas = None if self.metas is None else bytearray(map(bool, self.metas))
        return Columns(
            payload, ends, array("I", [0]), array("q", [ts]), self.nodes, self.tags, metas,
            self.kinds,
        )  # fmt: skip

    def _parts(self) -> tuple[dict[str | None, bytes], list[str | None], list[bytes]]:
        """The nodes as they are written, and node and meta of each record."""
        quoted = {node: node_part(node) for node in set(self.nodes or [None])}
        nodes: list[str | None] = self.nodes or [None] * len(self.data)
        return quoted, nodes, self.metas or [b""] * len(self.data)

    def _sizes(self) -> npt.NDArray[np.uint32]:
        """The bytes of each record's data, all within the limits. Raises RecordTooLarge."""
        sizes = np.fromiter(map(len, self.data), dtype=np.uint32, count=len(self.data))
        if self.metas is not None or int(sizes.max()) > self.record_bytes_max:
            self._check_sizes(sizes)
        return sizes

    def _check_sizes(self, sizes: npt.NDArray[np.uint32]) -> None:
        totals = sizes.tolist()
        if self.metas is not None:
            totals = [a + len(b) for a, b in zip(totals, self.metas, strict=True)]
        check_record_bytes(totals, self.record_bytes_max)


def check_record_bytes(sizes: list[int], bytes_max: int) -> None:
    for index, size in enumerate(sizes):
        if size > bytes_max:
            raise RecordTooLarge(
                f"records[{index}]: data and meta have {size} bytes; the limit is {bytes_max}",
                index=index, limit=bytes_max,
            )  # fmt: skip


def _texts(what: str, texts: list[str | None], bytes_max: int) -> list[str | None] | None:
    present = set(texts)
    present.discard(None)
    if not present:
        return None
    for text in present:
        if text is not None:
            check_text_bytes(what, text, bytes_max)
    return texts


def check_text_bytes(what: str, text: str, bytes_max: int) -> None:
    size = len(text) if text.isascii() else len(utf8(text, what))
    if size > bytes_max:
        raise InvalidRequest(f"{what} is longer than {bytes_max} bytes", limit=bytes_max)


def utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} has a lone surrogate: it is not text") from None


def _metas(metas: list[dict[str, str] | None], settings: Settings) -> list[bytes] | None:
    if metas.count(None) == len(metas):
        return None
    return [
        b"" if meta is None else encode_meta(meta, index, settings)
        for index, meta in enumerate(metas)
    ]


def encode_meta(meta: dict[str, str], index: int, settings: Settings) -> bytes:
    """The meta of a write's record, as JSON. Raises InvalidRequest."""
    if ROUTER_META in meta:
        raise InvalidRequest(f"records[{index}].meta: {ROUTER_META} is reserved")
    try:
        raw = _ENCODER.encode(meta)
    except UnicodeEncodeError:
        raise InvalidRequest(f"records[{index}].meta has a lone surrogate") from None
    if len(meta) > settings.max_meta_keys or len(raw) > settings.max_meta_bytes:
        raise InvalidRequest(
            f"records[{index}].meta has {len(meta)} keys and {len(raw)} bytes; the limits "
            f"are {settings.max_meta_keys} and {settings.max_meta_bytes}",
            index=index,
        )
    return raw
