"""Cursors of readers: PUT, GET and DELETE of one, GET of all."""

from __future__ import annotations

from msgspec import UNSET

from topics.engine.ops.cursors import Given
from topics.engine.serving import LogTimes
from topics.loose import Loose
from topics.server.api.auth import ADMIN, READ
from topics.server.api.call import Call
from topics.server.api.decoding import decode, parse_epoch
from topics.server.api.route import Route
from topics.server.api.shapes import CursorBody, CursorDeleted, CursorEntry, CursorInput, CursorList
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.cursor_leases import CursorLeases
from topics.types import CursorState

_INPUT = Loose(CursorInput)


class CursorRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._leases = CursorLeases(services.clock)

    def routes(self) -> list[Route]:
        all_of, one = "/v0/topics/:topic/cursors", "/v0/topics/:topic/cursors/:cursor"
        unsure = ("outcome_unknown", "disk_full")
        refusals = ("conflict", "cursor_leased", "cursor_regressed")
        return [
            Route(
                method="PUT", path=one, handler=self.put, scopes=READ, body=CursorInput,
                summary="Set a reader's place. With `hold` it needs the scope admin too.",
                answers={200: CursorBody},
                errors=("topic_not_found", *refusals, *unsure),
            ),
            Route(
                method="GET", path=one, handler=self.get, scopes=READ,
                summary="A reader's place, and how far it is before the head.",
                answers={200: CursorBody}, errors=("topic_not_found", "not_found"),
            ),
            Route(
                method="GET", path=all_of, handler=self.list, scopes=READ,
                summary="All cursors of a topic, in byte order of their names.",
                answers={200: CursorList}, errors=("topic_not_found",),
            ),
            Route(
                method="DELETE", path=one, handler=self.delete, scopes=ADMIN,
                summary="Forget a reader's place and what it holds.",
                answers={200: CursorDeleted}, errors=("topic_not_found", *unsure),
            ),
        ]  # fmt: skip

    def put(self, call: Call, topic: str, name: str) -> Answer:
        body = decode(call, _INPUT)
        if body.hold is not UNSET:
            call.require(ADMIN)
        given = Given(
            seq=body.seq, epoch=parse_epoch(body.epoch), if_absent=body.if_absent,
            reset=body.reset, hold=body.hold,
        )  # fmt: skip
        engine = self._services.engine
        key = (topic, engine.epoch_of(topic) if engine.has_topic(topic) else 0, name)
        self._leases.check(key, body.owner, body.lease_ms)
        ticket = engine.submit_put_cursor(topic, name, given)
        self._leases.take(key, body.owner, body.lease_ms)

        def answer(found: CursorState, log: LogTimes | None) -> Response:
            shown = body_of(call, found, created=found.created)
            shown.performance = call.performance(log)
            return call.answer(shown)

        return self._services.finish(call, ticket, answer)

    def get(self, call: Call, topic: str, name: str) -> Answer:
        return call.answer(body_of(call, self._services.engine.cursor(topic, name)))

    def list(self, call: Call, topic: str) -> Answer:
        found = self._services.engine.cursors(topic)
        return call.answer(
            CursorList(
                topic=topic, cursors=[entry_of(cursor) for cursor in found],
                performance=call.performance(),
            )
        )  # fmt: skip

    def delete(self, call: Call, topic: str, name: str) -> Answer:
        ticket = self._services.engine.submit_delete_cursor(topic, name)

        def answer(deleted: bool, log: LogTimes | None) -> Response:
            body = CursorDeleted(
                topic=topic, cursor=name, deleted=deleted, performance=call.performance(log)
            )
            return call.answer(body)

        return self._services.finish(call, ticket, answer)


def body_of(call: Call, cursor: CursorState, *, created: bool | None = None) -> CursorBody:
    return CursorBody(
        topic=cursor.topic, cursor=cursor.cursor, seq=cursor.seq, epoch=str(cursor.epoch),
        lag=cursor.lag, created=UNSET if created is None else created, hold=cursor.hold,
        updated_ts=cursor.updated_ts, performance=call.performance(),
    )  # fmt: skip


def entry_of(cursor: CursorState) -> CursorEntry:
    return CursorEntry(
        cursor=cursor.cursor, seq=cursor.seq, epoch=str(cursor.epoch), lag=cursor.lag,
        hold=cursor.hold, updated_ts=cursor.updated_ts,
    )  # fmt: skip
