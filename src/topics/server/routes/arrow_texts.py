"""Columns of texts for Arrow: cut out of bytes, or out of the JSON of meta, many at once.

Meta is JSON that we have rendered: no spaces, no name twice. Where every value is a text without
an escape, its quotes say where names and values are; any other is decoded, one by one.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from topics.engine.state.places import Numbers

QUOTE, BACKSLASH = b'"\\'


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
    return everything.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def column(pa: Any, texts: list[str | None]) -> Any:
    """Texts, some of which may be missing."""
    there = [text or "" for text in texts]
    whole = "".join(there)
    if not whole.isascii():
        return pa.array(texts, pa.string())
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, there), np.int32, len(texts)), out=offsets[1:])
    valid = None
    if None in texts:
        is_there = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
        valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(whole.encode())]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def maps(pa: Any, kind: Any, texts: Any, has_meta: npt.NDArray[np.bool_]) -> Any:
    """A column of maps: null, or what the next of `texts` says, which are JSON objects."""
    _, offsets, raw = texts.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    names, values, counts = _pairs(pa, np.frombuffer(raw, np.uint8)[: edges[-1]], edges)
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


def _pairs(pa: Any, raw: npt.NDArray[np.uint8], edges: Numbers) -> tuple[Any, Any, Numbers]:
    """Names and values of JSON objects, and how many each has."""
    quotes = np.flatnonzero(raw == QUOTE)
    at = np.searchsorted(quotes, edges)
    counts = np.diff(at)
    is_plain = _are_plain(raw, edges, quotes, at)
    if is_plain.all():
        return *_plain_pairs(pa, raw, quotes), counts >> 2
    names, values = _plain_pairs(pa, raw, quotes[np.repeat(is_plain, counts)])
    others = [
        _decoded(raw[edges[row] : edges[row + 1]].tobytes())
        for row in np.flatnonzero(~is_plain).tolist()
    ]
    pairs = [pair for other in others for pair in other]
    counts >>= 2
    counts[~is_plain] = [len(other) for other in others]
    # Both kinds, back in the order of their records.
    is_quoted = np.repeat(is_plain, counts)
    order = np.empty(len(is_quoted), np.int64)
    order[is_quoted] = np.arange(len(names))
    order[~is_quoted] = np.arange(len(names), len(order))
    return (
        pa.concat_arrays([names, pa.array([name for name, _ in pairs], pa.string())]).take(
            pa.array(order)
        ),
        pa.concat_arrays([values, pa.array([value for _, value in pairs], pa.string())]).take(
            pa.array(order)
        ),
        counts,
    )


def _are_plain(
    raw: npt.NDArray[np.uint8], edges: Numbers, quotes: Numbers, at: Numbers
) -> npt.NDArray[np.bool_]:
    """Which of these objects are nothing but names and texts between quotes."""
    counts = np.diff(at)
    is_plain: npt.NDArray[np.bool_] = counts & 3 == 0
    slashes = np.flatnonzero(raw == BACKSLASH)
    if len(slashes):
        is_plain[np.searchsorted(edges, slashes, side="right") - 1] = False
    # How far each quote is from the one in front of it; the first from the object's beginning.
    if not len(quotes):
        return is_plain
    steps = np.diff(quotes, prepend=0)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(quotes)) - at[:-1][row]
    is_first = place == 0
    steps[is_first] = quotes[is_first] - edges[:-1][row[is_first]] + 1
    # `{"`, `":"` and `","`: one byte lies between a quote that ends and one that begins.
    wrong = (place & 1 == 0) & (steps != 2)
    is_plain[row[wrong]] = False
    some = counts > 0
    is_plain[some] &= quotes[at[1:][some] - 1] + 2 == edges[1:][some]
    return is_plain


def _plain_pairs(pa: Any, raw: npt.NDArray[np.uint8], quotes: Numbers) -> tuple[Any, Any]:
    both = cut(pa, raw, quotes[0::2] + 1, quotes[1::2]).view(pa.string())
    evens = np.arange(0, len(both), 2)
    return both.take(pa.array(evens)), both.take(pa.array(evens + 1))


def _decoded(text: bytes) -> list[tuple[str, str]]:
    """A value that is no text is its JSON."""
    return [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in msgspec.json.decode(text).items()
    ]
