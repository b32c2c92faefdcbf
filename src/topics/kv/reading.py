"""Answers about keys: one, its history, or many in order.

A page ends early when it has cost enough: after so many bytes, after so many keys that were live
once and are not at the seq asked for, after so many blocks that had to be read. It then says where
to go on, like any other.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from topics.engine.engine import Engine
from topics.engine.ops.deletes import is_live
from topics.errors import Compacted, KeyNotFound
from topics.kv.bucket import Bucket
from topics.kv.past import keys_ever
from topics.settings import MIB

PAGE_BYTES_MAX = 8 * MIB
PAGE_LOOKS_MAX = 10_000
PAGE_READS_MAX = 64


class Entry(NamedTuple):
    """A version of a key; `value` is JSON, None where it was not asked for."""

    key: str
    seq: int
    ts: int
    value: bytes | None


class Version(NamedTuple):
    """One of a key's past; a marker has no value."""

    seq: int
    ts: int
    value: bytes | None


class Page(NamedTuple):
    entries: list[Entry]
    # The key to go on after; None at the end.
    after: str | None


def get(
    engine: Engine, bucket: Bucket, key: str, *, at: int | None = None, snapshot: str | None = None
) -> Entry:
    """Raises KeyNotFound, Compacted, SnapshotNotFound, ColdMiss."""
    seq = bucket.seq_at(key, at, snapshot)
    if not seq:
        raise KeyNotFound("there is no such key", key=key)
    if at is not None:
        _require_live(bucket, seq)
    value, ts = engine.value_at(bucket.topic, seq)
    return Entry(key, seq, ts, value)


def history(engine: Engine, bucket: Bucket, key: str) -> list[Version]:
    """What is left of a key's past, oldest first. Raises KeyNotFound, ColdMiss."""
    topic, found = bucket.topic, []
    for event in bucket.index.history_of(key):
        if not is_live(topic, abs(event)):
            continue
        if event > 0:
            value, ts = engine.value_at(topic, event)
            found.append(Version(event, ts, value))
        else:
            found.append(Version(-event, engine.time_at(topic, -event), None))
    if not found:
        raise KeyNotFound("there is no such key", key=key)
    return found


def page(
    engine: Engine,
    bucket: Bucket,
    *,
    prefix: str = "",
    after: str = "",
    limit: int = 100,
    with_values: bool = False,
    at: int | None = None,
    snapshot: str | None = None,
) -> Page:
    """Live keys in byte order. Raises Compacted, SnapshotNotFound, ColdMiss."""
    index, at_seq = bucket.index, None
    if snapshot is not None:
        at_seq = bucket.snapshots.get(snapshot).seq
    elif at is not None:
        at_seq = bucket.check_at(at)
        bucket.past.require_whole(at_seq)
    is_first = after < prefix
    start = prefix if is_first else after
    source = index.keys.after if at_seq is None else None
    keys = (
        source(start, is_included=is_first)
        if source is not None
        else keys_ever(index, start, is_included=is_first)
    )
    entries: list[Entry] = []
    size = reads = 0
    for key in islice(keys, PAGE_LOOKS_MAX):
        if not key.startswith(prefix):
            return Page(entries, None)
        if len(entries) == limit or size >= PAGE_BYTES_MAX or reads >= PAGE_READS_MAX:
            return Page(entries, after)
        seq = index.live[key] if at_seq is None else index.last_event(key, at_seq)
        after = key
        if seq > 0:
            if at is not None:
                _require_live(bucket, seq)
            reads += not engine.is_at_hand(bucket.topic, seq)
            entry = _entry(engine, bucket, key, seq, with_values=with_values)
            size += len(entry.value or b"") + len(key)
            entries.append(entry)
    following = next(keys, None)
    is_over = following is None or not following.startswith(prefix)
    return Page(entries, None if is_over else after)


def _require_live(bucket: Bucket, seq: int) -> None:
    """A version of the past may be on its way out, with the index knowing it still."""
    if not is_live(bucket.topic, seq):
        raise Compacted("this version was compacted", seq=seq)


def _entry(engine: Engine, bucket: Bucket, key: str, seq: int, *, with_values: bool) -> Entry:
    if not with_values:
        return Entry(key, seq, engine.time_at(bucket.topic, seq), None)
    value, ts = engine.value_at(bucket.topic, seq)
    return Entry(key, seq, ts, value)
