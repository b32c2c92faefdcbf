"""Calls that answer with a stream of events: one topic's, a watch session's, a worker's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from topics.client.request import path
from topics.client.stream_values import StreamEvent, job_told, topic_told
from topics.client.streaming import StreamRequest
from topics.client.values import Job

# What the server does unless it is asked for something else.
HEARTBEAT_MS = 15_000


def stream(
    topic: str,
    *,
    from_seq: int = 0,
    tail: bool = False,
    epoch: str | None = None,
    node: str | Sequence[str] = (),
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int = HEARTBEAT_MS,
    include_tags: bool | None = None,
    include_meta: bool | None = None,
    include_data: bool | None = None,
    consistency: Literal["eventual", "strong"] | None = None,
    last_event_id: str = "",
) -> StreamRequest[StreamEvent]:
    """The events of one topic as they come, over one connection: iterate it, in a `with`.

    It begins after `from_seq`, at the `tail`, or where `last_event_id` says (an event's `id`), and
    raises Unreachable when the connection breaks; `follow` goes on by itself. Raises TopicNotFound.
    """
    query = {
        "from_seq": from_seq or None, "tail": tail or None, "epoch": epoch,
        "node": (node,) if isinstance(node, str) else tuple(node), "limit": limit,
        "max_batch_bytes": max_batch_bytes, "heartbeat_ms": heartbeat_ms,
        "include_tags": include_tags, "include_meta": include_meta, "include_data": include_data,
        "consistency": consistency,
    }  # fmt: skip
    place = path("topics", topic, "stream", **query)
    return StreamRequest(place, topic_told, heartbeat_ms, last_event_id)


def watch_stream(
    wid: str, *, heartbeat_ms: int = HEARTBEAT_MS, last_event_id: str = ""
) -> StreamRequest[StreamEvent]:
    """The events of a watch session that `watch` has made; the server remembers its place.

    `heartbeat_ms` is that of the session. `last_event_id` goes back to an event's `id`. Raises
    NotFound when the session is over.
    """
    return StreamRequest(path("watch", wid), topic_told, heartbeat_ms, last_event_id)


def work(topic: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> StreamRequest[Job]:
    """Jobs of a queue, leased to `node` and pushed as there is room: never more than `max` at once.

    Room is made by `ack` and `nack`. When the stream is closed or breaks, what it still holds goes
    back to the queue at once; `worker` does all that by itself. Raises TopicNotFound or NotAQueue.
    """
    place = path("topics", topic, "work", node=node, max=max, lease_ms=lease_ms)
    return StreamRequest(place, job_told, HEARTBEAT_MS)
