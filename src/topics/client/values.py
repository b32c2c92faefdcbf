"""What a server answers, as values. Fields that are not known here are ignored.

The server has shapes of its own for the same answers: those say what it always sends, these what a
client can do without, so that it understands servers that send less. What is the same for both,
and for the engine, is in `topics.types`.

A record's `data` stays JSON text; `value` decodes it. Epochs are decimal strings, as on the wire.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypeAlias, TypedDict

import msgspec

from topics import types
from topics.types import (
    ExplainedRange,
    Hold,
    QueueState,
    Record,
    Tombstone,
    TopicConfig,
    TopicType,
)

Guarantee = Literal["at_least_once", "exactly_once"]
# A tag, or ("tag", "Eq" or "Glob", text).
Match: TypeAlias = str | tuple[str, str, str]


class RecordFields(TypedDict, total=False):
    """A record to be written. `data` is any value that JSON has, or `msgspec.Raw` JSON text."""

    data: Required[Any]
    tag: str
    node: str
    meta: dict[str, str]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`performance` says where the server's time went, in milliseconds."""

    performance: dict[str, int | float] = {}


class TopicPut(Answer, frozen=True, kw_only=True):
    """`changed` has each field of an existing topic that is different now: (before, now)."""

    topic: str
    created: bool
    config: TopicConfig
    changed: dict[str, tuple[Any, Any]] = {}


class CursorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A named reader of a topic: the last seq it has consumed, and how many are after it."""

    cursor: str
    seq: int
    epoch: str
    lag: int
    hold: Hold | None = None
    updated_ts: int = 0


class CursorState(CursorPlace, frozen=True, kw_only=True):
    topic: str
    created: bool = False


class CursorList(Answer, frozen=True, kw_only=True):
    topic: str
    cursors: list[CursorPlace]


class CursorDeleted(Answer, frozen=True, kw_only=True):
    topic: str
    cursor: str
    deleted: bool


class TopicState(Answer, frozen=True, kw_only=True):
    """`queue` is None on a log."""

    topic: str
    type: TopicType = "log"
    epoch: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    queue: QueueState | None = None
    effective_priority: int
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    cursors: list[CursorPlace] = []


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    type: TopicType = "log"
    epoch: str = ""
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    # Of the slowest cursor, only in a list that is sorted by it.
    lag: int | None = None


class TopicPage(Answer, frozen=True, kw_only=True):
    """`next_cursor` is None on the last page."""

    topics: list[TopicSummary]
    next_cursor: str | None = None


class TopicDeleted(Answer, frozen=True, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]


class Appended(Answer, frozen=True, kw_only=True):
    """Where records went. `deduped`: an earlier try had written them already, at these seqs."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool


class Page(Answer, frozen=True, kw_only=True):
    """Records after a cursor. `tombstone` names what was lost in front of them, or is None."""

    topic: str
    epoch: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Seqs that were lost, both ends included. `topic` is empty where a page names it."""

    gap_from: int
    gap_to: int
    reason: str
    epoch: str = ""
    topic: str = ""


class RangePage(Answer, frozen=True, kw_only=True):
    """Records and gaps of a range. Unless `complete`, go on from `next_from_seq`."""

    topic: str
    epoch: str
    records: list[Record]
    gaps: list[Gap]
    next_from_seq: int
    complete: bool


class RangeSize(Answer, frozen=True, kw_only=True):
    """How much a page of a range would hold: `bytes` are those of `data` and `meta`."""

    topic: str
    epoch: str
    count: int
    bytes: int
    gaps: list[Gap]
    next_from_seq: int
    complete: bool


class SeqAt(Answer, frozen=True, kw_only=True):
    """The first live record at or after a time; None past the head.

    Whoever reads on from `from_seq` is also told of what was lost, and may have been of that time.
    """

    topic: str
    epoch: str
    seq: int | None
    ts: int | None
    from_seq: int


class StagesDropped(Answer, frozen=True, kw_only=True):
    producer: str
    batch: int
    deleted: int


class Deleted(types.Deleted, frozen=True, kw_only=True):
    performance: dict[str, int | float] = msgspec.field(default_factory=dict)


class TopicRewritten(Answer, frozen=True, kw_only=True):
    topic: str
    bytes_before: int
    bytes_after: int


class BackupState(Answer, frozen=True, kw_only=True):
    """The backup that runs, or the last one; `state` is running, done or failed."""

    id: str
    dest: str
    state: str
    began_ts: int
    ended_ts: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None
    topics: int | None = None
    bytes: int = 0
    bytes_done: int = 0
    bytes_copied: int = 0
    error: str = ""


class Explained(Answer, frozen=True, kw_only=True):
    """What became of every seq that was asked about. `next_from` is None at the end."""

    topic: str
    epoch: str
    ranges: list[ExplainedRange]
    next_from: int | None = None


class RouterPut(Answer, frozen=True, kw_only=True):
    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: Guarantee


class RouterState(Answer, frozen=True, kw_only=True):
    """`lag` counts the source seqs ahead of it; `blocked` is the code of what keeps it back."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: int
    lag: int = 0
    blocked: str | None = None


class RouterSummary(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class RouterPage(Answer, frozen=True, kw_only=True):
    routers: list[RouterSummary]
    next_cursor: str | None = None


class RouterDeleted(Answer, frozen=True, kw_only=True):
    router: str
    deleted: bool


class Job(Record, frozen=True, kw_only=True):
    """A record under lease until `deadline` (ms since 1970); `deliveries` counts this one too."""

    lease_id: str
    deadline: int
    deliveries: int


class Claimed(Answer, frozen=True, kw_only=True):
    """`ready` counts the jobs that can still be claimed."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int


class Acked(Answer, frozen=True, kw_only=True):
    """`skipped` names the jobs that the caller did not hold (any more)."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(Answer, frozen=True, kw_only=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(Answer, frozen=True, kw_only=True):
    """`deadlines` has the new one of each job that was extended, by seq."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a job until when (ms since 1970)."""

    seq: int
    node: str
    expires_ts: int
    deliveries: int


class LeasePage(Answer, frozen=True, kw_only=True):
    topic: str
    leases: list[Lease]
    next_cursor: str | None = None


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who stays: `kind` is stream, websocket, long_poll or work; `key` is a number."""

    kind: str
    topics: list[str]
    key: int | None
    peer: str
    since_ts: int
    lag: int
    buffered_bytes: int


class ConnectionPage(Answer, frozen=True, kw_only=True):
    connections: list[Connection]
    next_cursor: str | None = None


class WatchedTopic(msgspec.Struct, frozen=True, kw_only=True):
    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: str


class Watching(Answer, frozen=True, kw_only=True):
    """A watch session; its events are at `stream_url`."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]


class Health(Answer, frozen=True, kw_only=True):
    status: str
    version: str
    uptime_ms: int


class Ready(Answer, frozen=True, kw_only=True):
    status: str
    wal_replay_complete: bool
    topics: int
