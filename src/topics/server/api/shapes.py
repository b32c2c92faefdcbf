"""The bodies on the wire, as types: what is decoded, what is encoded, and what OpenAPI describes.

Answers of the hot paths (write, diff) are rendered by hand; tests hold them to their type here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine.reading.ranges import Gap
from topics.engine.state.router_frames import Guarantee
from topics.server.api.fields import (
    Clamped,
    CursorOwner,
    Epoch,
    Node,
    ReadMeta,
    RecordMeta,
    Tag,
    TagMatch,
)
from topics.types import (
    U64,
    ConfigInput,
    Deleted,
    ExplainedRange,
    Hold,
    Name,
    QueueState,
    TopicConfig,
    TopicType,
)


class Performance(msgspec.Struct, kw_only=True):
    """Where the time of this request went. Any field may be missing."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET


# -- requests ------------------------------------------------------------------------------------


class RecordToWrite(msgspec.Struct, kw_only=True):
    data: Any
    tag: Tag | None = None
    node: Node | None = None
    meta: RecordMeta | None = None


class WriteBody(msgspec.Struct, kw_only=True):
    """A write as the document shows it, with the default limits; the engine decodes it itself."""

    records: Annotated[list[RecordToWrite], msgspec.Meta(min_length=1, max_length=10_000)]
    node: Node | None = None
    idempotency_key: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    create: bool | None = None
    config: ConfigInput | None = None
    disable_backpressure: bool = False
    return_seqs: bool = True


class DiffBody(msgspec.Struct, kw_only=True):
    from_seq: U64 = 0
    limit: Clamped = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: Clamped = 0
    epoch: Epoch | None = None
    max_batch_bytes: Clamped = 0


class DeleteBody(msgspec.Struct, kw_only=True):
    before_seq: U64 | None = None
    match: str | TagMatch | None = None


class RewriteBody(msgspec.Struct, kw_only=True):
    """Nothing so far: what is in it is not known, and told to be."""


class CursorInput(msgspec.Struct, kw_only=True):
    """Where a reader stands. Without `seq` or `hold` those of the cursor stay; null ends a hold.

    With `owner` and `lease_ms` no other owner may put it until the lease is over; 0 gives it back.
    """

    seq: U64 | None = None
    epoch: Epoch | None = None
    if_absent: bool = False
    reset: bool = False
    hold: Hold | UnsetType | None = UNSET
    owner: CursorOwner | None = None
    lease_ms: Clamped | None = None


class RangeBody(msgspec.Struct, kw_only=True):
    from_seq: U64 = 0
    to_seq: U64 | None = None
    max_bytes: Clamped = 0
    max_records: Clamped = 0
    match: str | TagMatch | None = None
    epoch: Epoch | None = None
    format: Literal["json", "arrow", "none"] = "json"


class RouterBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A router as the document shows it; the engine decodes it itself."""

    source: Name
    dest: Name
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    from_seq: U64 | None = None


# -- answers -------------------------------------------------------------------------------------


class CursorEntry(msgspec.Struct, kw_only=True):
    cursor: str
    seq: int
    epoch: Epoch
    lag: int
    hold: Hold | None
    updated_ts: int


class CursorBody(msgspec.Struct, kw_only=True):
    topic: str
    cursor: str
    seq: int
    epoch: Epoch
    lag: int
    created: bool | UnsetType = UNSET
    hold: Hold | None
    updated_ts: int
    performance: Performance


class CursorList(msgspec.Struct, kw_only=True):
    topic: str
    cursors: list[CursorEntry]
    performance: Performance


class CursorDeleted(msgspec.Struct, kw_only=True):
    topic: str
    cursor: str
    deleted: bool
    performance: Performance


class TopicPut(msgspec.Struct, kw_only=True):
    topic: str
    created: bool
    config: TopicConfig
    changed: dict[str, tuple[Any, Any]] | UnsetType = UNSET
    performance: Performance


class TopicStateBody(msgspec.Struct, kw_only=True):
    topic: str
    type: TopicType
    epoch: Epoch
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    queue: QueueState | UnsetType = UNSET
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    cursors: list[CursorEntry] = []
    performance: Performance


class TopicSummary(msgspec.Struct, kw_only=True):
    topic: str
    type: TopicType
    epoch: Epoch
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    lag: int | UnsetType = UNSET


class TopicPage(msgspec.Struct, kw_only=True):
    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class TopicDeleted(msgspec.Struct, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class RouterFields(msgspec.Struct, kw_only=True):
    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: TagMatch | None
    allow_cycle: bool
    guarantee: Guarantee


class RouterPut(RouterFields, kw_only=True):
    created: bool
    performance: Performance


class RouterState(RouterFields, kw_only=True):
    """`lag` counts the source seqs ahead of it; `blocked` is the code of what keeps it back."""

    forwarded_total: int
    lag: int
    blocked: str | None
    performance: Performance


class RouterSummary(msgspec.Struct, kw_only=True):
    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class RouterPage(msgspec.Struct, kw_only=True):
    routers: list[RouterSummary]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class RouterDeleted(msgspec.Struct, kw_only=True):
    router: str
    deleted: bool
    performance: Performance


class Written(msgspec.Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance


class RecordBody(msgspec.Struct, kw_only=True):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    data: Any
    meta: ReadMeta | UnsetType = UNSET


class TombstoneBody(msgspec.Struct, kw_only=True):
    """A loss that crossed the reader's cursor; both ends of the gap are inclusive."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class DiffPage(msgspec.Struct, kw_only=True):
    topic: str
    records: list[RecordBody]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: TombstoneBody | None
    lag: int
    epoch: Epoch
    performance: Performance


class RangeAnswer(msgspec.Struct, kw_only=True):
    """With format `none`, `count` and `bytes` (of `data` and `meta`) in place of the records."""

    topic: str
    records: list[RecordBody] | UnsetType = UNSET
    count: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    gaps: list[Gap]
    next_from_seq: int
    complete: bool
    epoch: Epoch
    performance: Performance


class SeqAt(msgspec.Struct, kw_only=True):
    topic: str
    seq: int | None
    ts: int | None
    from_seq: int
    epoch: Epoch
    performance: Performance


class RecordsDeleted(Deleted, frozen=True, kw_only=True):
    performance: Performance


class TopicRewritten(msgspec.Struct, kw_only=True):
    topic: str
    bytes_before: int
    bytes_after: int
    performance: Performance


class Explained(msgspec.Struct, kw_only=True):
    topic: str
    epoch: Epoch
    ranges: list[ExplainedRange]
    next_from: int | None
    performance: Performance


class Health(msgspec.Struct, kw_only=True):
    status: str
    version: str
    uptime_ms: int
    performance: Performance


class Ready(msgspec.Struct, kw_only=True):
    status: str
    wal_replay_complete: bool
    topics: int
    performance: Performance


class ErrorContent(msgspec.Struct, kw_only=True):
    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class Error(msgspec.Struct, kw_only=True):
    """Every answer that is not a success."""

    error: ErrorContent
