"""Records of a topic after they were written: deleting them, and what became of each."""

from __future__ import annotations

import msgspec

from topics.engine.serving import LogTimes
from topics.engine.upkeep.erasing import Rewrite
from topics.loose import Loose
from topics.server.api.auth import ADMIN, DELETE, READ
from topics.server.api.call import Call
from topics.server.api.decoding import Query, decode
from topics.server.api.fields import U64_SCHEMA
from topics.server.api.route import STORED, Parameter, Route
from topics.server.api.shapes import (
    DeleteBody,
    Explained,
    RecordsDeleted,
    RewriteBody,
    TopicRewritten,
)
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.types import SEQ_BASE, STATES, Deleted

RANGES_MAX = 10_000

_DELETE = Loose(DeleteBody)
_REWRITE = Loose(RewriteBody)


class RecordRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST", path="/v0/topics/:topic/delete", handler=self.delete,
                scopes=DELETE, body=DeleteBody, needs_body=True, answers={200: RecordsDeleted},
                summary="Remove existing records for good: below a seq, by tag, or both.",
                errors=("topic_not_found", "conflict", *STORED, "outcome_unknown", "disk_full"),
            ),
            Route(
                method="POST", path="/v0/topics/:topic/rewrite", handler=self.rewrite,
                scopes=ADMIN, body=RewriteBody, answers={200: TopicRewritten},
                summary="Take what the topic has lost off the disk and out of the cold store, now.",
                errors=("topic_not_found", *STORED, "disk_full"),
            ),
            Route(
                method="GET", path="/v0/topics/:topic/explain", handler=self.explain, scopes=READ,
                summary=f"What became of every seq: {', '.join(STATES)}.",
                parameters=(
                    Parameter("from", U64_SCHEMA, "First seq asked about; 1 when absent."),
                    Parameter("to", U64_SCHEMA, "Last seq asked about; the head when absent."),
                ),
                answers={200: Explained}, errors=("topic_not_found",),
            ),
        ]  # fmt: skip

    def delete(self, call: Call, name: str) -> Answer:
        body = decode(call, _DELETE)
        engine = self._services.engine
        ticket = engine.submit_delete(name, before_seq=body.before_seq, match=body.match)
        config = engine.config_of(name)
        is_durable = config is not None and config.durable

        def answer(done: Deleted, log: LogTimes | None) -> Response:
            for told in self._services.on_deleted:
                told(done.topic)
            performance = call.performance(log, is_durable=is_durable)
            body = RecordsDeleted(**msgspec.structs.asdict(done), performance=performance)
            return call.answer(body)

        return self._services.finish(call, ticket, answer)

    def rewrite(self, call: Call, name: str) -> Answer:
        decode(call, _REWRITE)
        ticket = self._services.engine.submit_rewrite(name)

        def answer(done: Rewrite, _log: LogTimes | None) -> Response:
            body = TopicRewritten(
                topic=done.topic, bytes_before=done.bytes_before, bytes_after=done.bytes_after,
                performance=call.performance(),
            )  # fmt: skip
            return call.answer(body)

        return self._services.finish(call, ticket, answer)

    def explain(self, call: Call, name: str) -> Answer:
        query = Query(call.query)
        first, last = query.number("from"), query.number("to")
        first = SEQ_BASE if first is None else first
        engine = self._services.engine
        ranges = engine.explain(name, first, last, ranges_max=RANGES_MAX + 1)
        kept = ranges[:RANGES_MAX]
        body = Explained(
            topic=name, epoch=str(engine.epoch_of(name)), ranges=kept,
            next_from=ranges[RANGES_MAX].first if len(ranges) > RANGES_MAX else None,
            performance=call.performance(),
        )  # fmt: skip
        return call.answer(body)
