"""A record's wire form: rendered once, for every reader, and kept so in the log and in segments.

    {"$seq":N,"$ts":M,"$node":"…","data":…,"meta":{…}},

`$node` and `meta` are there when they were given; `$tag` is kept apart, in a column, and put in
front when somebody asks for it. The comma behind a record belongs to it, so that a run of records
is a slice. Inside a JSON string every quote is escaped: the markers can only be where the renderer
put them, the first `,"data":` and, in a record with meta, the last `,"meta":{`. Nobody but this
module looks into those bytes, but for who cuts many records at once by `places` and META.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from mmap import mmap
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from topics.consecutive import consecutive
from topics.types import ROUTER_META, records_of

# Seq, time, node_part, data, meta_part.
RECORD = b'{"$seq":%d,"$ts":%d%b,"data":%b%b},'
# The same behind seq and time: node_part, data, meta_part.
REST = b'%b,"data":%b%b},'
_HEAD = b'{"$seq":%d,"$ts":%d'
_HEAD_START = b'{"$seq":'
_HEAD_IN, _DATA_IN = re.compile(rb'\{"\$seq":(\d+),"\$ts":(\d+)'), re.compile(rb'"data":')
# How far in front of its data a record can begin.
_BEFORE_BYTES = 2048
_NODE = b',"$node":'
_DATA = b',"data":'
# Where meta begins: the last one in a record that has any.
META = b',"meta":{'
_END = b"},"
# What every record has beside its seq, time, node, data and meta; and what it has with meta, beside
# the meta itself.
FRAME_BYTES = len(RECORD % (0, 0, b"", b"", b"")) - 2
META_BYTES = len(META) - 1
END_BYTES = len(_END)
_ENCODER = msgspec.json.Encoder()


# -- rendering -----------------------------------------------------------------------------------


def node_part(node: str | None) -> bytes:
    return b"" if node is None else _NODE + _ENCODER.encode(node)


def meta_part(meta: bytes) -> bytes:
    return META[:-1] + meta if meta else b""


def plain_form(ts: int) -> bytes:
    """RECORD for one time and nothing but data: what is left to fill in are seq and data."""
    return b'{"$seq":%%d,"$ts":%d,"data":%%b},' % ts


def plain_run(data: Sequence[Any], first: int, ts: int) -> bytes:
    """Records of nothing but data, from seq `first` on."""
    # All the heads at once, then one join of the right size: a third of the work of formatting
    # each record, and no copying while the result grows.
    count = len(data)
    begin, end = b'{"$seq":', b',"$ts":%d,"data":' % ts
    heads = begin + consecutive(first, count, end + b"\0" + begin) + end
    parts: list[Any] = [_END] * (3 * count)
    parts[0::3] = heads.split(b"\0")
    parts[1::3] = data
    return b"".join(parts)


def plain_rests(data: Sequence[Any]) -> bytes:
    """The same without seqs and times, which come later."""
    parts: list[Any] = [_DATA] * (3 * len(data))
    parts[1::3] = data
    parts[2::3] = [_END] * len(data)
    return b"".join(parts)


PLAIN_REST_BYTES = len(_DATA) + len(_END)


def numbered(rests: Sequence[Any], first: int, ts: int) -> bytes:
    """Records of which everything behind seq and time is there, from seq `first` on."""
    count = len(rests)
    begin, end = b'{"$seq":', b',"$ts":%d' % ts
    heads = begin + consecutive(first, count, end + b"\0" + begin) + end
    parts: list[Any] = [b""] * (2 * count)
    parts[0::2] = heads.split(b"\0")
    parts[1::2] = rests
    return b"".join(parts)


def head_sizes(first: int, count: int, ts: int) -> npt.NDArray[np.uint32] | int:
    """What seq and time take of each record of such a run, in bytes."""
    return len(_HEAD % (0, ts)) - 1 + digits(first, count)


def heads_bytes(first: int, count: int, ts: int) -> int:
    """What they take of all of them together."""
    digits, low, stop = 0, first, first + count
    while low < stop:
        length = len(str(low))
        high = min(stop, 10**length)
        digits += (high - low) * length
        low = high
    return count * (len(_HEAD % (0, ts)) - 1) + digits


def plain_overhead(first: int, count: int, ts: int) -> npt.NDArray[np.uint32] | int:
    """What each record of such a run has beside its data, in bytes."""
    return FRAME_BYTES + len(str(ts)) + digits(first, count)


def digits(first: int, count: int) -> npt.NDArray[np.uint32] | int:
    """How many digits each seq of a run has."""
    low, high = len(str(first)), len(str(first + count - 1))
    if low == high:
        return low
    edges = [first, *(10**power for power in range(low, high)), first + count]
    runs = [after - before for before, after in pairwise(edges)]
    return np.repeat(np.arange(low, high + 1, dtype=np.uint32), runs)


# -- cutting -------------------------------------------------------------------------------------


def tagged(inner: bytes, tag: str) -> bytes:
    """A record without its opening brace, with its tag in front."""
    return b'"$tag":' + _ENCODER.encode(tag) + b"," + inner


def cut(raw: bytes, *, has_meta: bool, with_meta: bool, with_data: bool, tag: str | None) -> bytes:
    """A record without what a reader left out, with the tag it asked for."""
    meta_at = raw.rindex(META) if has_meta else len(raw) - len(_END)
    if not with_meta:
        raw = raw[:meta_at] + _END
    if not with_data:
        raw = raw[: raw.index(_DATA)] + raw[meta_at:]
    return raw if tag is None else b"{" + tagged(raw[1:], tag)


def data_of(raw: bytes, *, has_meta: bool) -> bytes:
    """The data of a record, as it was written."""
    end = raw.rindex(META) if has_meta else -len(_END)
    return raw[raw.index(_DATA) + len(_DATA) : end]


# -- copying -------------------------------------------------------------------------------------


def moved(
    raws: Iterable[bytes],
    first: int,
    ts: int,
    *,
    with_node: bool = True,
    stamp: Callable[[int, bytes], bytes] | None = None,
) -> list[bytes]:
    """Records under other seqs, from `first` on, and another time; all else as it stands.

    `stamp` changes the rest of each, behind seq and time, by its place; see `stamped`.
    """
    head, parts = b',"$ts":%d' % ts, []
    for place, raw in enumerate(raws):
        # Behind `{"$seq":N,"$ts":M`: numbers have no comma.
        rest = raw[raw.index(b",", raw.index(b",") + 1) :]
        if not with_node and rest.startswith(_NODE):
            rest = rest[rest.index(_DATA) :]
        if stamp is not None:
            rest = stamp(place, rest)
        parts.append(b'{"$seq":%d%b%b' % (first + place, head, rest))
    return parts


def stamped(rest: bytes, *, has_meta: bool, marks: dict[str, Any]) -> bytes:
    """The record's rest with meta of our own in it, in place of what is there under its names."""
    if not has_meta:
        return rest[: -len(_END)] + meta_part(_ENCODER.encode(marks)) + _END
    at = rest.rindex(META)
    meta = msgspec.json.decode(rest[at + len(META) - 1 : -len(_END)])
    others = {name: value for name, value in meta.items() if name not in marks}
    return rest[:at] + meta_part(_ENCODER.encode(marks | others)) + _END


def router_mark(raw: bytes) -> dict[str, Any] | None:
    """What a router has stamped on a record with meta, if one has."""
    (record,) = records_of(b"[%b]" % raw[:-1])
    return (record.meta or {}).get(ROUTER_META)


def data_places(content: bytes | mmap) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """Where data begins in bytes of whatever kind, and its record's seq and time.

    None where no record is around it, as far as can be seen.
    """
    for found in _DATA_IN.finditer(content):
        at = found.end()
        before = content[max(0, at - _BEFORE_BYTES) : at]
        front = _HEAD_IN.match(before, max(0, before.rfind(_HEAD_START)))
        yield at, None if front is None else (int(front[1]), int(front[2]))
