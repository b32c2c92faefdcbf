"""The commands of a WebSocket, described: what is sent, and what the answer becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from topics.client import values
from topics.client.reader_calls import WatchFrom
from topics.client.request import reading
from topics.client.values import RecordFields, WatchedTopic
from topics.configs import ConfigFields

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """`is_write`: a lost answer leaves an unknown outcome."""

    fields: dict[str, Any]
    read: Callable[[bytes], T]
    is_write: bool = False


class _Subscribed(msgspec.Struct):
    topics: dict[str, WatchedTopic]


_SUBSCRIBED = reading(_Subscribed)
_APPENDED = reading(values.Appended)


def subscribe(
    topics: Mapping[str, WatchFrom],
    *,
    node: str | Sequence[str] | None = None,
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    include_meta: bool | None = None,
    include_tags: bool | None = None,
    include_data: bool | None = None,
    consistency: Literal["eventual", "strong"] | None = None,
) -> Command[dict[str, WatchedTopic]]:
    """Asks for the events of topics from these places on, and says where each begins.

    A topic that is subscribed already begins again. Raises TopicNotFound: then none is subscribed.
    """
    fields = {
        "op": "subscribe", "topics": dict(topics), "node": node, "limit": limit,
        "max_batch_bytes": max_batch_bytes, "include_meta": include_meta,
        "include_tags": include_tags, "include_data": include_data, "consistency": consistency,
    }  # fmt: skip
    return Command(fields, lambda text: _SUBSCRIBED(text).topics)


def unsubscribe(*topics: str) -> Command[None]:
    """Ends the events of topics; what is on its way still comes."""
    return Command({"op": "unsubscribe", "topics": topics}, _nothing)


def publish(
    topic: str,
    records: Sequence[RecordFields],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: ConfigFields | None = None,
    disable_backpressure: bool | None = None,
) -> Command[values.Appended]:
    """Appends records, as `Client.append` does, but never again by itself.

    Raises OutcomeUnknown when the connection broke before the answer; whoever gave an
    `idempotency_key` may publish the same again.
    """
    fields = {
        "op": "publish", "topic": topic, "records": records, "node": node,
        "idempotency_key": idempotency_key, "create": create, "config": config,
        "disable_backpressure": disable_backpressure, "return_seqs": False,
    }  # fmt: skip
    return Command(fields, _APPENDED, is_write=True)


def ping() -> Command[None]:
    """Returns when the server has answered."""
    return Command({"op": "ping"}, _nothing)


def _nothing(_: bytes) -> None:
    return None
