"""POST /v0/topics/:topic: the write. Everything that arrives in one turn of the loop is one group.

The hot path: decode, submit, and when the ticket ends, one formatting of the answer.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from topics.consecutive import consecutive
from topics.engine.state.topic import Topic
from topics.engine.state.write_request import Request, decode_write
from topics.errors import InvalidRequest
from topics.server.api.auth import WRITE
from topics.server.api.call import Call, count_together
from topics.server.api.decoding import Query, check_content_type
from topics.server.api.fields import FALSE_TRUE
from topics.server.api.route import ANY_BYTES, Parameter, Route
from topics.server.api.shapes import WriteBody, Written
from topics.server.http.message import PENDING, Answer, Response
from topics.server.loop.log_times import LogTimes
from topics.server.loop.services import Services
from topics.types import BUCKET_TOPIC, Appended

_MANY = (
    b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,'
    b'"deduped":%b,"performance":{"server_total_ms":%.3f,%b}}'
)
_SEQS = b'"seqs":[%b],'
# A single record, which is most of them.
_ONE = (
    b'%b%b,"last_seq":%b,"head_seq":%b,"count":1,"created":false,"deduped":false,'
    b'"performance":{"server_total_ms":%.3f,%b%b}}'
)
_ONE_WITH_SEQS = _ONE.replace(b',"head_seq"', b',"seqs":[%b],"head_seq"')
_UNSAID = "unsaid"


class WriteRoute:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._writes = services.writes
        self._settings = services.settings
        self._times = LogTimes(services.driver)
        self._pressure = services.delivery.pressure

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST", path="/v0/topics/:topic", handler=self.write, scopes=WRITE,
                summary="Append records; the topic is created when it is missing and may be.",
                body=WriteBody, needs_body=True, body_bytes_max=ANY_BYTES,
                answers={200: Written, 201: Written},
                parameters=(
                    Parameter("return_seqs", {"type": "boolean", "default": True},
                              "False leaves `seqs` out of the answer; wins over the body."),
                    Parameter("Idempotency-Key",
                              {"type": "string", "minLength": 1, "maxLength": 256},
                              "As `idempotency_key` in the body, which wins.", "header"),
                ),
                errors=("batch_too_large", "record_too_large", "topic_not_found", "conflict",
                        "topic_full", "outcome_unknown", "disk_full"),
            )
        ]  # fmt: skip

    def write(self, call: Call, name: str) -> Answer:
        if not call.body:
            raise InvalidRequest("a write needs a body with records")
        head = call.head
        if not head.is_json:
            check_content_type(call)
        body = decode_write(call.body, self._settings, call)
        if call.own_key or b"idempotency-key" in head.headers:
            key = idempotency_key_of(call, self._settings.max_idempotency_key_chars)
            if body.idempotency_key is None:
                body.idempotency_key = key
        if head.noted is None:
            # What the query says about the seqs, or that it says nothing: it wins.
            head.noted = Query(head.query).flag("return_seqs", default=_UNSAID)
        if not (body.return_seqs if head.noted is _UNSAID else head.noted):
            call.returns_seqs = False
        if body.config is not None:
            self._writes.check_config(call.key, name, body)
        if call.key is not None and name.startswith(BUCKET_TOPIC):
            self._writes.check_markers(call.key, name, body.records)
        if self._pressure.is_parking:
            self._writes.check_pressure("write", name, body)
            may_refuse = not body.disable_backpressure
            resume = partial(self._submit, call, name, body)
            return self._services.parking.park(call, name, "write", resume, may_refuse=may_refuse)
        self._writes.submit(name, body, call, self)
        return PENDING

    def _submit(self, call: Call, name: str, body: Request) -> Answer:
        self._writes.submit(name, body, call, self)
        return PENDING

    # -- topics.engine.ops.told.Teller -----------------------------------------------------------

    def together(self, topic: Topic, first: int, _ts: int, owners: list[Call]) -> None:
        lead = b'{"topic":"%b","first_seq":' % topic.name.encode()
        spent = self._times.of(topic.name)
        now_s = perf_counter()
        count_together(owners, now_s)
        for seq, call in enumerate(owners, first):
            told = b"%d" % seq
            waited = b',"throttle_wait_ms":%.3f' % call.parked_ms if call.parked_ms else b""
            took_ms = (now_s - call.began_s) * 1000
            if call.returns_seqs:
                body = _ONE_WITH_SEQS % (lead, told, told, told, told, took_ms, spent, waited)
            else:
                body = _ONE % (lead, told, told, told, took_ms, spent, waited)
            call.respond_json(body)

    def alone(self, owner: Call, done: Appended) -> None:
        call, first, count = owner, done.first_seq, done.count
        spent = self._times.of(done.topic)
        if call.parked_ms:
            spent += b',"throttle_wait_ms":%.3f' % call.parked_ms
        took_ms = (perf_counter() - call.began_s) * 1000
        seqs = _SEQS % consecutive(first, count, b",") if call.returns_seqs else b""
        body = _MANY % (
            done.topic.encode(), first, done.last_seq, seqs, done.head_seq, count,
            FALSE_TRUE[done.created], FALSE_TRUE[done.deduped], took_ms, spent,
        )  # fmt: skip
        call.respond(Response(body, 201 if done.created else 200))


def idempotency_key_of(call: Call, chars_max: int) -> str | None:
    """The key that the head of a request has, if it has one. Raises InvalidRequest."""
    header = call.own_key or call.head.headers.get(b"idempotency-key")
    if header is None:
        return None
    try:
        key = header.decode()
    except UnicodeDecodeError:
        # What HTTP itself takes a header for. Any name of a write will do.
        key = header.decode("latin-1")
    if not 1 <= len(key) <= chars_max:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {chars_max} characters")
    return key
