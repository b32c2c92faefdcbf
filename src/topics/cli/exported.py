"""Lines of `topics export` as records that can be written: what a reader is given, given back.

A record that was read names its tag and node `$tag` and `$node`; as a record to be written it would
lose both without a word, for unknown fields are ignored. A gap is no record: it is left out, and
whoever writes says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.client.request import encode, reading_around
from topics.types import ROUTER_META

# In front of a line that may be one of an export.
_SIGNS = (b'"$seq"', b'"gap_from"')


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    seq: int | UnsetType = msgspec.field(name="$seq", default=UNSET)
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    data: msgspec.Raw = msgspec.Raw(b"")
    meta: dict[str, Any] | None = None
    gap_from: int | UnsetType = UNSET


def _parts(line: _Line) -> Sequence[_Line]:
    return [line] if bytes(line.data) else []


_READ = reading_around(
    _Line, _parts,
    lambda line, data: msgspec.structs.replace(line, data=data[0]) if data else line,
)  # fmt: skip


def as_written(text: bytes) -> bytes | None:
    """The record of a line; None for a gap. What is no line of an export is as it was."""
    if not any(sign in text for sign in _SIGNS):
        return text
    try:
        line = _READ(text)
    except msgspec.DecodeError:
        # Not one of ours: the server says what is wrong with it.
        return text
    if line.seq is UNSET:
        return text if line.gap_from is UNSET or bytes(line.data) else None
    meta = {name: value for name, value in (line.meta or {}).items() if name != ROUTER_META}
    fields = {"data": line.data, "tag": line.tag, "node": line.node, "meta": meta or None}
    return encode({name: value for name, value in fields.items() if value is not None})
