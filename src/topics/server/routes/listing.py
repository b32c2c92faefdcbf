"""GET /v0/topics: pages of topics, by name or the largest first, after an opaque cursor."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from topics.engine.gauges import Measure
from topics.engine.reading import priority
from topics.server.api.auth import READ, Key
from topics.server.api.call import Call
from topics.server.api.decoding import Query
from topics.server.api.fields import LIST_CURSOR_SCHEMA, U64_SCHEMA
from topics.server.api.route import Parameter, Route
from topics.server.api.shapes import TopicPage, TopicSummary
from topics.server.http.errors import BadRequest
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.types import clamp

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000


NAME = "name"
_MEASURES: dict[str, Measure] = {"bytes": "bytes", "count": "count", "lag": "lag"}


class Place(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a cursor holds: the last name of the page before, and what it was sorted by."""

    after: str
    by: str = NAME
    value: int = 0


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
        sort = Parameter(
            "sort", {"enum": [NAME, *_MEASURES], "default": NAME},
            "Names in byte order; anything else the largest first. The lag of a topic is that of "
            "its slowest cursor, of a queue at least the jobs that are ready.",
        )  # fmt: skip
        return [
            Route(
                method="GET", path="/v0/topics", handler=self.list, scopes=READ,
                summary="List topics with their summary state.",
                parameters=(*PAGING, touch, sort), answers={200: TopicPage},
            )
        ]  # fmt: skip

    def list(self, call: Call) -> Answer:
        query = Query(call.query)
        touch = query.flag("touch", default=False)
        by = query.choice("sort", (NAME, *_MEASURES), NAME)
        size, cursor = page_size(query), query.text("cursor")
        prefixes = visible_prefixes(call.key, query.text("prefix"))
        engine = self._services.engine
        if by == NAME:
            names = engine.names(prefixes, after=place_of(cursor), limit=size + 1)
            return self._page(call, [Place(name) for name in names], size, touch)
        place = find_place(cursor, by)
        after = None if place is None else (place.value, place.after)
        begin = partial(engine.largest, prefixes, _MEASURES[by], after=after, limit=size + 1)

        def answer(found: list[tuple[int, str]]) -> Response:
            places = [Place(name, by, value) for value, name in found]
            return self._page(call, places, size, touch)

        return self._services.reading_slices(call, begin, answer)

    def _page(self, call: Call, places: Sequence[Place], size: int, touch: bool) -> Response:
        engine, now_ms = self._services.engine, self._services.clock.wall_ms()
        topics = []
        for place in places[:size]:
            if not engine.has_topic(place.after):
                # It was deleted while the others were looked at.
                continue
            state = engine.state(place.after, touch=touch, cursors=False)
            topics.append(
                TopicSummary(
                    topic=place.after, type=state.config.type, epoch=str(state.epoch),
                    head_seq=state.head_seq, earliest_seq=state.earliest_seq,
                    count=state.count, bytes=state.bytes, durable=state.config.durable,
                    effective_priority=priority.effective(
                        state.config, consumed_ms=state.last_read_ts, now_ms=now_ms
                    ),
                    lag=place.value if place.by == "lag" else UNSET,
                )
            )  # fmt: skip
        more = len(places) > size
        return call.answer(
            TopicPage(
                topics=topics,
                next_cursor=cursor_at(places[size - 1]) if more else UNSET,
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
    return cursor_at(Place(name))


def cursor_at(place: Place) -> str:
    return base64.urlsafe_b64encode(_ENCODER.encode(place)).decode()


def place_of(cursor: str) -> str:
    """The name a cursor stands after, empty for the beginning. Raises BadRequest."""
    place = find_place(cursor, NAME)
    return "" if place is None else place.after


def find_place(cursor: str, by: str) -> Place | None:
    """Where a cursor stands in a list of this order, None for the beginning. Raises BadRequest."""
    if not cursor:
        return None
    try:
        place = _PLACE.decode(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        place = None
    if place is None or cursor_at(place) != cursor:
        raise BadRequest("this cursor is not one of ours; begin again without one")
    if place.by != by:
        raise BadRequest(f"this cursor is of a list sorted by {place.by}; begin again without one")
    return place
