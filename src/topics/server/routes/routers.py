"""PUT, GET and DELETE of one router, and the list of them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from topics.engine.routing.definitions import RouterInput
from topics.engine.serving import LogTimes
from topics.engine.state.routers import Router
from topics.errors import Incompatible, RouterCycle, TopicsError
from topics.loose import Loose
from topics.server.api.auth import ADMIN, DELETE, READ, Key
from topics.server.api.call import Call
from topics.server.api.decoding import Query, decode
from topics.server.api.route import Parameter, Route
from topics.server.api.shapes import (
    RouterBody,
    RouterDeleted,
    RouterPage,
    RouterPut,
    RouterState,
    RouterSummary,
)
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.listing import PAGING, cursor_after, page_size, place_of, visible_prefixes

_INPUT = Loose(RouterInput)
# How many routers one list request looks at when it asks for a source or a destination.
LOOKS_MAX = 10_000


class RouterRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        path = "/v0/routers/:router"
        ends = (
            Parameter("source", {"type": "string"}, "Only routers from this topic."),
            Parameter("dest", {"type": "string"}, "Only routers into this topic."),
        )
        return [
            Route(
                method="PUT", path=path, handler=self.put, scopes=ADMIN,
                summary="Create a router, or change it.",
                body=RouterBody, needs_body=True, answers={200: RouterPut, 201: RouterPut},
                errors=(
                    "topic_not_found", "router_cycle", "topic_exists_incompatible",
                    "outcome_unknown", "disk_full",
                ),
            ),
            Route(
                method="GET", path=path, handler=self.state, scopes=READ,
                summary="A router and how much it has forwarded.",
                answers={200: RouterState}, errors=("router_not_found",),
            ),
            Route(
                method="DELETE", path=path, handler=self.delete, scopes=DELETE,
                summary="Stop a router. What it forwarded stays.",
                answers={200: RouterDeleted}, errors=("outcome_unknown", "disk_full"),
            ),
            Route(
                method="GET", path="/v0/routers", handler=self.list, scopes=READ,
                summary="List routers.", parameters=(*PAGING, *ends), answers={200: RouterPage},
            ),
        ]  # fmt: skip

    def put(self, call: Call, name: str) -> Answer:
        given = decode(call, _INPUT)
        if call.key is not None:
            # Both may be made on the caller's behalf.
            call.key.require_name(given.source)
            call.key.require_name(given.dest)
        try:
            router, created, ticket = self._services.engine.submit_router(name, given)
        except (Incompatible, RouterCycle) as error:
            raise _as_seen_by(call.key, error) from None

        def answer(_done: None, log: LogTimes | None) -> Response:
            spent = call.performance(log, is_durable=router.dest.config.durable)
            body = RouterPut(created=created, performance=spent, **_fields(router))
            return call.answer(body, 201 if created else 200)

        return self._services.finish(call, ticket, answer)

    def state(self, call: Call, name: str) -> Answer:
        router = self._services.engine.router(name)
        body = RouterState(
            forwarded_total=router.place.forwarded_total, lag=router.lag,
            blocked=router.blocked or None, performance=call.performance(), **_fields(router),
        )  # fmt: skip
        return call.answer(body)

    def delete(self, call: Call, name: str) -> Answer:
        deleted, ticket = self._services.engine.submit_unroute(name)

        def answer(_done: None, log: LogTimes | None) -> Response:
            body = RouterDeleted(router=name, deleted=deleted, performance=call.performance(log))
            return call.answer(body)

        return self._services.finish(call, ticket, answer)

    def list(self, call: Call) -> Answer:
        query = Query(call.query)
        size = page_size(query)
        source, dest = query.text("source"), query.text("dest")
        engine = self._services.engine
        prefixes = visible_prefixes(call.key, query.text("prefix"))
        after = place_of(query.text("cursor"))
        found: list[Router] = []
        looks = LOOKS_MAX
        names: list[str] = []
        while looks > 0 and len(found) <= size:
            names = engine.router_names(prefixes, after=after, limit=size + 1)
            looks -= len(names)
            after = names[-1] if names else after
            among = [engine.router(name) for name in names]
            found += [
                router
                for router in among
                if source in ("", router.source.name) and dest in ("", router.dest.name)
            ]
            if len(names) <= size:
                names = []
                break
        if len(found) > size:
            after = found[size - 1].name
        more = len(found) > size or bool(names)
        return call.answer(
            RouterPage(
                routers=[_summary(router) for router in found[:size]],
                next_cursor=cursor_after(after) if more else UNSET,
                performance=call.performance(),
            )
        )


def _as_seen_by(key: Key | None, error: TopicsError) -> TopicsError:
    """What stands in the way, without names of routers and topics that the key may not touch."""
    detail = error.detail
    told = [detail.get("router", ""), detail.get("source", ""), *detail.get("cycle", ())]
    if key is None or all(key.may_name(name) for name in told if name):
        return error
    kept = {"reason": detail["reason"]} if "reason" in detail else {}
    return type(error)("a router that this API key may not touch stands in the way of it", **kept)


def _fields(router: Router) -> dict[str, Any]:
    options = router.options
    match: tuple[str, str, str] | None = None
    if options.filter is not None:
        text, is_prefix = options.filter
        match = ("tag", "Glob", text + "*") if is_prefix else ("tag", "Eq", text)
    return {
        "router": router.name, "source": options.source, "dest": options.dest,
        "preserve_node": options.preserve_node, "preserve_tag": options.preserve_tag,
        "filter": match, "allow_cycle": options.allow_cycle, "guarantee": options.guarantee,
    }  # fmt: skip


def _summary(router: Router) -> RouterSummary:
    return RouterSummary(
        router=router.name, source=router.options.source, dest=router.options.dest,
        guarantee=router.options.guarantee, forwarded_total=router.place.forwarded_total,
    )  # fmt: skip
