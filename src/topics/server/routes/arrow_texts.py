"""Columns of texts for Arrow: cut out of bytes, or out of the JSON of meta, many at once.

Meta is JSON that we have rendered: no spaces, no name twice. Where every value is a text without
an escape, its quotes say where names and values are; any other is decoded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from topics.engine.state.places import Numbers
from topics.engine.state.record import META
from topics.server.http.slices import Steps

QUOTE, BACKSLASH = b'"\\'
NEAR_BYTES = 128
# Objects that are decoded in one step.
DECODED_TOGETHER = 64
# Columns that are longer are made so rarely that nothing is kept for them.
KEPT_ROWS_MAX = 1 << 16

_METAS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_TEXT = msgspec.json.Decoder(str)


def cut(pa: Any, raw: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers) -> Any:
    """The pieces [start, end) of `raw`, which are in order, as a column of bytes."""
    count = len(starts)
    # A column of what is wanted and of what lies between, of which every second one is taken.
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = starts
    edges[1::2] = ends
    everything = pa.Array.from_buffers(
        pa.binary(), max(2 * count - 1, 0), [None, pa.py_buffer(edges), pa.py_buffer(raw)]
    )
    # From the heap of the process, whose pages were used before; Arrow's own gives its back to the
    # system all the time, and gets them anew, one fault each.
    return pa.compute.take(
        everything, _every_second(pa, count), boundscheck=False,
        memory_pool=pa.system_memory_pool(),
    )  # fmt: skip


def _every_second(pa: Any, count: int) -> Any:
    if count > KEPT_ROWS_MAX:
        return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
    return _even_numbers(pa, 1 << count.bit_length())[:count]


@lru_cache(maxsize=KEPT_ROWS_MAX.bit_length() + 1)
def _even_numbers(pa: Any, count: int) -> Any:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def meta_starts(
    pa: Any,
    raw: npt.NDArray[np.uint8],
    starts: Numbers,
    ends: Numbers,
    near_bytes: int = NEAR_BYTES,
) -> Steps[Numbers]:
    """Where the meta part begins in each of these pieces, all of which end with one."""
    # Most have little: it is looked for near the end, then farther away.
    near = np.maximum(starts, ends - near_bytes)
    ahead = cut(pa, raw, near, ends)
    yield
    parts = pa.compute.split_pattern(ahead, META, max_splits=1, reverse=True)
    edges = np.asarray(parts.offsets)
    sizes = np.diff(np.frombuffer(parts.values.buffers()[1], np.int32, len(parts.values) + 1))
    found: Numbers = ends - sizes[edges[1:] - 1] - len(META)
    missed = np.flatnonzero(np.diff(edges) == 1)
    if len(missed):
        assert bool((near > starts)[missed].all()), "a record with meta has a meta part"
        wider = 16 * near_bytes
        found[missed] = yield from meta_starts(pa, raw, starts[missed], ends[missed], wider)
    return found


def maps(pa: Any, kind: Any, texts: Any, has_meta: npt.NDArray[np.bool_]) -> Steps[Any]:
    """A column of maps: null, or what the next of `texts` says, which are JSON objects."""
    _, offsets, raw = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    names, values, counts = yield from _pairs(pa, np.frombuffer(raw, np.uint8)[: edges[-1]], edges)
    yield
    sizes = np.zeros(len(has_meta) + 1, np.int32)
    sizes[1:][has_meta] = counts
    valid = None
    if not has_meta.all():
        valid = pa.py_buffer(np.packbits(has_meta, bitorder="little"))
    entries = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(
        kind, len(has_meta), [valid, pa.py_buffer(np.cumsum(sizes, dtype=np.int32))],
        children=[entries],
    )  # fmt: skip


def _pairs(pa: Any, raw: npt.NDArray[np.uint8], edges: Numbers) -> Steps[tuple[Any, Any, Numbers]]:
    """Names and values of JSON objects that stand one behind the other, and how many each has."""
    quotes = np.flatnonzero(raw == QUOTE)
    at = np.searchsorted(quotes, edges)
    counts = np.diff(at)
    is_plain = _are_plain(raw, edges, quotes, at)
    yield
    if is_plain is None:
        return *(yield from _plain_pairs(pa, raw, quotes)), counts >> 2
    names, values = yield from _plain_pairs(pa, raw, quotes[np.repeat(is_plain, counts)])
    others = _Decoded()
    yield from others.take(raw, edges, np.flatnonzero(~is_plain))
    counts >>= 2
    counts[~is_plain] = others.counts
    # Both kinds, back in the order of their records.
    is_quoted = np.repeat(is_plain, counts)
    order = np.empty(len(is_quoted), np.int64)
    order[is_quoted] = np.arange(len(names))
    order[~is_quoted] = np.arange(len(names), len(order))
    both = [(names, others.names), (values, others.values)]
    names, values = (
        pa.concat_arrays([plain, pa.array(other, pa.string())]).take(pa.array(order))
        for plain, other in both
    )
    return names, values, counts


def _are_plain(
    raw: npt.NDArray[np.uint8], edges: Numbers, quotes: Numbers, at: Numbers
) -> npt.NDArray[np.bool_] | None:
    """Which of these objects are nothing but names and texts between quotes; None: all are.

    That is: `{"`, `":"`, `","` and `"}`, with one byte between a quote that ends a text and the one
    that begins the next.
    """
    counts = np.diff(at)
    slashes = np.flatnonzero(raw == BACKSLASH)
    is_plain: npt.NDArray[np.bool_] = counts & 3 == 0
    is_plain[np.searchsorted(edges, slashes, side="right") - 1] = False
    if counts.all():
        begins, ends = quotes[at[:-1]] == edges[:-1] + 1, quotes[at[1:] - 1] + 2 == edges[1:]
        is_plain &= begins & ends
    else:
        some = counts > 0
        is_plain[some] &= quotes[at[:-1][some]] == edges[:-1][some] + 1
        is_plain[some] &= quotes[at[1:][some] - 1] + 2 == edges[1:][some]
    if not is_plain.all():
        return _are_each_plain(is_plain, quotes, at)
    is_wrong = quotes[2::2] - quotes[1:-1:2] != 2
    # From one object to the next there is more between them.
    is_wrong[(at[1:-1][(at[1:-1] > 0) & (at[1:-1] < len(quotes))] >> 1) - 1] = False
    return _are_each_plain(is_plain, quotes, at) if is_wrong.any() else None


def _are_each_plain(
    is_plain: npt.NDArray[np.bool_], quotes: Numbers, at: Numbers
) -> npt.NDArray[np.bool_]:
    """The same where some are not, of those of which it is not known yet."""
    counts = np.diff(at)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(quotes)) - at[:-1][row]
    is_begin = (place > 0) & (place & 1 == 0)
    is_wrong = is_begin & (np.diff(quotes, prepend=0) != 2)
    is_plain[row[is_wrong]] = False
    return is_plain


def _plain_pairs(pa: Any, raw: npt.NDArray[np.uint8], quotes: Numbers) -> Steps[tuple[Any, Any]]:
    names = cut(pa, raw, quotes[0::4] + 1, quotes[1::4])
    yield
    values = cut(pa, raw, quotes[2::4] + 1, quotes[3::4])
    return names.view(pa.string()), values.view(pa.string())


class _Decoded:
    """Names and values of the objects that are not plain, and how many each has."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[str] = []
        self.counts: list[int] = []

    def take(self, raw: npt.NDArray[np.uint8], edges: Numbers, rows: Numbers) -> Steps[None]:
        view = raw.data
        spans = list(zip(edges[rows].tolist(), edges[rows + 1].tolist(), strict=True))
        for at in range(0, len(spans), DECODED_TOGETHER):
            joined = b",".join([view[a:b] for a, b in spans[at : at + DECODED_TOGETHER]])
            for meta in _METAS.decode(b"[" + joined + b"]"):
                self.names += meta
                self.values += map(_text, meta.values())
                self.counts.append(len(meta))
            yield


def _text(value: msgspec.Raw) -> str:
    """A value that is no text is its JSON."""
    raw = bytes(value)
    if raw[0] != QUOTE:
        return raw.decode()
    text: str = _TEXT.decode(raw) if BACKSLASH in raw else raw[1:-1].decode()
    return text
