"""Calls of the key-value store: buckets, keys, snapshots, compaction."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.client.request import Request, body, encode, path, reading, reading_around
from topics.types import TopicConfig, value_of


class BucketPut(msgspec.Struct, frozen=True, kw_only=True):
    bucket: str
    topic: str
    created: bool
    config: TopicConfig


class BucketReader(msgspec.Struct, frozen=True):
    """Who has to see a marker before it goes."""

    name: str
    kind: str
    seq: int


class BucketState(msgspec.Struct, frozen=True, kw_only=True):
    bucket: str
    topic: str
    size: int
    pending_tombstones: int
    oldest_tombstone_ts: int | None
    head_seq: int
    compacted_seq: int
    bytes: int
    snapshots: int
    readers: list[BucketReader]
    config: TopicConfig


class BucketSummary(msgspec.Struct, frozen=True, kw_only=True):
    bucket: str
    size: int
    pending_tombstones: int


class BucketPage(msgspec.Struct, frozen=True, kw_only=True):
    buckets: list[BucketSummary]
    next_cursor: str | None = None


class BucketDeleted(msgspec.Struct, frozen=True):
    bucket: str
    deleted: bool


class KeyPut(msgspec.Struct, frozen=True):
    key: str
    seq: int
    ts: int
    created: bool


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a key; without a value where that was not asked for, or in a marker."""

    key: str = ""
    seq: int
    ts: int
    raw: msgspec.Raw | UnsetType = msgspec.field(name="value", default=UNSET)
    deleted: bool = False

    @property
    def data(self) -> msgspec.Raw:
        """The value as JSON text, as it was written."""
        return msgspec.Raw(b"null") if isinstance(self.raw, UnsetType) else self.raw

    @property
    def value(self) -> Any:
        """The value, decoded; None in a marker."""
        return None if isinstance(self.raw, UnsetType) else value_of(self.raw)

    def __repr__(self) -> str:
        text = bytes(self.data).decode("utf-8", "replace")
        what = "deleted=True" if self.deleted else f"value={text}"
        return f"{type(self).__name__}(key={self.key!r}, seq={self.seq}, ts={self.ts}, {what})"


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[KeyEntry]
    next_cursor: str | None = None


class KeyHistory(msgspec.Struct, frozen=True):
    key: str
    versions: list[KeyEntry]


def _with_values(entries: list[KeyEntry]) -> list[KeyEntry]:
    return [entry for entry in entries if entry.raw is not UNSET]


def _put_back(entries: list[KeyEntry], values: list[msgspec.Raw]) -> list[KeyEntry]:
    """The entries with their values again, where they have one."""
    rest = iter(values)
    return [
        entry if entry.raw is UNSET else msgspec.structs.replace(entry, raw=next(rest))
        for entry in entries
    ]


_ENTRY = reading_around(
    KeyEntry, lambda entry: _with_values([entry]), lambda entry, raw: _put_back([entry], raw)[0]
)
_PAGE = reading_around(
    KeyPage, lambda page: _with_values(page.keys),
    lambda page, raw: msgspec.structs.replace(page, keys=_put_back(page.keys, raw)),
)  # fmt: skip
_VERSIONS = reading_around(
    KeyHistory, lambda past: _with_values(past.versions),
    lambda past, raw: msgspec.structs.replace(past, versions=_put_back(past.versions, raw)),
)  # fmt: skip


def _history(text: bytes) -> KeyHistory:
    """The answer names the key once; each version of it has the name too."""
    past = _VERSIONS(text)
    named = [msgspec.structs.replace(one, key=past.key) for one in past.versions]
    return msgspec.structs.replace(past, versions=named)


class KeyDeleted(msgspec.Struct, frozen=True):
    deleted: bool | int
    seq: int | None


class Kept(msgspec.Struct, frozen=True):
    young: int
    snapshots: int
    readers: int


class Compacted(msgspec.Struct, frozen=True):
    removed_tombstones: int
    removed_versions: int
    kept: Kept
    pending_tombstones: int


class Snapshot(msgspec.Struct, frozen=True):
    snapshot: str
    seq: int
    expires_ts: int


class SnapshotClosed(msgspec.Struct, frozen=True):
    snapshot: str
    deleted: bool


# -- buckets ---------------------------------------------------------------------------------------


def create_bucket(
    bucket: str, *, history: int | None = None, grace_ms: int | None = None, **config: Any
) -> Request[BucketPut]:
    """Creates a bucket, or replaces its config; fields as those of a topic."""
    text = body(history=history, grace_ms=grace_ms, **config)
    return Request("PUT", path("kv", bucket), reading(BucketPut), text, is_write=True)


def bucket(bucket: str) -> Request[BucketState]:
    """A bucket's keys, markers and who holds them. Raises BucketNotFound."""
    return Request("GET", path("kv", bucket), reading(BucketState))


def buckets(
    *, prefix: str = "", page_size: int | None = None, cursor: str | None = None
) -> Request[BucketPage]:
    """A page of buckets in byte order."""
    query = {"prefix": prefix or None, "page_size": page_size, "cursor": cursor}
    return Request("GET", path("kv", **query), reading(BucketPage))


def delete_bucket(bucket: str) -> Request[BucketDeleted]:
    """Removes a bucket and all its keys for good."""
    return Request("DELETE", path("kv", bucket), reading(BucketDeleted), is_write=True)


def compact(bucket: str, *, max_age_ms: int | None = None, prefix: str = "") -> Request[Compacted]:
    """Removes the markers and versions that nobody needs any more."""
    text = body(max_age_ms=max_age_ms, prefix=prefix)
    place = path("kv", bucket, "compact")
    return Request("POST", place, reading(Compacted), text, is_write=True, wait_s=600)


def open_snapshot(bucket: str, *, ttl_ms: int | None = None) -> Request[Snapshot]:
    """Opens a snapshot, which the server closes after `ttl_ms` at the latest."""
    return Request("POST", path("kv", bucket, "snapshots"), reading(Snapshot), body(ttl_ms=ttl_ms))


def close_snapshot(bucket: str, snapshot: str) -> Request[SnapshotClosed]:
    """Closes a snapshot."""
    place = path("kv", bucket, "snapshots", snapshot)
    return Request("DELETE", place, reading(SnapshotClosed), is_write=True)


# -- keys ------------------------------------------------------------------------------------------


def put_key(
    bucket: str,
    key: str,
    value: Any,
    *,
    if_seq: int | None = None,
    idempotency_key: str | None = None,
) -> Request[KeyPut]:
    """Sets a key. Raises Conflicting when its live version is not `if_seq` (0: there is none)."""
    return Request(
        "PUT", path("kv", bucket, "keys", key, if_seq=if_seq), reading(KeyPut), encode(value),
        _once(idempotency_key), is_write=True,
    )  # fmt: skip


def get_key(
    bucket: str, key: str, *, at_seq: int | None = None, snapshot: str | None = None
) -> Request[KeyEntry]:
    """A key's value, now or then. Raises KeyNotFound, Compacted, SnapshotNotFound."""
    place = path("kv", bucket, "keys", key, at_seq=at_seq, snapshot=snapshot)
    return Request("GET", place, _ENTRY)


def key_history(bucket: str, key: str) -> Request[KeyHistory]:
    """What is left of a key's past, oldest first. Raises KeyNotFound."""
    return Request("GET", path("kv", bucket, "keys", key, history=True), _history)


def delete_key(
    bucket: str, key: str, *, if_seq: int | None = None, idempotency_key: str | None = None
) -> Request[KeyDeleted]:
    """Deletes a key. Raises Conflicting as `put_key` does."""
    return Request(
        "DELETE", path("kv", bucket, "keys", key, if_seq=if_seq), reading(KeyDeleted), None,
        _once(idempotency_key), is_write=True,
    )  # fmt: skip


def delete_prefix(bucket: str, prefix: str) -> Request[KeyDeleted]:
    """Deletes all keys that begin with a prefix, with one marker."""
    place, text = path("kv", bucket, "delete"), body(prefix=prefix)
    return Request("POST", place, reading(KeyDeleted), text, is_write=True)


def keys(
    bucket: str,
    *,
    prefix: str = "",
    page_size: int | None = None,
    cursor: str | None = None,
    values: bool = False,
    at_seq: int | None = None,
    snapshot: str | None = None,
) -> Request[KeyPage]:
    """A page of live keys in byte order, now or then. It may be short and not the last."""
    query = {
        "prefix": prefix or None, "page_size": page_size, "cursor": cursor,
        "values": values or None, "at_seq": at_seq, "snapshot": snapshot,
    }  # fmt: skip
    return Request("GET", path("kv", bucket, "keys", **query), _PAGE)


def _once(given: str | None) -> dict[str, str]:
    """So that one that is sent again is not done twice, and does not conflict with itself."""
    return {"Idempotency-Key": given or secrets.token_hex(16)}
