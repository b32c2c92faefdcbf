"""Calls of readers: pages, ranges, times, cursors, watch sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from topics.client import values
from topics.client.request import Request, body, encode, path, reading, reading_records
from topics.types import Hold

_PAGE = reading_records(values.Page, "records", lambda page: page.records)
_RANGE = reading_records(values.RangePage, "records", lambda page: page.records)
_SIZE = reading(values.RangeSize)
_SEQ_AT = reading(values.SeqAt)
_CURSOR = reading(values.CursorState)
_CURSORS = reading(values.CursorList)
_CURSOR_DELETED = reading(values.CursorDeleted)
_WATCHING = reading(values.Watching)


def diff(
    topic: str,
    *,
    from_seq: int = 0,
    limit: int | None = None,
    node: str | Sequence[str] | None = None,
    include_tags: bool | None = None,
    include_meta: bool | None = None,
    wait_ms: int | None = None,
    epoch: str | None = None,
    max_batch_bytes: int | None = None,
) -> Request[values.Page]:
    """Records after `from_seq`, with the tombstone for what was lost there.

    `wait_ms` waits for records where there are none yet. `node` leaves out what these nodes wrote.
    An `epoch` that is no longer the topic's means that it was recreated: the tombstone says so.
    """
    text = body(
        from_seq=from_seq, limit=limit, node=node, include_tags=include_tags,
        include_meta=include_meta, wait_ms=wait_ms, epoch=epoch, max_batch_bytes=max_batch_bytes,
    )  # fmt: skip
    return Request("POST", path("topics", topic, "diff"), _PAGE, text, wait_s=(wait_ms or 0) / 1000)


def range(
    topic: str,
    *,
    from_seq: int = 0,
    to_seq: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
    match: values.Match | None = None,
    epoch: str | None = None,
) -> Request[values.RangePage]:
    """Records and gaps of (from_seq, to_seq] in order; go on from `next_from_seq`.

    With `match` only the records of a tag, and every gap.
    """
    fields = _range_fields(from_seq, to_seq, max_bytes, max_records, match, epoch)
    return Request("POST", path("topics", topic, "range"), _RANGE, body(**fields))


def range_size(
    topic: str,
    *,
    from_seq: int = 0,
    to_seq: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
    match: values.Match | None = None,
    epoch: str | None = None,
) -> Request[values.RangeSize]:
    """Where a page of `range` would end and how much it would hold, without its records."""
    fields = _range_fields(from_seq, to_seq, max_bytes, max_records, match, epoch)
    text = body(**fields, format="none")
    return Request("POST", path("topics", topic, "range"), _SIZE, text)


def range_arrow(
    topic: str,
    *,
    from_seq: int = 0,
    to_seq: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
    match: values.Match | None = None,
    epoch: str | None = None,
) -> Request[bytes]:
    """Like `range`, as an Arrow IPC stream, with a row for each gap in its place."""
    fields = _range_fields(from_seq, to_seq, max_bytes, max_records, match, epoch)
    text = body(**fields, format="arrow")
    return Request("POST", path("topics", topic, "range"), bytes, text)


def _range_fields(
    from_seq: int,
    to_seq: int | None,
    max_bytes: int | None,
    max_records: int | None,
    match: values.Match | None,
    epoch: str | None,
) -> dict[str, Any]:
    return {
        "from_seq": from_seq, "to_seq": to_seq, "max_bytes": max_bytes,
        "max_records": max_records, "match": match, "epoch": epoch,
    }  # fmt: skip


def seq_at(topic: str, ts_ms: int) -> Request[values.SeqAt]:
    """The first live record at or after a time, in ms since 1970, and where to read on from."""
    return Request("GET", path("topics", topic, "seq-at", ts=ts_ms), _SEQ_AT)


# -- cursors ---------------------------------------------------------------------------------------


def set_cursor(
    topic: str,
    cursor: str,
    seq: int | None = None,
    *,
    epoch: str | None = None,
    if_absent: bool | None = None,
    reset: bool | None = None,
    hold: Hold | Literal["none"] | None = None,
    owner: str | None = None,
    lease_ms: int | None = None,
) -> Request[values.CursorState]:
    """Says how far a named reader has come. Raises CursorRegressed backwards without `reset`.

    `if_absent` sets only where there is none and answers what stands. `hold` keeps records from cap
    and TTL until the cursor has passed; "none" ends a hold. With `owner` and `lease_ms` no other
    owner may set it for so long, and gets CursorLeased; 0 gives it back.
    """
    fields: dict[str, Any] = {"hold": None} if hold == "none" else {}
    given = {
        "seq": seq, "epoch": epoch, "if_absent": if_absent, "reset": reset,
        "hold": None if hold == "none" else hold, "owner": owner, "lease_ms": lease_ms,
    }  # fmt: skip
    fields |= {name: value for name, value in given.items() if value is not None}
    place = path("topics", topic, "cursors", cursor)
    return Request("PUT", place, _CURSOR, encode(fields), is_write=True)


def cursor(topic: str, cursor: str) -> Request[values.CursorState]:
    """Where a named reader stands. Raises NotFound."""
    return Request("GET", path("topics", topic, "cursors", cursor), _CURSOR)


def cursors(topic: str) -> Request[values.CursorList]:
    """All named readers of a topic."""
    return Request("GET", path("topics", topic, "cursors"), _CURSORS)


def delete_cursor(topic: str, cursor: str) -> Request[values.CursorDeleted]:
    """Forgets a named reader and its hold. No error when there is none."""
    place = path("topics", topic, "cursors", cursor)
    return Request("DELETE", place, _CURSOR_DELETED, is_write=True)


# -- watching --------------------------------------------------------------------------------------


class WatchFrom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where to begin in a topic: after a seq (of an epoch), or at its head."""

    from_seq: int = 0
    tail: bool = False
    epoch: str | None = None


def watch(
    topics: Mapping[str, WatchFrom],
    *,
    node: str | Sequence[str] | None = None,
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int | None = None,
    include_meta: bool | None = None,
    include_tags: bool | None = None,
    include_data: bool | None = None,
    consistency: Literal["eventual", "strong"] | None = None,
    lenient: bool = False,
) -> Request[values.Watching]:
    """Makes a watch session, whose stream tells of records and losses as they come.

    `lenient` leaves out topics that do not exist instead of raising TopicNotFound.
    """
    text = body(
        topics=dict(topics), node=node, limit=limit, max_batch_bytes=max_batch_bytes,
        heartbeat_ms=heartbeat_ms, include_meta=include_meta, include_tags=include_tags,
        include_data=include_data, consistency=consistency,
    )  # fmt: skip
    return Request("POST", path("watch", lenient=lenient or None), _WATCHING, text)
