"""The bodies of the queue calls, as types.

The answers of claim, ack, nack and extend are rendered by hand; tests hold them to their type here.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.server.api.fields import ReadMeta, shown
from topics.server.api.shapes import Performance
from topics.types import U64

Node = Annotated[
    str,
    msgspec.Meta(min_length=1, description="The worker; 128 bytes at most."),
    shown(maxLength=128, format="node"),
]
Seqs = Annotated[
    list[U64], msgspec.Meta(min_length=1, description="1000 at most."), shown(maxItems=1000)
]
LeaseIds = Annotated[list[str], msgspec.Meta(description="One for each of `seqs`, as claimed.")]

# -- requests --------------------------------------------------------------------------------------


class ClaimBody(msgspec.Struct, kw_only=True, gc=False):
    node: Node
    max: U64 = 1
    lease_ms: U64 | None = None
    wait_ms: U64 = 0


class AckBody(msgspec.Struct, kw_only=True):
    node: Node
    seqs: Seqs
    lease_ids: LeaseIds | None = None


class NackBody(AckBody, kw_only=True):
    delay_ms: U64 = 0


class ExtendBody(AckBody, kw_only=True):
    lease_ms: U64


# -- answers ---------------------------------------------------------------------------------------


class JobBody(msgspec.Struct, kw_only=True):
    """A job under lease: its record and who may finish it until when."""

    seq: int = msgspec.field(name="$seq")
    lease_id: Annotated[str, msgspec.Meta(pattern="^lease_[0-9a-f]+$")]
    deadline: int
    ts: int = msgspec.field(name="$ts")
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    deliveries: Annotated[int, msgspec.Meta(ge=1)]
    data: Any
    meta: ReadMeta | UnsetType = UNSET


class ClaimAnswer(msgspec.Struct, kw_only=True):
    topic: str
    claimed: list[JobBody]
    count: int
    ready: int
    performance: Performance


class AckAnswer(msgspec.Struct, kw_only=True):
    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class NackAnswer(msgspec.Struct, kw_only=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class ExtendAnswer(msgspec.Struct, kw_only=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance
