"""For operators: GET /v0/connections, who is connected; GET …/leases, who works on what."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from topics.engine.state.queue_values import Held
from topics.server.api.auth import ADMIN, READ, Key
from topics.server.api.call import Call
from topics.server.api.decoding import Query
from topics.server.api.route import Route
from topics.server.api.shapes import Performance
from topics.server.http.errors import BadRequest
from topics.server.http.message import Answer
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, Sight
from topics.server.routes.listing import PAGING, Place, cursor_at, find_place, page_size

# A page ends early when its entries have so many topics: each of them is looked at.
PAGE_TOPICS_MAX = 10_000


class Connected(msgspec.Struct, kw_only=True):
    """One stream, socket or waiting call. `key` is the number of its API key, null without keys."""

    kind: Kind
    topics: list[str]
    key: int | None
    peer: str
    since_ts: int
    lag: int
    buffered_bytes: int


class ConnectionPage(msgspec.Struct, kw_only=True):
    connections: list[Connected]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class LeasePage(msgspec.Struct, kw_only=True):
    topic: str
    leases: list[Held]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class LookingRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        paging = tuple(parameter for parameter in PAGING if parameter.name != "prefix")
        return [
            Route(
                method="GET", path="/v0/connections", handler=self.connections, scopes=ADMIN,
                summary="Who is connected: streams, WebSockets, long polls and workers.",
                parameters=paging, answers={200: ConnectionPage},
            ),
            Route(
                method="GET", path="/v0/topics/:topic/leases", handler=self.leases, scopes=READ,
                summary="The jobs of a queue that are under lease, and who has them.",
                parameters=paging, answers={200: LeasePage},
                errors=("topic_not_found", "not_a_queue"),
            ),
        ]  # fmt: skip

    def connections(self, call: Call) -> Answer:
        query = Query(call.query)
        size, last = page_size(query), _number(query, "connection")
        found: list[Connected] = []
        topics, next_cursor = 0, ""
        for number, visitor in self._services.visitors.after(last):
            if len(found) == size or topics >= PAGE_TOPICS_MAX:
                next_cursor = cursor_at(Place(str(last), "connection"))
                break
            last, sight = number, visitor.sight()
            topics += len(sight.topics)
            if _may_see(call.key, sight):
                found.append(_connected(visitor.kind, sight))
        return call.answer(
            ConnectionPage(
                connections=found, next_cursor=next_cursor or UNSET, performance=call.performance()
            )
        )

    def leases(self, call: Call, name: str) -> Answer:
        engine = self._services.engine
        engine.check_queue(name)
        query = Query(call.query)
        size, last = page_size(query), _number(query, "lease")
        found = engine.held_jobs(name, after=last, limit=size + 1)
        more = len(found) > size
        return call.answer(
            LeasePage(
                topic=name, leases=found[:size],
                next_cursor=cursor_at(Place(str(found[size - 1].seq), "lease")) if more else UNSET,
                performance=call.performance(),
            )
        )  # fmt: skip


def _number(query: Query, by: str) -> int:
    place = find_place(query.text("cursor"), by)
    if place is None:
        return 0
    if not place.after.isdecimal() or len(place.after) > 20:
        raise BadRequest("this cursor is not one of ours; begin again without one")
    return int(place.after)


def _may_see(key: Key | None, sight: Sight) -> bool:
    """Whether a connection is within the prefixes of whoever looks."""
    if key is None or not key.prefixes:
        return True
    return bool(sight.topics) and all(map(key.may_name, sight.topics))


def _connected(kind: Kind, sight: Sight) -> Connected:
    return Connected(
        kind=kind, topics=sight.topics, key=None if sight.key is None else sight.key.number,
        peer=sight.peer, since_ts=sight.since_ts, lag=sight.lag,
        buffered_bytes=sight.buffered_bytes,
    )  # fmt: skip
