"""What a stream of topics tells, as values: an event stream and a WebSocket say the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from topics.client.event_stream import Event
from topics.client.request import error_named, reading, reading_records
from topics.client.values import Job
from topics.errors import CorruptData, TopicsError, Unreachable
from topics.types import Record

# Statuses of troubles that leave the stream open.
ADVISORY_CODES = frozenset({429, 503})


class Received(Record, frozen=True, kw_only=True):
    """A record of a topic that is followed."""

    topic: str = ""
    epoch: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is the reader's place after it, for `last_event_id`; a WebSocket has none."""

    topic: str
    epoch: str = ""
    head_seq: int = 0
    id: str = ""


class Records(Told, frozen=True, kw_only=True):
    """Everything that is there in (from_seq, to_seq]: what is missing was removed on purpose."""

    records: list[Received]
    from_seq: int
    to_seq: int


class Lost(Told, frozen=True, kw_only=True):
    """Seqs that were lost in front of the reader, both ends included; it goes on after them."""

    reason: str
    gap_from: int
    gap_to: int
    earliest_seq: int
    missed_estimate: int = 0


class CaughtUp(Told, frozen=True, kw_only=True):
    """All there is has been told; what comes from here on is new."""


class TopicEnded(Told, frozen=True, kw_only=True):
    """The topic was deleted. Other topics of the same stream go on."""

    reason: str = "deleted"


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """The server holds back for now (`code` as a status of HTTP); nothing is lost by it."""

    code: int
    message: str = msgspec.field(name="error", default="")
    topics: list[str] = []
    retry_after_ms: int = 0


StreamEvent: TypeAlias = Records | Lost | CaughtUp | TopicEnded | Paced


class _Trouble(msgspec.Struct):
    code: int = 0
    error: str = ""
    topics: list[str] | None = None


_RECORDS = reading_records(Records, "records", lambda frame: frame.records)
_JOB = reading_records(Job, "", lambda job: [job])
_PLAIN: dict[str, Callable[[bytes], StreamEvent]] = {
    "tombstone": reading(Lost), "caught-up": reading(CaughtUp),
    "topic-deleted": reading(TopicEnded),
}  # fmt: skip
_TROUBLE = reading(_Trouble)
_PACED = reading(Paced)


def topic_told(event: Event) -> StreamEvent | None:
    """What an event of a topic tells; None for what is not known here. Raises what ends it."""
    told: StreamEvent
    if event.name == "record":
        told = records_of(event.data)
    elif event.name in _PLAIN:
        told = _PLAIN[event.name](event.data)
    else:
        return _trouble_told(event)
    msgspec.structs.force_setattr(told, "id", event.id)
    return told


def job_told(event: Event) -> Job | None:
    """The job of an event of a worker's stream. Raises what ends it."""
    if event.name == "job":
        return _JOB(event.data)
    _trouble_told(event)
    return None


def records_of(data: bytes) -> Records:
    """A frame of records, each of which knows its topic."""
    frame = _RECORDS(data)
    name_topic(frame.records, frame.topic, frame.epoch)
    return frame


def name_topic(records: list[Received], topic: str, epoch: str) -> None:
    """Tells records which topic they are of."""
    for record in records:
        msgspec.structs.force_setattr(record, "topic", topic)
        msgspec.structs.force_setattr(record, "epoch", epoch)


def _trouble_told(event: Event) -> Paced | None:
    if event.name != "error":
        return None
    found = _TROUBLE(event.data)
    if found.code in ADVISORY_CODES and found.topics is not None:
        return _PACED(event.data)
    raise _error_of(found.code, found.error)


def _error_of(status: int, text: str) -> TopicsError:
    """What ends a stream; its text begins with the code of an error where there is one."""
    code, _, message = text.partition(": ")
    found = error_named(code, message)
    if found is None and status == CorruptData.status:
        return CorruptData(text)
    return found or Unreachable(f"the stream ended: {text}")
