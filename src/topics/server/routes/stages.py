"""POST /v0/stages, POST /v0/stages/commit, DELETE /v0/stages: batches that are there or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.engine.serving import LogTimes
from topics.engine.state.stage_request import STAGES_MAX, StageRequest, decode_stage
from topics.errors import InvalidRequest
from topics.loose import Loose
from topics.server.api.auth import WRITE
from topics.server.api.call import Call
from topics.server.api.decoding import Query, check_content_type, decode
from topics.server.api.fields import BATCH_SCHEMA, WORD_SCHEMA
from topics.server.api.route import ANY_BYTES, STORED, Parameter, Route
from topics.server.api.stage_shapes import (
    CommitBody,
    CommitDone,
    StageBody,
    StageMade,
    StagesDropped,
)
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.types import Committed, Staged

# As many stages as it may name, and some room around them.
COMMIT_BODY_BYTES_MAX = 32 * STAGES_MAX
_COMMIT = Loose(CommitBody)


class StageRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        limits = ("batch_too_large", "record_too_large", "disk_full")
        return [
            Route(
                method="POST", path="/v0/stages", handler=self.stage, scopes=WRITE,
                summary="Hand in records of a batch: durable, and unseen before its commit.",
                body=StageBody, needs_body=True, body_bytes_max=ANY_BYTES,
                answers={201: StageMade}, errors=limits,
            ),
            Route(
                method="POST", path="/v0/stages/commit", handler=self.commit, scopes=WRITE,
                summary="Publish the stages of a batch, for each topic all at once, and only once.",
                body=CommitBody, needs_body=True, body_bytes_max=COMMIT_BODY_BYTES_MAX,
                answers={200: CommitDone},
                errors=(
                    "conflict", "stage_expired", "topic_full", *STORED, "outcome_unknown", *limits,
                ),
            ),
            Route(
                method="DELETE", path="/v0/stages", handler=self.drop, scopes=WRITE,
                summary="Drop the stages of a batch that were not committed.",
                parameters=(
                    Parameter("producer", WORD_SCHEMA, "Whose batch it is.", is_required=True),
                    Parameter("batch", BATCH_SCHEMA, "Which one.", is_required=True),
                ),
                answers={200: StagesDropped}, errors=("disk_full",),
            ),
        ]  # fmt: skip

    def stage(self, call: Call) -> Answer:
        if not call.body:
            raise InvalidRequest("a stage needs a body with records")
        if not call.head.is_json:
            check_content_type(call)
        request = decode_stage(call.body, self._services.settings, call)
        self._check_names(call, [request.topic])
        if call.key is not None:
            self._services.writes.check_markers(call.key, request.topic, request.records)
        return self._in_turn(call, [request.topic], partial(self._stage, call, request))

    def _stage(self, call: Call, request: StageRequest) -> Answer:
        ticket = self._services.engine.submit_stage(request)

        def answer(made: Staged, _log: LogTimes | None) -> Response:
            body = StageMade(stage=made.stage, count=made.count, performance=call.performance())
            return call.answer(body, 201)

        return self._services.finish(call, ticket, answer)

    def commit(self, call: Call) -> Answer:
        body = decode(call, _COMMIT)
        engine = self._services.engine
        topics = engine.topics_of_stages(body.stages)
        self._check_names(call, [*topics, *engine.topics_of_batch(body.producer, body.batch)])
        return self._in_turn(call, topics[:1], partial(self._commit, call, body))

    def _commit(self, call: Call, body: CommitBody) -> Answer:
        engine = self._services.engine
        ticket = engine.submit_commit(body.producer, body.batch, body.query, body.stages)

        def answer(done: Committed, log: LogTimes | None) -> Response:
            shown = CommitDone(
                repeated=done.repeated, topics=done.topics, performance=call.performance(log)
            )
            return call.answer(shown)

        return self._services.finish(call, ticket, answer)

    def _in_turn(self, call: Call, topics: list[str], resume: Callable[[], Answer]) -> Answer:
        """Answers now, or under pressure when it is the turn of a topic, like a write."""
        delivery = self._services.delivery
        if not topics or not delivery.pressure.is_parking:
            return resume()
        if delivery.pressure.is_refusing:
            delivery.refuse("write", topics[0])
        return self._services.parking.park(call, topics[0], "write", resume, may_refuse=True)

    def drop(self, call: Call) -> Answer:
        query = Query(call.query)
        producer, batch = query.text("producer"), query.number("batch")
        if batch is None or not producer:
            raise InvalidRequest("which stages are to be dropped? Name their producer and batch.")
        engine = self._services.engine
        self._check_names(call, engine.topics_of_batch(producer, batch))
        ticket = engine.submit_drop_stages(producer, batch)

        def answer(dropped: int, _log: LogTimes | None) -> Response:
            body = StagesDropped(
                producer=producer, batch=batch, deleted=dropped,
                performance=call.performance(),
            )  # fmt: skip
            return call.answer(body)

        return self._services.finish(call, ticket, answer)

    def _check_names(self, call: Call, names: list[str]) -> None:
        """Raises Forbidden for a topic outside the prefixes of the caller's key."""
        if call.key is not None:
            for name in names:
                call.key.require_name(name)
