"""Integers that a client spelt as `5.0` or `1e3`: to JSON they are the same number.

Our decoder takes an integer only when it is spelt as one. Clients whose language has a single
type of number send the others, so a body that was refused for a float is looked at once more.
"""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

# Strings first, so that a number inside one is not seen.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')
_FLOAT = re.compile(rb"[.eE]")
DIGITS_MAX = 309
TOKEN_BYTES_MAX = 100
# Bodies that have integers are small; a large one is not worth the time of everybody else.
TEXT_BYTES_MAX = 64 * 1024


def is_float_refused(error: Exception) -> bool:
    """Whether a decoder wanted an integer and found a number of another spelling."""
    return isinstance(error, msgspec.ValidationError) and "got `float`" in str(error)


def respelt(text: bytes) -> bytes:
    """The same JSON, its whole numbers spelt without fraction and exponent; large ones as is."""
    return text if len(text) > TEXT_BYTES_MAX else _TOKEN.sub(_integer, text)


def _integer(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token[:1] == b'"' or not _FLOAT.search(token) or len(token) > TOKEN_BYTES_MAX:
        return token
    value = Decimal(token.decode())
    # Looked at before it is written out: 1e999999999 is short only as it stands.
    if value.adjusted() >= DIGITS_MAX or value != value.to_integral_value():
        return token
    return b"%d" % int(value)
