"""The bodies of the key-value store on the wire, as types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.kv.snapshots import TTL_MS, TTL_MS_MAX
from topics.server.api.shapes import Performance
from topics.types import U64, TopicConfig

# A value is kept and given back as it was written: what is encoded is JSON already.
AnyValue = Any


class PrefixBody(msgspec.Struct, kw_only=True):
    prefix: str


class CompactBody(msgspec.Struct, kw_only=True):
    """Without `max_age_ms`, the bucket's `grace_ms`."""

    max_age_ms: U64 | None = None
    prefix: str = ""


class SnapshotBody(msgspec.Struct, kw_only=True):
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=TTL_MS_MAX)] = TTL_MS


class BucketPut(msgspec.Struct, kw_only=True):
    bucket: str
    topic: str
    created: bool
    config: TopicConfig
    performance: Performance


class BucketReader(msgspec.Struct, kw_only=True):
    """Who has to see a marker before it goes."""

    name: str
    kind: Literal["cursor", "router"]
    seq: int


class BucketState(msgspec.Struct, kw_only=True):
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
    performance: Performance


class BucketSummary(msgspec.Struct, kw_only=True):
    bucket: str
    topic: str
    size: int
    pending_tombstones: int
    head_seq: int
    bytes: int


class BucketPage(msgspec.Struct, kw_only=True):
    buckets: list[BucketSummary]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class BucketDeleted(msgspec.Struct, kw_only=True):
    bucket: str
    deleted: bool
    performance: Performance


class KeyPut(msgspec.Struct, kw_only=True):
    """`created`: the key was not live."""

    key: str
    seq: int
    ts: int
    created: bool
    performance: Performance


class KeyVersion(msgspec.Struct, kw_only=True):
    """A version has a value, a marker says that the key was deleted."""

    seq: int
    ts: int
    value: AnyValue = UNSET
    deleted: Literal[True] | UnsetType = UNSET


class KeyFound(msgspec.Struct, kw_only=True):
    """A version of a key, or, with `history`, all that are left, oldest first."""

    key: str
    value: AnyValue = UNSET
    seq: int | UnsetType = UNSET
    ts: int | UnsetType = UNSET
    versions: list[KeyVersion] | UnsetType = UNSET
    performance: Performance


class KeyDeleted(msgspec.Struct, kw_only=True):
    key: str
    deleted: bool
    seq: int | None
    performance: Performance


class PrefixDeleted(msgspec.Struct, kw_only=True):
    """`deleted` counts the live keys that are hidden from now on."""

    deleted: int
    seq: int | None
    performance: Performance


class KeyEntry(msgspec.Struct, kw_only=True):
    key: str
    seq: int
    ts: int
    value: AnyValue = UNSET


class KeyPage(msgspec.Struct, kw_only=True):
    keys: list[KeyEntry]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class Kept(msgspec.Struct, kw_only=True):
    """Markers by the first that held them."""

    young: int
    snapshots: int
    readers: int


class BucketCompacted(msgspec.Struct, kw_only=True):
    removed_tombstones: int
    removed_versions: int
    kept: Kept
    pending_tombstones: int
    performance: Performance


class SnapshotOpened(msgspec.Struct, kw_only=True):
    snapshot: str
    seq: int
    expires_ts: int
    performance: Performance


class SnapshotClosed(msgspec.Struct, kw_only=True):
    snapshot: str
    deleted: bool
    performance: Performance
