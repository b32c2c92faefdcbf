"""GET /v0/topics/:topic/work: jobs of a queue, leased and pushed as events.

Everything that can be wrong is said before the stream opens; from then on it speaks in events.
"""

from __future__ import annotations

from topics.engine.queues.claims import claimant_of
from topics.server.api.auth import READ, WRITE
from topics.server.api.call import Call
from topics.server.api.decoding import Query
from topics.server.api.fields import U64_SCHEMA
from topics.server.api.route import Parameter, Route
from topics.server.api.sse_frames import check_accept
from topics.server.http.errors import BadRequest
from topics.server.http.event_stream import EventStream
from topics.server.http.message import PENDING, Answer
from topics.server.loop.services import Services
from topics.server.queues.desks import Desks
from topics.server.queues.work_stream import WorkStream


class WorkRoutes:
    def __init__(self, services: Services, desks: Desks) -> None:
        self._services = services
        self._desks = desks

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET", path="/v0/topics/:topic/work", handler=self.work,
                scopes=READ | WRITE, takes_query_token=True, is_stream=True,
                summary="Open a stream that jobs are leased to and pushed on.",
                parameters=(
                    Parameter("node", {"type": "string", "minLength": 1, "maxLength": 128,
                                       "format": "node"}, "The worker.", is_required=True),
                    Parameter("max", {**U64_SCHEMA, "default": 1},
                              "The most jobs that are under lease on this stream at a time."),
                    Parameter("lease_ms", U64_SCHEMA,
                              "How long a lease lasts; the topic's by default."),
                    Parameter("token", {"type": "string"},
                              "The API key, for browsers in development; prefer the header."),
                ),
                others={200: ("text/event-stream", "The stream.")}, events=("job", "error"),
                errors=("topic_not_found", "not_a_queue", "not_acceptable"),
            )
        ]  # fmt: skip

    def work(self, call: Call, name: str) -> Answer:
        services = self._services
        queue = services.engine.queue_handle(name)
        query = Query(call.query)
        node, wanted, lease_ms = query.text("node"), query.number("max"), query.number("lease_ms")
        if not node:
            raise BadRequest("work needs the name of its worker: ?node=", parameter="node")
        asked = claimant_of(node, 1 if wanted is None else wanted, lease_ms, services.settings)
        check_accept(call)
        if call.method == "HEAD":
            EventStream(call)
            return PENDING
        delivery = services.delivery
        if delivery.pressure.is_refusing:
            delivery.refuse("work", name)
        delivery.enter(call.key)
        WorkStream(self._desks, queue, EventStream(call), call.key, asked).begin()
        return PENDING
