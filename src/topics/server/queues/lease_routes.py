"""POST claim, ack, nack and extend: the life of a lease.

The hot path: claims and acknowledgements of one turn of the loop are one pass and one frame of the
log; what is answered are the bytes that were rendered when the jobs were written.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from topics.engine.queues.claims import claimant_of
from topics.engine.queues.leases import NamedJobs, check_named
from topics.engine.state.queue_values import Extended, Nacked
from topics.engine.state.topic import Topic
from topics.loose import Loose
from topics.server.api.auth import READ, WRITE
from topics.server.api.call import Call, count_together
from topics.server.api.decoding import check_content_type, decode
from topics.server.api.route import SMALL_BODY_BYTES_MAX, STORED, Route
from topics.server.http.errors import BadRequest
from topics.server.http.message import PENDING, Answer, Response
from topics.server.loop.log_times import NOTHING, LogTimes
from topics.server.loop.services import Services
from topics.server.queues.claims import Claim
from topics.server.queues.desks import Desks
from topics.server.queues.shapes import (
    AckAnswer,
    AckBody,
    ClaimAnswer,
    ClaimBody,
    ExtendAnswer,
    ExtendBody,
    NackAnswer,
    NackBody,
)
from topics.server.queues.turn import ClaimTurn
from topics.types import U64_MAX

_CLAIM = Loose(ClaimBody)
_ACK = Loose(AckBody)
_NACK = Loose(NackBody)
_EXTEND = Loose(ExtendBody)

# What a job that is named takes in a body: its seq, its lease, what stands around them.
JOB_BYTES = 64
_ERRORS = ("topic_not_found", "not_a_queue", "outcome_unknown", "disk_full")
_SETTLED = b'%b%d,"skipped":%b,"ready":%d,"in_flight":%d,"performance":{"server_total_ms":%.3f,%b}}'
_EXTENDED = (
    b'{"topic":"%b","extended":%d,"skipped":%b,"deadlines":{%b},"performance":'
    b'{"server_total_ms":%.3f,%b}}'
)


class QueueRoutes:
    def __init__(self, services: Services, desks: Desks) -> None:
        self._services = services
        self._driver = services.driver
        self._pressure = services.delivery.pressure
        self._desks = desks
        self._turn = ClaimTurn(desks)
        self._times = LogTimes(services.driver)
        # One object, so that frames can tell that calls are answered in the same way.
        self._together = self._acked_together

    def routes(self) -> list[Route]:
        path = "/v0/topics/:topic/"
        bytes_max = max(SMALL_BODY_BYTES_MAX, JOB_BYTES * self._services.settings.max_claim)
        return [
            Route(
                method="POST", path=path + "claim", handler=self.claim, scopes=READ | WRITE,
                summary="Lease jobs of a queue to a worker.",
                body=ClaimBody, needs_body=True, answers={200: ClaimAnswer},
                errors=(*_ERRORS, *STORED),
            ),
            Route(
                method="POST", path=path + "ack", handler=self.ack, scopes=WRITE,
                summary="Complete jobs: they are deleted for good.",
                body=AckBody, needs_body=True, body_bytes_max=bytes_max,
                answers={200: AckAnswer},
                errors=(*_ERRORS, "batch_too_large"),
            ),
            Route(
                method="POST", path=path + "nack", handler=self.nack, scopes=WRITE,
                summary="Give jobs back, to be claimed again now or after a delay.",
                body=NackBody, needs_body=True, body_bytes_max=bytes_max,
                answers={200: NackAnswer},
                errors=(*_ERRORS, "batch_too_large"),
            ),
            Route(
                method="POST", path=path + "extend", handler=self.extend, scopes=WRITE,
                summary="Let leases end later: this long from now.",
                body=ExtendBody, needs_body=True, body_bytes_max=bytes_max,
                answers={200: ExtendAnswer},
                errors=(*_ERRORS, "batch_too_large"),
            ),
        ]  # fmt: skip

    def _judge_topic(self, call: Call, name: str) -> None:
        """Raises TopicNotFound or NotAQueue, whatever is in the body."""
        if call.body and not call.head.is_json:
            check_content_type(call)
        self._driver.engine.check_queue(name)

    # -- claim ---------------------------------------------------------------------------------

    def claim(self, call: Call, name: str) -> Answer:
        self._judge_topic(call, name)
        body = decode(call, _CLAIM)
        wanted, lease_ms, wait_ms = body.max, body.lease_ms, body.wait_ms
        if wanted > U64_MAX or wait_ms > U64_MAX or (lease_ms or 0) > U64_MAX:
            raise _out_of_range()
        services = self._services
        asked = claimant_of(body.node, wanted, lease_ms, services.settings)
        claim = Claim(self._desks, call, name, asked, wait_ms)
        if self._pressure.is_parking:
            if self._pressure.is_refusing:
                services.delivery.refuse("claim", name)
            resume = partial(self._claim, claim)
            return services.parking.park(call, name, "claim", resume, may_refuse=True)
        return self._claim(claim)

    def _claim(self, claim: Claim) -> Answer:
        config = self._driver.engine.config_of(claim.name)
        if config is not None and config.claim_jitter_ms and not self._services.is_draining:
            claim.wait().kick()
        else:
            self._turn.add(claim)
        return PENDING

    # -- ack, nack, extend -----------------------------------------------------------------------

    def ack(self, call: Call, name: str) -> Answer:
        self._judge_topic(call, name)
        body = decode(call, _ACK)
        check_named(body.node, body.seqs, body.lease_ids, self._services.settings)
        self._driver.engine.stage_ack(
            name, body.node, body.seqs, body.lease_ids, call, self._together
        )
        self._driver.flush_soon()
        return PENDING

    def _acked_together(
        self,
        topic: Topic,
        calls: list[tuple[NamedJobs, Call]],
        counts: tuple[int, int],
        waited: bool,
    ) -> None:
        """Answers the acknowledgements of one frame."""
        desk = self._desks.by_name.get(topic.name)
        lead = b'{"topic":"%b","acked":' % topic.name.encode()
        spent = self._times.of(topic.name) if waited else NOTHING
        now_s = perf_counter()
        count_together([call for _, call in calls], now_s)
        for named, call in calls:
            if desk is not None:
                desk.note_settled(named.held)
            skipped, took_ms = _seqs(named.skipped), (now_s - call.began_s) * 1000
            call.respond_json(_SETTLED % (lead, len(named.held), skipped, *counts, took_ms, spent))

    def nack(self, call: Call, name: str) -> Answer:
        self._judge_topic(call, name)
        body = decode(call, _NACK)
        if body.delay_ms > U64_MAX:
            raise _out_of_range()
        ticket = self._driver.engine.submit_nack(
            name, body.node, body.seqs, body.delay_ms, body.lease_ids
        )

        def answer(done: Nacked, log: object) -> Response:
            self._settled(name, body.seqs, done.skipped)
            lead = b'{"topic":"%b","nacked":' % name.encode()
            counts, spent = (done.ready, done.in_flight), self._spent(call, name, log)
            return Response(_SETTLED % (lead, done.nacked, _seqs(done.skipped), *counts, *spent))

        return self._services.finish(call, ticket, answer)

    def extend(self, call: Call, name: str) -> Answer:
        self._judge_topic(call, name)
        body = decode(call, _EXTEND)
        if body.lease_ms > U64_MAX:
            raise _out_of_range()
        ticket = self._driver.engine.submit_extend(
            name, body.node, body.seqs, body.lease_ms, body.lease_ids
        )

        def answer(done: Extended, log: object) -> Response:
            desk = self._desks.by_name.get(name)
            if desk is not None:
                desk.note_extended()
            deadlines = b",".join([b'"%d":%d' % pair for pair in done.deadlines.items()])
            told = (name.encode(), done.extended, _seqs(done.skipped), deadlines)
            return Response(_EXTENDED % (*told, *self._spent(call, name, log)))

        return self._services.finish(call, ticket, answer)

    def _spent(self, call: Call, name: str, log: object) -> tuple[float, bytes]:
        """What a call took, and the log of it where that was waited for."""
        took_ms = (perf_counter() - call.began_s) * 1000
        return took_ms, NOTHING if log is None else self._times.of(name)

    def _settled(self, name: str, seqs: list[int], skipped: list[int]) -> None:
        desk = self._desks.by_name.get(name)
        if desk is not None:
            left = set(skipped)
            desk.note_settled(seq for seq in seqs if seq not in left)


def _out_of_range() -> BadRequest:
    return BadRequest("numbers must be from 0 to 2^64 - 1")


def _seqs(seqs: list[int]) -> bytes:
    if not seqs:
        return b"[]"
    return b"[%b]" % ",".join(map(str, seqs)).encode()
