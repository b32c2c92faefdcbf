"""GET /v0/topics/:topic/stream: the events of one topic, without a session.

The place of a reader is in the ids alone, with the epoch: whoever comes back with one goes on from
there, whatever became of the server or the topic meanwhile.
"""

from __future__ import annotations

from typing import Literal, cast

from topics.engine.reading.watch import Subscription
from topics.server.api import sse_frames
from topics.server.api.auth import READ, Key
from topics.server.api.call import Call
from topics.server.api.decoding import Query
from topics.server.api.fields import EPOCH_SCHEMA, EVENT_ID_SCHEMA, U64_SCHEMA
from topics.server.api.route import Parameter, Route
from topics.server.api.sse_frames import check_accept
from topics.server.http.event_stream import EventStream
from topics.server.http.message import PENDING, Answer
from topics.server.live.watch_routes import (
    FRAME_BYTES_DEFAULT,
    HEARTBEAT_MS,
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LIMIT_DEFAULT,
    TOKEN,
    WatchOptionsBody,
    WatchTopic,
    options_of,
    place_of,
)
from topics.server.live.watch_stream import WatchStream
from topics.server.loop.services import Services
from topics.types import TopicState, clamp

_FLAG = {"type": "boolean"}
_CONSISTENCIES = ("eventual", "strong")


class TopicWatch:
    """What a stream of one topic carries; it ends with the stream."""

    __slots__ = ("heartbeat_s", "key", "subscription")

    ends_with_topic = True

    def __init__(self, key: Key | None, subscription: Subscription, heartbeat_s: float) -> None:
        self.key = key
        self.subscription = subscription
        self.heartbeat_s = heartbeat_s

    def closed(self, _stream: WatchStream) -> None:
        self.subscription.end()


class StreamRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        size = {**U64_SCHEMA, "default": LIMIT_DEFAULT}
        budget = {**U64_SCHEMA, "default": FRAME_BYTES_DEFAULT}
        beat = {**U64_SCHEMA, "default": HEARTBEAT_MS}
        consistency = {"enum": list(_CONSISTENCIES), "default": "eventual"}
        yes, no = {**_FLAG, "default": True}, {**_FLAG, "default": False}
        return [
            Route(
                method="GET", path="/v0/topics/:topic/stream", handler=self.stream, scopes=READ,
                takes_query_token=True, is_stream=True,
                summary="Open a stream of server-sent events of one topic, without a session.",
                parameters=(
                    Parameter("from_seq", {**U64_SCHEMA, "default": 0}, "The last seq consumed."),
                    Parameter("tail", no, "Begin at the head instead."),
                    Parameter("epoch", EPOCH_SCHEMA, "The instance that `from_seq` is of."),
                    Parameter("node", {"type": "string"},
                              "Leave out records of this node; may be repeated."),
                    Parameter("include_tags", no, "Whether records have their tags."),
                    Parameter("include_meta", yes, "Whether records have their meta."),
                    Parameter("include_data", yes, "Whether records have their data."),
                    Parameter("limit", size, "The most records of an event."),
                    Parameter("max_batch_bytes", budget, "The most bytes of an event."),
                    Parameter("heartbeat_ms", beat, "How often a silent stream says that it is."),
                    Parameter("consistency", consistency, "`strong`: only what is durable."),
                    TOKEN,
                    Parameter("Last-Event-ID", EVENT_ID_SCHEMA,
                              "The last id that was processed; wins over the query.", "header"),
                ),
                others={200: ("text/event-stream", "The stream.")},
                events=("record", "tombstone", "caught-up", "topic-deleted", "error"),
                errors=("topic_not_found", "not_acceptable"),
            )
        ]  # fmt: skip

    def stream(self, call: Call, name: str) -> Answer:
        services, delivery = self._services, self._services.delivery
        state = services.engine.state(name, touch=False, cursors=False)
        query = Query(call.query)
        options = options_of(_options(query), services)
        place = _place(call, query, name, state)
        heartbeat_ms = query.number("heartbeat_ms")
        check_accept(call)
        if call.method == "HEAD":
            EventStream(call)
            return PENDING
        if delivery.pressure.is_refusing:
            delivery.refuse("watch", name)
        delivery.enter(call.key)
        subscription = Subscription(options, tells_too_old=True, says_epochs=True)
        subscription.add({name: place})
        beat_ms = clamp(
            HEARTBEAT_MS if heartbeat_ms is None else heartbeat_ms,
            HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX,
        )  # fmt: skip
        watch = TopicWatch(call.key, subscription, beat_ms / 1000)
        WatchStream(services, watch, EventStream(call)).begin()
        return PENDING


def _options(query: Query) -> WatchOptionsBody:
    consistency = query.choice("consistency", _CONSISTENCIES, "eventual")
    limit, bytes_max = query.number("limit"), query.number("max_batch_bytes")
    return WatchOptionsBody(
        node=query.texts("node"),
        limit=LIMIT_DEFAULT if limit is None else limit,
        max_batch_bytes=FRAME_BYTES_DEFAULT if bytes_max is None else bytes_max,
        include_meta=query.flag("include_meta", default=True),
        include_tags=query.flag("include_tags", default=False),
        include_data=query.flag("include_data", default=True),
        consistency=cast(Literal["eventual", "strong"], consistency),
    )


def _place(call: Call, query: Query, name: str, state: TopicState) -> tuple[int, int]:
    """Where a reader begins: the id of its last event wins over what the query says."""
    wanted = WatchTopic(
        from_seq=query.number("from_seq") or 0,
        tail=query.flag("tail", default=False),
        epoch=next(iter(query.texts("epoch")), None),
    )
    begins = place_of(wanted, state)
    last_id = call.header(b"last-event-id")
    known = sse_frames.parse_id(last_id, [name]).get(name) if last_id else None
    if known is None:
        return begins
    seq, epoch = known
    return place_of(WatchTopic(from_seq=seq, epoch=None if epoch is None else str(epoch)), state)
