"""What a record is to a bucket of the key-value store, kept as a column so that nobody parses it.

A record of a bucket is a put when it has a tag and no kind. `meta.kv` makes the others: a marker, a
range marker with the prefix in `data.prefix`, or something that no bucket knows, which counts for
nothing. The kind is found when the record is written, whatever its topic: a router may copy it into
a bucket later.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# The name in meta, and its two values.
META = "kv"
DELETE, DELETE_PREFIX = "delete", "delete_prefix"

# A kind as the column has it: a marker, a range marker with its prefix behind this, or neither.
MARKER, RANGE, OTHER = "d", "p", "x"
# No key is longer, so a longer prefix hides nothing.
PREFIX_BYTES_MAX = 256


class _Prefix(msgspec.Struct):
    prefix: str


_DATA = msgspec.json.Decoder(_Prefix)


def kind_of(meta: Mapping[str, str], data: bytes | msgspec.Raw) -> str | None:
    """The kind of a record with this meta; None for most."""
    said = meta.get(META)
    if said is None:
        return None
    if said == DELETE:
        return MARKER
    if said == DELETE_PREFIX:
        try:
            prefix = _DATA.decode(data).prefix
        except (msgspec.DecodeError, RecursionError):
            return OTHER
        if len(prefix.encode()) <= PREFIX_BYTES_MAX:
            return RANGE + prefix
    return OTHER


def is_marker(kind: str | None) -> bool:
    """Whether a record deletes: those find room in a full bucket."""
    return kind is not None and kind != OTHER
