"""GET /v0/topics: pages of names in byte order, after an opaque cursor."""

from __future__ import annotations

import base64
import binascii

import msgspec
from msgspec import UNSET

from topics.engine.reading import priority
from topics.server.api.auth import READ, Key
from topics.server.api.call import Call
from topics.server.api.decoding import Query
from topics.server.api.fields import LIST_CURSOR_SCHEMA, U64_SCHEMA
from topics.server.api.route import Parameter, Route
from topics.server.api.shapes import TopicPage, TopicSummary
from topics.server.http.errors import BadRequest
from topics.server.http.message import Answer
from topics.server.loop.services import Services
from topics.types import clamp

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000


class Place(msgspec.Struct, forbid_unknown_fields=True):
    """What a cursor holds: the last name of the page before."""

    after: str


_PLACE = msgspec.json.Decoder(Place)
_ENCODER = msgspec.json.Encoder()

PAGING = (
    Parameter("prefix", {"type": "string"}, "Only names that begin with this."),
    Parameter(
        "page_size",
        {**U64_SCHEMA, "default": PAGE_SIZE},
        f"At most {PAGE_SIZE_MAX}; larger ones are clamped, 0 means the default.",
    ),
    Parameter("cursor", LIST_CURSOR_SCHEMA, "`next_cursor` of the page before."),
)


class Listing:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        touch = Parameter(
            "touch", {"type": "boolean", "default": False}, "True counts as a read of each topic."
        )
        return [
            Route(
                method="GET", path="/v0/topics", handler=self.list, scopes=READ,
                summary="List topics with their summary state.",
                parameters=(*PAGING, touch), answers={200: TopicPage},
            )
        ]  # fmt: skip

    def list(self, call: Call) -> Answer:
        query = Query(call.query)
        touch = query.flag("touch", default=False)
        size = page_size(query)
        engine, now_ms = self._services.engine, self._services.clock.wall_ms()
        names = engine.names(
            visible_prefixes(call.key, query.text("prefix")),
            after=place_of(query.text("cursor")),
            limit=size + 1,
        )
        topics = []
        for name in names[:size]:
            state = engine.state(name, touch=touch, cursors=False)
            topics.append(
                TopicSummary(
                    topic=name, type=state.config.type, epoch=str(state.epoch),
                    head_seq=state.head_seq, earliest_seq=state.earliest_seq,
                    count=state.count, bytes=state.bytes, durable=state.config.durable,
                    effective_priority=priority.effective(
                        state.config, consumed_ms=state.last_read_ts, now_ms=now_ms
                    ),
                )
            )  # fmt: skip
        more = len(names) > size
        return call.answer(
            TopicPage(
                topics=topics,
                next_cursor=cursor_after(names[size - 1]) if more else UNSET,
                performance=call.performance(),
            )
        )


def page_size(query: Query) -> int:
    """How many entries a page has; above the maximum it is clamped."""
    return clamp(query.number("page_size") or PAGE_SIZE, 1, PAGE_SIZE_MAX)


def visible_prefixes(key: Key | None, wanted: str) -> list[str]:
    """The prefixes of the names that a key may see among those that begin with `wanted`."""
    if key is None or not key.prefixes:
        return [wanted]
    both = [(prefix, wanted) for prefix in key.prefixes]
    return [max(pair, key=len) for pair in both if _is_nested(*pair)]


def _is_nested(a: str, b: str) -> bool:
    return a.startswith(b) or b.startswith(a)


def cursor_after(name: str) -> str:
    return base64.urlsafe_b64encode(_ENCODER.encode(Place(name))).decode()


def place_of(cursor: str) -> str:
    """The name a cursor stands after, empty for the beginning. Raises BadRequest."""
    if not cursor:
        return ""
    try:
        place = _PLACE.decode(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        place = None
    if place is None or cursor_after(place.after) != cursor:
        raise BadRequest("this cursor is not one of ours; begin again without one")
    return place.after
