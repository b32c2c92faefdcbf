"""POST /v0/watch makes a session of many topics; GET /v0/watch/:wid streams it as events.

Everything that can be wrong is said before the stream opens; from then on it speaks in events.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from topics.engine.reading.pages import View
from topics.engine.reading.watch import NO_EPOCH, Subscription, WatchOptions
from topics.loose import Loose
from topics.server.api import sse_frames
from topics.server.api.auth import READ
from topics.server.api.call import Call
from topics.server.api.decoding import Query, decode, parse_epoch
from topics.server.api.fields import EVENT_ID_SCHEMA, Clamped, Epoch, EventId, shown
from topics.server.api.route import SMALL_BODY_BYTES_MAX, Parameter, Route
from topics.server.api.shapes import Performance
from topics.server.api.sse_frames import check_accept
from topics.server.http.errors import BadRequest, body_too_large
from topics.server.http.event_stream import EventStream
from topics.server.http.message import PENDING, Answer
from topics.server.live.sessions import Sessions
from topics.server.loop.services import Services
from topics.types import NAME_SCHEMA, U64, U64_MAX, TopicState, check_name, clamp

LIMIT_DEFAULT = 256
FRAME_BYTES_DEFAULT = 256 * 1024
# What a byte budget of 0 stands for, and the most that one may be.
FRAME_BYTES_ZERO = 1024 * 1024
FRAME_BYTES_MAX = 8 * 1024 * 1024
HEARTBEAT_MS, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 15_000, 1000, 60_000
NODES_MAX = 1000
# What a topic takes in the body of a watch: its name, its place, what stands around them.
TOPIC_BYTES = 512

TOKEN = Parameter(
    "token", {"type": "string"}, "The API key, for browsers in development; prefer the header."
)


class WatchTopic(msgspec.Struct, kw_only=True):
    from_seq: U64 = 0
    tail: bool = False
    epoch: Epoch | None = None


class WatchOptionsBody(msgspec.Struct, kw_only=True):
    """How a reader wants to see records, on every way of watching."""

    node: str | Annotated[list[str], shown(maxItems=NODES_MAX)] | None = None
    limit: Clamped = LIMIT_DEFAULT
    max_batch_bytes: Clamped = FRAME_BYTES_DEFAULT
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"


class WatchBody(WatchOptionsBody, kw_only=True):
    topics: Annotated[
        dict[str, WatchTopic | None],
        shown(minProperties=1, maxProperties=256, propertyNames=NAME_SCHEMA),
    ]
    heartbeat_ms: Clamped = HEARTBEAT_MS
    cursor: EventId | None = None


class WatchedTopic(msgspec.Struct, kw_only=True):
    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: Epoch


class Watching(msgspec.Struct, kw_only=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance


_WATCH = Loose(WatchBody)


class WatchRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._delivery = services.delivery
        self._sessions = Sessions(services)

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST", path="/v0/watch", handler=self.watch, scopes=READ,
                summary="Create a session that watches many topics.",
                body=WatchBody, needs_body=True, answers={200: Watching},
                body_bytes_max=watch_bytes_max(self._services),
                parameters=(
                    Parameter("lenient", {"type": "boolean", "default": False},
                              "True leaves out unknown topics instead of failing."),
                ),
                errors=("topic_not_found", "disk_full"),
            ),
            Route(
                method="GET", path="/v0/watch/:wid", handler=self.stream, takes_query_token=True,
                is_stream=True,
                summary="Open the session's stream of server-sent events.",
                parameters=(
                    TOKEN,
                    Parameter("Last-Event-ID", EVENT_ID_SCHEMA,
                              "The last id that was processed; the stream goes back to it.",
                              "header"),
                ),
                others={200: ("text/event-stream", "The stream.")},
                events=("record", "tombstone", "caught-up", "topic-deleted", "error"),
                errors=("not_found", "not_acceptable"),
            ),
        ]  # fmt: skip

    # -- the session -------------------------------------------------------------------------

    def watch(self, call: Call) -> Answer:
        if not call.body:
            raise BadRequest("a watch needs a body with topics")
        body = decode(call, _WATCH)
        is_lenient = Query(call.query).flag("lenient", default=False)
        self._check_topics(call, body)
        options = options_of(body, self._services)
        cursor = {} if body.cursor is None else sse_frames.parse_id(body.cursor, list(body.topics))
        if self._delivery.pressure.is_refusing:
            self._delivery.refuse("watch")
        self._sessions.reclaim()
        self._sessions.check_room()
        places: dict[str, tuple[int, int]] = {}
        told: dict[str, WatchedTopic] = {}
        for name, given in body.topics.items():
            if is_lenient and not self._services.engine.has_topic(name):
                continue
            state = self._services.engine.state(name, touch=False)
            wanted = given or WatchTopic()
            if name in cursor:
                seq, epoch = cursor[name]
                known = wanted.epoch if epoch is None else str(epoch)
                wanted = WatchTopic(from_seq=seq, epoch=known)
            places[name] = place_of(wanted, state)
            told[name] = watched(places[name][0], state)
        subscription = Subscription(options, tells_too_old=True)
        subscription.add(places)
        heartbeat_ms = clamp(body.heartbeat_ms, HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)
        session = self._sessions.create(call.key, subscription, heartbeat_ms / 1000)
        return call.answer(
            Watching(
                wid=session.wid, stream_url=f"/v0/watch/{session.wid}",
                session_ttl_ms=self._services.config.options.session_ttl_ms, topics=told,
                performance=call.performance(),
            )
        )  # fmt: skip

    def _check_topics(self, call: Call, body: WatchBody) -> None:
        maximum = self._services.config.options.max_watch_topics
        if not body.topics:
            raise BadRequest("topics must name at least one topic")
        check_topic_count(len(body.topics), maximum)
        for name, given in body.topics.items():
            check_name(name)
            # Also of one that is left out: a body is right or wrong whatever there is.
            check_place(given or WatchTopic())
            if call.key is not None:
                call.key.require_name(name)

    # -- the stream --------------------------------------------------------------------------

    def stream(self, call: Call, wid: str) -> Answer:
        self._sessions.reclaim()
        session = self._sessions.find(wid, call.key)
        check_accept(call)
        last_id = call.header(b"last-event-id")
        subscription = session.subscription
        names = [cursor.name for cursor in subscription.cursors]
        places = sse_frames.parse_id(last_id, names) if last_id else {}
        if call.method == "HEAD":
            EventStream(call)
            return PENDING
        if self._delivery.pressure.is_refusing:
            self._delivery.refuse("watch")
        if session.stream is not None:
            session.stream.hand_over()
        self._delivery.enter(call.key)
        if session.is_restored:
            sse_frames.take_up(subscription, places)
        else:
            sse_frames.rewind(subscription, places)
        self._sessions.open(session, call.key, EventStream(call))
        return PENDING


def watch_bytes_max(services: Services) -> int:
    """What a body that names topics may have."""
    return max(SMALL_BODY_BYTES_MAX, TOPIC_BYTES * services.config.options.max_watch_topics)


def check_command(text: bytes, services: Services) -> None:
    """Raises PayloadTooLarge for a message that is none of a publish, which has other limits."""
    bytes_max = watch_bytes_max(services)
    if len(text) > bytes_max:
        raise body_too_large(bytes_max)


def check_topic_count(count: int, maximum: int) -> None:
    if count > maximum:
        raise BadRequest(
            f"{count} topics; at most {maximum} can be watched at once",
            limit="max_watch_topics", max=maximum,
        )  # fmt: skip


def options_of(body: WatchOptionsBody, services: Services) -> WatchOptions:
    """What a reader asked to see, within the server's limits."""
    nodes = [body.node] if isinstance(body.node, str) else body.node or []
    if len(nodes) > NODES_MAX:
        raise BadRequest(f"node names {len(nodes)} nodes; at most {NODES_MAX} can be left out")
    longest = services.settings.max_node_bytes
    # No record can be of a node with a longer name.
    kept = frozenset(node for node in nodes if len(node) <= longest)
    view = View(kept, body.include_tags, body.include_meta, body.include_data)
    return WatchOptions.of(
        view,
        limit=clamp(body.limit or LIMIT_DEFAULT, 1, services.settings.max_limit),
        bytes_max=clamp(body.max_batch_bytes or FRAME_BYTES_ZERO, 1, FRAME_BYTES_MAX),
        is_strong=body.consistency == "strong",
    )


def check_place(wanted: WatchTopic) -> int | None:
    """The epoch that a reader asks for, if any. Raises BadRequest for what is no place."""
    if wanted.from_seq > U64_MAX:
        raise BadRequest("from_seq must be from 0 to 2^64 - 1")
    return parse_epoch(wanted.epoch)


def place_of(wanted: WatchTopic, state: TopicState) -> tuple[int, int]:
    """The (seq, epoch) that a reader begins at; an epoch that is not this one means recreated."""
    epoch = check_place(wanted)
    if wanted.tail:
        return state.head_seq, state.epoch
    if epoch is None:
        return wanted.from_seq, NO_EPOCH if wanted.from_seq > state.head_seq else state.epoch
    return wanted.from_seq, epoch


def watched(from_seq: int, state: TopicState) -> WatchedTopic:
    return WatchedTopic(
        from_seq=from_seq, head_seq=state.head_seq, earliest_seq=state.earliest_seq,
        epoch=str(state.epoch),
    )  # fmt: skip
