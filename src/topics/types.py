"""Values of the data model: names, config, records, tombstones, results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import InvalidRequest
from topics.nearest import in_words
from topics.surrogates import decode_around

SEQ_BASE = 1
U64_MAX = 2**64 - 1
I64_MAX = 2**63 - 1

# The decoder can not hold integers to 64 bits; whoever takes one checks it. The bound is shown.
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]

# Why a seq that was assigned can no longer be read. The order is the code on disk.
STATES = (
    "live", "deleted", "evicted", "expired", "crash", "corruption", "source_trim", "restart",
    "unassigned",
)  # fmt: skip
LIVE, DELETED, EVICTED, EXPIRED, CRASH, CORRUPTION, SOURCE_TRIM, RESTART, UNASSIGNED = range(9)
# The word a tombstone uses for an involuntary state.
REASONS = {
    EVICTED: "cap", EXPIRED: "ttl", CRASH: "crash", CORRUPTION: "corruption",
    SOURCE_TRIM: "source_trim", RESTART: "restart",
}  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
# Names in bodies are checked by `check_name`, whose message says more than a pattern can.
NAME_SCHEMA = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
Name = Annotated[str, msgspec.Meta(extra_json_schema=NAME_SCHEMA)]


# A topic of such a name is a bucket of the key-value store.
BUCKET_TOPIC = "kv:"
BUCKET_CHARS_MAX = 252
# Meta of our own in a copy that is made exactly once; clients may not write it.
ROUTER_META = "_topics_router"


def bucket_of(topic: str) -> str | None:
    """The bucket that a topic is; None for one that is none."""
    at = len(BUCKET_TOPIC)
    is_bucket = topic.startswith(BUCKET_TOPIC) and _NAME.fullmatch(topic, at) is not None
    return topic[at:] if is_bucket else None


def check_name(name: object, what: str = "topic") -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{what} name must be 1 to 255 characters of A-Z a-z 0-9 . _ : - "
            "and start with a letter or digit",
            **{what: name if isinstance(name, str) else repr(name)},
        )
    return name


# What it is when it is left out: "reject" in a bucket.
_DISCARD = msgspec.Meta(extra_json_schema={"default": "old"})


class ConfigInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic config as a client writes it: everything optional.

    What may be null has a meaning for it; a null is never another word for a default.
    """

    type: TopicType | UnsetType = UNSET
    ttl_ms: U64 = 0
    cap_records: U64 = 0
    cap_bytes: U64 = 0
    discard: Annotated[Discard | UnsetType, _DISCARD] = UNSET
    durable: bool = False
    durability: Durability | UnsetType = UNSET
    priority: I32 | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: U64 = 120_000
    dedupe_node: bool = True
    lease_ms: U64 = 30_000
    claim_jitter_ms: U64 = 0
    max_deliveries: U64 = 0
    dead_letter: Name | None = None
    leases_durable: bool = False


class ConfigPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some fields of a topic config: what is not there stays as it is."""

    type: TopicType | UnsetType = UNSET
    ttl_ms: U64 | UnsetType = UNSET
    cap_records: U64 | UnsetType = UNSET
    cap_bytes: U64 | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: I32 | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: U64 | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: U64 | UnsetType = UNSET
    claim_jitter_ms: U64 | UnsetType = UNSET
    max_deliveries: U64 | UnsetType = UNSET
    dead_letter: Name | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """The fields that are there."""
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if value is not UNSET}


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic config as it stands: resolved, clamped, echoed in this order."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    # Of buckets only: how many versions of a key are kept, and for how long a marker is.
    history: int | UnsetType = UNSET
    grace_ms: int | UnsetType = UNSET

    @property
    def is_bucket(self) -> bool:
        return self.history is not UNSET


def clamp(value: int, low: int, high: int) -> int:
    return low if value < low else high if value > high else value


def convert(value: object, into: Any, what: str) -> Any:
    """`value` checked against a type; InvalidRequest says where it does not fit."""
    try:
        return msgspec.convert(value, into)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{what}: {in_words(error, into)}") from None


_decode = msgspec.json.Decoder().decode


def value_of(data: msgspec.Raw | bytes) -> Any:
    """JSON as a Python value."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        # Lone surrogates and numbers out of range: the standard library takes them.
        return json.loads(bytes(data))


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record as it is read. `data` keeps its spelling: it is JSON text, decoded on demand."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    data: msgspec.Raw = msgspec.Raw(b"null")
    meta: dict[str, Any] | None = None

    @property
    def value(self) -> Any:
        """The data, decoded."""
        return value_of(self.data)

    def __repr__(self) -> str:
        more = "".join(
            f", {name}={value!r}"
            for name, value in (("node", self.node), ("tag", self.tag), ("meta", self.meta))
            if value is not None
        )
        text = bytes(self.data).decode("utf-8", "replace")
        return f"{type(self).__name__}(seq={self.seq}, ts={self.ts}, data={text}{more})"


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """An involuntary loss that crossed a reader's cursor; both ends of the gap are inclusive."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


_RECORDS = msgspec.json.Decoder(list[Record])


def records_of(records_json: bytes) -> list[Record]:
    """The records of a wire array, their data verbatim."""
    try:
        return _RECORDS.decode(records_json)
    except msgspec.DecodeError:
        found, data = decode_around(_RECORDS.decode, records_json, lambda records: records)
        pairs = zip(found, data, strict=True)
        return [msgspec.structs.replace(record, data=raw) for record, raw in pairs]


Payload = bytes | bytearray | memoryview


def array_of(pieces: Sequence[Payload]) -> bytes:
    """Rendered records as one JSON array; the comma behind the last one makes room for `]`."""
    if not pieces:
        return b"[]"
    *head, last = pieces
    return b"".join([b"[", *head, last[:-1], b"]"])


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one read.

    `pieces` are runs of wire records as they were rendered at commit, a comma behind each record:
    where the memory allows it they are views of it, so that a read copies nothing.
    """

    topic: str
    epoch: int
    pieces: list[Payload]
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    records_scanned: int

    @property
    def records_json(self) -> bytes:
        """The wire array."""
        return array_of(self.pieces)

    @property
    def records(self) -> list[Record]:
        return records_of(self.records_json)

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq


class Appended(msgspec.Struct, frozen=True, gc=False):
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    ts: int
    created: bool
    deduped: bool


class Staged(msgspec.Struct, frozen=True):
    stage: str
    count: int


class CommittedTopic(msgspec.Struct, frozen=True):
    first_seq: int
    last_seq: int
    count: int


class Committed(msgspec.Struct, frozen=True):
    """What a batch became, by topic; `repeated` when all of it was there before."""

    repeated: bool
    topics: dict[str, CommittedTopic]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


_Bound = Annotated[int, msgspec.Meta(ge=1, extra_json_schema={"maximum": U64_MAX})]


class Hold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cursor keeps from cap and TTL until it has passed: no more, no older than this."""

    max_bytes: _Bound | None = None
    max_age_ms: _Bound | None = None


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A reader's place, as it is stored: the last seq it has consumed in one epoch."""

    name: str
    seq: int
    epoch: int
    updated_ts: int
    hold: Hold | None = None


class CursorState(msgspec.Struct, frozen=True, kw_only=True):
    """A cursor beside its topic. `lag` counts the seqs after it, all of them in a new epoch."""

    topic: str
    cursor: str
    seq: int
    epoch: int
    lag: int
    hold: Hold | None
    updated_ts: int
    created: bool = False


class QueueState(msgspec.Struct, frozen=True):
    """The counters of a queue. A job whose delay runs is neither ready nor in flight."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    last_write_ts: int | None
    last_read_ts: int | None
    evict_floor: int
    cursors: list[CursorState] = []
    # None on a log.
    queue: QueueState | None = None


class ExplainedRange(msgspec.Struct, frozen=True):
    """A run of seqs with one account; both ends inclusive."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    state: str
