"""JSON with lone surrogate escapes, which the grammar allows and our decoder refuses.

The decoder is shown a copy of the same length with every surrogate escape masked. What has to be
verbatim is cut from the original at the same places; the rest is decoded from the original without
those parts, so that a lone surrogate is still refused wherever text is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

T = TypeVar("T")


class HasData(Protocol):
    @property
    def data(self) -> msgspec.Raw: ...


# How every escape of a surrogate begins. So do some of letters, which may as well be others.
_BEGINS = (rb"\ud", rb"\uD")


def has_surrogates(text: bytes) -> bool:
    """Whether surrogates may be escaped in it."""
    return any(begin in text for begin in _BEGINS)


def masked(text: bytes) -> bytes:
    """A copy of the same length in which no surrogate is escaped.

    In a few passes over it, however many there are: a body may have ten million. Each becomes the
    escape of another character, whose digits are still the decoder's to check.
    """
    # Escaped backslashes first: behind one of them, `uD800` is not an escape.
    text = text.replace(rb"\\", b"__")
    for begin in _BEGINS:
        text = text.replace(begin, rb"\u0")
    return text


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
