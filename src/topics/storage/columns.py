"""Columns: the one codec for a run of records, in the write-ahead log, in memory and in segments.

A run is its rendered records, each `{…},` with the comma, back to back, plus what a read needs to
cut them without parsing: where each ends, when it was committed, its node, its tag, whether it has
meta, and what it is to a bucket. A run of live records is one slice of `payload`; leaving out the
last comma makes it the inside of a JSON array.

Encoded columns start with nothing: the caller keeps `count` and the flags that say which of them
follow, in the order of the flag bits. All integers are little-endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from topics.errors import CorruptData
from topics.types import Payload

ENDS, NODES, TAGS, METAS, KEY, TIMES = 1, 2, 4, 8, 16, 32
# The key is not one for idempotency: it says which jobs of a queue the records were.
MOVED = 64
# What records are to a bucket, as texts: see engine/state/kinds.
KINDS = 128
NONE_U16 = 0xFFFF
# An idempotency key: of a whole write, or, in a frame of several, one for each record. All zeros
# is none.
KEY_BYTES = 16
NO_KEY = bytes(KEY_BYTES)

if sys.byteorder != "little":
    raise ImportError("topics stores little-endian columns and runs on little-endian machines")


class Spans:
    """Where each record of a run ends, and when it was committed: what counting needs of it.

    `beside` says how much of each is neither data nor meta, where the records are not at hand; then
    `tags` and `kinds` are known of buckets, whose indexes are made of them, and of nobody else.
    """

    __slots__ = ("beside", "ends", "kinds", "tags", "times", "times_at")

    def __init__(
        self,
        ends: array[int],
        times_at: array[int],
        times: array[int],
        beside: array[int] | None = None,
        tags: list[str | None] | None = None,
        kinds: list[str | None] | None = None,
    ) -> None:
        self.ends = ends
        self.times_at = times_at
        self.times = times
        self.beside = beside
        self.tags = tags
        self.kinds = kinds

    def __len__(self) -> int:
        return len(self.ends)

    def start(self, index: int) -> int:
        return self.ends[index - 1] if index else 0

    def span(self, first: int, stop: int) -> int:
        """Payload bytes of the records [first, stop)."""
        return self.start(stop) - self.start(first)

    def time_of(self, index: int) -> int:
        return self.times[bisect_right(self.times_at, index) - 1]

    def first_after(self, ts: int) -> int:
        """Index of the first record with a time above `ts`; the length when there is none."""
        run = bisect_right(self.times, ts)
        return self.times_at[run] if run < len(self.times_at) else len(self.ends)


class Columns(Spans):
    """`nodes`, `tags` and `kinds` are None when no record of the run has one, as is `metas`.

    A record with a kind has meta.
    """

    __slots__ = ("metas", "nodes", "payload")

    def __init__(
        self,
        payload: Payload,
        ends: array[int],
        times_at: array[int],
        times: array[int],
        nodes: list[str | None] | None = None,
        tags: list[str | None] | None = None,
        metas: bytearray | None = None,
        kinds: list[str | None] | None = None,
    ) -> None:
        # Not through Spans: one of these is made for each record that is written alone.
        self.payload = payload
        self.ends = ends
        self.times_at = times_at
        self.times = times
        self.nodes = nodes
        self.tags = tags
        self.metas = metas
        self.kinds = kinds

    def extend(self, other: Columns) -> None:
        """Appends a later run; needs a bytearray payload."""
        payload = self.payload
        assert isinstance(payload, bytearray)
        before, shift = len(self.ends), len(payload)
        payload += other.payload
        added = len(other.ends)
        if added == 1:
            self.ends.append(len(payload))
        else:
            self.ends.extend([end + shift for end in other.ends] if shift else other.ends)
        for at, ts in zip(other.times_at, other.times, strict=True):
            if not self.times or self.times[-1] != ts:
                self.times_at.append(before + at)
                self.times.append(ts)
        if self.nodes is not None or other.nodes is not None:
            self.nodes = _joined(self.nodes, before, other.nodes, added)
        if self.tags is not None or other.tags is not None:
            self.tags = _joined(self.tags, before, other.tags, added)
        if self.metas is not None or other.metas is not None:
            self.metas = self.metas or bytearray(before)
            self.metas += other.metas or bytes(added)
            if self.kinds is not None or other.kinds is not None:
                self.kinds = _joined(self.kinds, before, other.kinds, added)

    def cut(self, first: int, stop: int) -> Columns:
        """A copy of the records [first, stop)."""
        base = self.start(first)
        payload = bytes(memoryview(self.payload)[base : self.start(stop)])
        ends = array("I", (np.array(self.ends[first:stop], np.uint32) - np.uint32(base)).tobytes())
        run = bisect_right(self.times_at, first) - 1
        last = bisect_right(self.times_at, stop - 1)
        times_at = array("I", [max(at - first, 0) for at in self.times_at[run:last]])
        return Columns(
            payload, ends, times_at, self.times[run:last],
            None if self.nodes is None else self.nodes[first:stop],
            None if self.tags is None else self.tags[first:stop],
            None if self.metas is None else self.metas[first:stop],
            None if self.kinds is None else self.kinds[first:stop],
        )  # fmt: skip

    def without(self, gone: bytes) -> Columns:
        """A copy in which nothing is left of the records whose byte in `gone` is set: no bytes, no
        texts, and the time of a neighbour. All others are what and where they were.
        """
        is_gone = np.frombuffer(gone, np.uint8) != 0
        offsets = np.zeros(len(gone) + 1, np.int64)
        offsets[1:] = np.frombuffer(self.ends, np.uint32)
        sizes = np.where(is_gone, 0, np.diff(offsets))
        edges = np.flatnonzero(np.diff(is_gone, prepend=True, append=True))
        cuts = offsets[edges].tolist()
        whole = memoryview(self.payload)
        payload = b"".join(map(whole.__getitem__, map(slice, cuts[::2], cuts[1::2])))
        times_at, times = self._times_without(is_gone)
        metas = np.where(is_gone, 0, np.frombuffer(self.metas or bytes(len(gone)), np.uint8))
        return Columns(
            payload, array("I", np.cumsum(sizes).astype(np.uint32).tobytes()), times_at, times,
            _texts_without(self.nodes, gone), _texts_without(self.tags, gone),
            bytearray(metas.tobytes()) if metas.any() else None, _texts_without(self.kinds, gone),
        )  # fmt: skip

    def _times_without(self, is_gone: npt.NDArray[np.bool_]) -> tuple[array[int], array[int]]:
        """The times of the records that are left, which the others have too; never none."""
        starts = np.frombuffer(self.times_at, np.uint32).astype(np.int64)
        kept = np.add.reduceat(~is_gone, starts, dtype=np.int64) > 0
        kept[-1] |= not kept.any()
        starts, times = starts[kept], np.frombuffer(self.times, np.int64)[kept]
        starts[0] = 0
        return array("I", starts.astype(np.uint32).tobytes()), array("q", times.tobytes())


def _texts_without(texts: list[str | None] | None, gone: bytes) -> list[str | None] | None:
    if texts is None:
        return None
    kept = [None if is_gone else text for is_gone, text in zip(gone, texts, strict=True)]
    return kept if any(text is not None for text in kept) else None


def empty() -> Columns:
    return Columns(bytearray(), array("I"), array("I"), array("q"))


def single_time(payload: bytes, ts: int) -> Columns:
    """One record of nothing but data."""
    return Columns(payload, array("I", (len(payload),)), array("I", (0,)), array("q", (ts,)))


def _joined(
    left: list[str | None] | None, before: int, right: list[str | None] | None, added: int
) -> list[str | None]:
    joined: list[str | None] = [None] * before if left is None else left
    joined.extend([None] * added if right is None else right)
    return joined


def encode(columns: Columns, *, times: bool, key: bytes = b"") -> tuple[int, bytes]:
    """The flags and the encoded columns; the payload is stored apart so that it stays contiguous.

    `times` says whether the commit times follow: a frame has one time in its table entry.
    """
    flags, parts = 0, []
    if len(columns.ends) > 1:
        flags |= ENDS
        parts.append(columns.ends.tobytes())
    if columns.nodes is not None:
        flags |= NODES
        parts.append(encode_texts(columns.nodes))
    if columns.tags is not None:
        flags |= TAGS
        parts.append(encode_texts(columns.tags))
    if columns.metas is not None:
        flags |= METAS
        parts.append(bytes(columns.metas))
    if key:
        flags |= KEY
        parts.append(encode_key(key))
    if times:
        flags |= TIMES
        parts.append(struct.pack("<I", len(columns.times)))
        parts.append(columns.times_at.tobytes() + columns.times.tobytes())
    if columns.kinds is not None:
        flags |= KINDS
        parts.append(encode_texts(columns.kinds))
    return flags, b"".join(parts)


def encode_key(key: bytes) -> bytes:
    """What the flag KEY stands for: all there is of a record of nothing but data and a key."""
    return struct.pack("<H", len(key)) + key


def decode(
    flags: int, count: int, raw: Payload, payload: Payload, ts: int
) -> tuple[Columns, bytes]:
    """The columns and the bytes of the key, empty when there is none. Raises CorruptData."""
    try:
        return _decode(flags, count, bytes(raw), payload, ts)
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptData(f"columns do not decode: {error}") from None


def _decode(flags: int, count: int, raw: bytes, payload: Payload, ts: int) -> tuple[Columns, bytes]:
    at = 0
    ends = array("I", [len(payload)])
    if flags & ENDS:
        ends = array("I", raw[at : at + 4 * count])
        at += 4 * count
    if len(ends) != count or ends[-1] != len(payload):
        raise ValueError("ends do not fit the payload")
    nodes = tags = metas = None
    if flags & NODES:
        nodes, at = decode_texts(raw, at, count)
    if flags & TAGS:
        tags, at = decode_texts(raw, at, count)
    if flags & METAS:
        metas = bytearray(raw[at : at + count])
        at += count
    key = b""
    if flags & KEY:
        (length,) = struct.unpack_from("<H", raw, at)
        key = raw[at + 2 : at + 2 + length]
        at += 2 + length
    times_at, times = array("I", [0]), array("q", [ts])
    if flags & TIMES:
        (runs,) = struct.unpack_from("<I", raw, at)
        times_at = array("I", raw[at + 4 : at + 4 + 4 * runs])
        times = array("q", raw[at + 4 + 4 * runs : at + 4 + 12 * runs])
        at += 4 + 12 * runs
        if len(times) != runs or not runs or times_at[0] != 0:
            raise ValueError("times do not fit")
    kinds = None
    if flags & KINDS:
        kinds, at = decode_texts(raw, at, count)
    if at != len(raw):
        raise ValueError("bytes left over")
    return Columns(payload, ends, times_at, times, nodes, tags, metas, kinds), key


def encode_texts(texts: Sequence[str | None]) -> bytes:
    """Lengths, then the distinct texts by reference: few nodes repeat a million times."""
    distinct: dict[str | None, int] = {}
    refs = array("I", [distinct.setdefault(text, len(distinct)) for text in texts])
    encoded = [None if text is None else text.encode() for text in distinct]
    lengths = array("H", [NONE_U16 if raw is None else len(raw) for raw in encoded])
    return b"".join(
        [struct.pack("<I", len(encoded)), lengths.tobytes(), refs.tobytes()]
        + [raw for raw in encoded if raw is not None]
    )


def decode_texts(raw: bytes, at: int, count: int) -> tuple[list[str | None], int]:
    (distinct,) = struct.unpack_from("<I", raw, at)
    at += 4
    lengths = array("H", raw[at : at + 2 * distinct])
    at += 2 * distinct
    refs = array("I", raw[at : at + 4 * count])
    at += 4 * count
    if len(lengths) != distinct or len(refs) != count:
        raise ValueError("texts do not fit")
    texts: list[str | None] = []
    for length in lengths:
        if length == NONE_U16:
            texts.append(None)
            continue
        if at + length > len(raw):
            raise ValueError("texts run past the end")
        texts.append(raw[at : at + length].decode())
        at += length
    return [texts[ref] for ref in refs], at
