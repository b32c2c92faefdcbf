"""The bodies of stages and commits, as types."""

from __future__ import annotations

from typing import Annotated

import msgspec

from topics.server.api.fields import BatchNumber, Word
from topics.server.api.shapes import Performance, RecordToWrite
from topics.types import CommittedTopic, Name


class StageBody(msgspec.Struct, kw_only=True):
    """A stage as the document shows it; the engine decodes it itself."""

    producer: Word
    batch: BatchNumber
    topic: Name
    part: BatchNumber | Word = 0
    attempt: BatchNumber | Word = 0
    records: Annotated[list[RecordToWrite], msgspec.Meta(min_length=1, max_length=10_000)]


class CommitBody(msgspec.Struct, kw_only=True):
    """`stages` are ids; the records come in their order."""

    producer: Word
    batch: BatchNumber
    query: Word
    stages: list[str]


class StageMade(msgspec.Struct, kw_only=True):
    stage: str
    count: int
    performance: Performance


class CommitDone(msgspec.Struct, kw_only=True):
    repeated: bool
    topics: dict[str, CommittedTopic]
    performance: Performance


class StagesDropped(msgspec.Struct, kw_only=True):
    producer: str
    batch: int
    deleted: int
    performance: Performance
