"""JSON with lone surrogate escapes, which the grammar allows and our decoder refuses.

The decoder is shown a copy of the same length with every surrogate escape masked. What has to be
verbatim is cut from the original at the same places; the rest is decoded from the original without
those parts, so that a lone surrogate is still refused wherever text is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

T = TypeVar("T")


class HasData(Protocol):
    @property
    def data(self) -> msgspec.Raw: ...


def has_surrogates(text: bytes) -> bool:
    return _SURROGATE.search(text) is not None


def masked(text: bytes) -> bytes:
    """A copy of the same length in which no surrogate is escaped."""
    # Escaped backslashes first: behind one of them, `uD800` is not an escape.
    return _SURROGATE.sub(rb"______", text.replace(rb"\\", b"__"))


def decode_around(
    decode: Callable[[bytes], T], text: bytes, parts_of: Callable[[T], Sequence[HasData]]
) -> tuple[T, list[msgspec.Raw]]:
    """`text` decoded with 0 for each `data`, and the data verbatim. Raises msgspec.DecodeError."""
    mask = masked(text)
    base = _address(mask)
    pieces, data, at = [], [], 0
    for part in parts_of(decode(mask)):
        start = _address(part.data) - base
        stop = start + len(memoryview(part.data))
        pieces += [text[at:start], b"0"]
        data.append(msgspec.Raw(text[start:stop]))
        at = stop
    return decode(b"".join([*pieces, text[at:]])), data


def _address(view: bytes | msgspec.Raw) -> int:
    # A raw value is a view into the text it was decoded from. Loaded only now: it takes longer than
    # all else that a client imports, and nearly none meets a surrogate.
    import numpy as np

    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
