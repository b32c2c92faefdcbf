"""PUT, PATCH, GET and DELETE of one topic."""

from __future__ import annotations

from msgspec import UNSET

from topics.configs import config_changes
from topics.engine.ops.catalog import Put
from topics.engine.reading import priority
from topics.engine.serving import LogTimes
from topics.errors import Forbidden
from topics.loose import Loose
from topics.server.api.auth import ADMIN, DELETE, READ
from topics.server.api.call import Call
from topics.server.api.decoding import Query, decode
from topics.server.api.route import Parameter, Route
from topics.server.api.shapes import TopicDeleted, TopicPut, TopicStateBody
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.cursors import entry_of
from topics.types import ConfigInput, ConfigPatch

_CONFIG = Loose(ConfigInput)
_PATCH = Loose(ConfigPatch)


class TopicRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        path = "/v0/topics/:topic"
        touch = Parameter(
            "touch", {"type": "boolean", "default": True}, "False leaves the recency clock alone."
        )
        if_empty = Parameter(
            "if_empty", {"type": "boolean", "default": False}, "Delete only without records."
        )
        return [
            Route(
                method="PUT", path=path, handler=self.put, scopes=ADMIN,
                summary="Create a topic, or replace its config.",
                body=ConfigInput, answers={200: TopicPut, 201: TopicPut},
                errors=("topic_exists_incompatible", "conflict", "outcome_unknown", "disk_full"),
            ),
            Route(
                method="PATCH", path=path, handler=self.patch, scopes=ADMIN,
                summary="Change some fields of a topic's config and leave the rest.",
                body=ConfigPatch, answers={200: TopicPut},
                errors=("topic_not_found", "topic_exists_incompatible", "conflict",
                        "outcome_unknown", "disk_full"),
            ),
            Route(
                method="GET", path=path, handler=self.state, scopes=READ,
                summary="The state of a topic: head, floor, counts, config.",
                parameters=(touch,), answers={200: TopicStateBody}, errors=("topic_not_found",),
            ),
            Route(
                method="DELETE", path=path, handler=self.delete, scopes=DELETE,
                summary="Remove a topic, its records and its routers for good.",
                parameters=(if_empty,), answers={200: TopicDeleted},
                errors=("topic_not_empty", "outcome_unknown", "disk_full"),
            ),
        ]  # fmt: skip

    def put(self, call: Call, name: str) -> Answer:
        given = decode(call, _CONFIG)
        if call.key is not None:
            call.key.require_config(given)
        return self._finish_put(call, self._services.engine.submit_put(name, given))

    def patch(self, call: Call, name: str) -> Answer:
        given = decode(call, _PATCH)
        if call.key is not None:
            call.key.require_config(given)
        return self._finish_put(call, self._services.engine.submit_patch(name, given))

    def _finish_put(self, call: Call, put: Put) -> Answer:
        def answer(_done: None, log: LogTimes | None) -> Response:
            config, before = put.topic.config, put.before
            body = TopicPut(
                topic=put.topic.name, created=put.created, config=config,
                changed=UNSET if before is None else config_changes(before, config),
                performance=call.performance(log, is_durable=config.durable),
            )  # fmt: skip
            return call.answer(body, 201 if put.created else 200)

        return self._services.finish(call, put.ticket, answer)

    def state(self, call: Call, name: str) -> Answer:
        touch = Query(call.query).flag("touch", default=True)
        state = self._services.engine.state(name, touch=touch)
        queue, now_ms = state.queue, self._services.clock.wall_ms()
        return call.answer(
            TopicStateBody(
                topic=name, type=state.config.type, epoch=str(state.epoch),
                head_seq=state.head_seq, earliest_seq=state.earliest_seq,
                next_seq=state.next_seq, count=state.count, bytes=state.bytes,
                config=state.config, queue=UNSET if queue is None else queue,
                effective_priority=priority.effective(
                    state.config, consumed_ms=state.last_read_ts, now_ms=now_ms
                ),
                last_write_ts=state.last_write_ts, last_read_ts=state.last_read_ts,
                cursors=[entry_of(cursor) for cursor in state.cursors],
                performance=call.performance(),
            )
        )  # fmt: skip

    def delete(self, call: Call, name: str) -> Answer:
        if_empty = Query(call.query).flag("if_empty", default=False)
        engine = self._services.engine
        config, removed = engine.config_of(name), engine.routers_of(name)
        if call.key is not None and not all(map(call.key.may_name, removed)):
            # What goes along with the topic, the key must be able to delete by itself.
            raise Forbidden(
                f"routers lead to or from {name!r} that this API key may not touch; nothing was "
                "deleted", name=name,
            )  # fmt: skip
        deleted, ticket = engine.submit_drop(name, if_empty=if_empty)

        def answer(_done: None, log: LogTimes | None) -> Response:
            is_durable = config is not None and config.durable
            body = TopicDeleted(
                topic=name, deleted=deleted, routers_removed=removed,
                performance=call.performance(log, is_durable=is_durable),
            )  # fmt: skip
            return call.answer(body)

        return self._services.finish(call, ticket, answer)
