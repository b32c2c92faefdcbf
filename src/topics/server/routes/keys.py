"""Keys of a bucket: put, get, delete one; list them, delete what begins with a prefix."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import UNSET, Raw

from topics.engine.commit.ticket import Ticket
from topics.engine.serving import LogTimes
from topics.errors import Compacted, InvalidRequest
from topics.kv import reading
from topics.kv.buckets import KEY_BYTES_MAX, check_key, topic_of
from topics.kv.reading import Entry, Version
from topics.loose import Loose
from topics.server.api.auth import DELETE, READ, WRITE
from topics.server.api.call import Call
from topics.server.api.decoding import Query, check_content_type, decode
from topics.server.api.fields import U64_SCHEMA
from topics.server.api.kv_shapes import (
    AnyValue,
    KeyDeleted,
    KeyEntry,
    KeyFound,
    KeyPage,
    KeyPut,
    KeyVersion,
    PrefixBody,
    PrefixDeleted,
)
from topics.server.api.route import ANY_BYTES, STORED, Parameter, Route
from topics.server.api.shapes import Performance
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.listing import PAGING, cursor_after, page_size, place_of
from topics.server.routes.write import idempotency_key_of
from topics.types import Appended

_PREFIX = Loose(PrefixBody)

_AT = (
    Parameter("at_seq", U64_SCHEMA, "As of this seq; 0 is the empty bucket."),
    Parameter("snapshot", {"type": "string"}, "As of an open snapshot; not with `at_seq`."),
)
_IF_SEQ = Parameter(
    "if_seq", U64_SCHEMA, "Only if this is the seq of the live version; 0: only if it is not live."
)
_IDEMPOTENCY = Parameter(
    "Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": 256},
    "A repeated call with the same key is answered as the first one was.", "header",
)  # fmt: skip


class KeyRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._desk = services.buckets

    def routes(self) -> list[Route]:
        every, one = "/v0/kv/:bucket/keys", "/v0/kv/:bucket/keys/:key"
        written = ("conflict", "record_too_large", "topic_full", "outcome_unknown", "disk_full")
        found = ("bucket_not_found", *STORED)
        past = ("compacted", "snapshot_not_found")
        values = Parameter("values", {"type": "boolean", "default": False}, "With their values.")
        history = Parameter(
            "history", {"type": "boolean", "default": False}, "All versions that are left."
        )
        return [
            Route(
                method="PUT", path=one, handler=self.put, scopes=WRITE, body=AnyValue,
                needs_body=True, body_bytes_max=ANY_BYTES,
                parameters=(_IF_SEQ, _IDEMPOTENCY), answers={200: KeyPut},
                summary="Set a key's value; the bucket is made where it is missing.",
                errors=(*STORED, *written),
            ),
            Route(
                method="GET", path=one, handler=self.get, scopes=READ,
                parameters=(*_AT, history), answers={200: KeyFound},
                summary="A key's value, now or then; or its history.",
                errors=("key_not_found", *past, *found),
            ),
            Route(
                method="DELETE", path=one, handler=self.delete, scopes=DELETE,
                parameters=(_IF_SEQ, _IDEMPOTENCY), answers={200: KeyDeleted},
                summary="Delete a key: a marker hides it from now on.",
                errors=(*found, *written),
            ),
            Route(
                method="GET", path=every, handler=self.list, scopes=READ,
                parameters=(*PAGING, values, *_AT), answers={200: KeyPage},
                summary="Live keys in byte order. A page may be short and still not the last.",
                errors=(*past, *found),
            ),
            Route(
                method="POST", path="/v0/kv/:bucket/delete", handler=self.delete_prefix,
                scopes=DELETE, body=PrefixBody, needs_body=True, answers={200: PrefixDeleted},
                summary="Delete all keys that begin with a prefix, with one marker.",
                errors=(*found, "outcome_unknown", "disk_full"),
            ),
            *(
                Route(
                    method=method, path=every + "/", handler=self.no_key, scopes=scopes,
                    summary="The empty key, which there is not.", is_shown=False,
                    body=AnyValue if method == "PUT" else None, body_bytes_max=ANY_BYTES,
                )
                for method, scopes in (("PUT", WRITE), ("GET", READ), ("DELETE", DELETE))
            ),
        ]  # fmt: skip

    def no_key(self, _call: Call, _name: str) -> Answer:
        raise InvalidRequest(f"a key has 1 to {KEY_BYTES_MAX} bytes")

    # -- writing -----------------------------------------------------------------------------

    def put(self, call: Call, name: str, key: str) -> Answer:
        topic_of(name)
        check_key(key)
        if not call.body:
            raise InvalidRequest("a put needs a body: the value, as JSON")
        if not call.head.is_json:
            check_content_type(call)
        if_seq = Query(call.query).number("if_seq")
        again = idempotency_key_of(call, self._services.settings.max_idempotency_key_chars)
        self._services.writes.check_busy("put", topic_of(name))
        put = partial(self._put, call, name, key, Raw(call.body), if_seq, again)
        return self._desk.answer(call, put)

    def _put(
        self, call: Call, name: str, key: str, value: Raw, if_seq: int | None, again: str | None
    ) -> Answer:
        put = self._desk.buckets.put(name, key, value, if_seq=if_seq, idempotency_key=again)

        def answer(done: Appended, log: LogTimes | None) -> Response:
            created = self._was_created(name, key, done) if done.deduped else put.created
            body = KeyPut(
                key=key, seq=done.first_seq, ts=done.ts, created=created,
                performance=self._performance(call, log, done.topic),
            )  # fmt: skip
            return call.answer(body)

        return self._services.finish(call, put.ticket, answer)

    def _was_created(self, name: str, key: str, done: Appended) -> bool:
        """Whether a key was not live in front of a put, as far as that is still known."""
        bucket = self._desk.buckets.get(name)
        try:
            return bucket.past.event_at(bucket.index, key, done.first_seq - 1) <= 0
        except Compacted:
            return False

    def delete(self, call: Call, name: str, key: str) -> Answer:
        topic_of(name)
        check_key(key)
        if_seq = Query(call.query).number("if_seq")
        again = idempotency_key_of(call, self._services.settings.max_idempotency_key_chars)
        return self._desk.answer(call, partial(self._delete, call, name, key, if_seq, again))

    def _delete(
        self, call: Call, name: str, key: str, if_seq: int | None, again: str | None
    ) -> Answer:
        buckets = self._desk.buckets
        ticket = buckets.delete(name, key, if_seq=if_seq, idempotency_key=again)
        wait: Ticket[Any] = buckets.in_turn(name) if ticket is None else ticket

        def answer(_done: object, log: LogTimes | None) -> Response:
            body = KeyDeleted(
                key=key, deleted=ticket is not None,
                seq=None if ticket is None else ticket.result.first_seq,
                performance=self._performance(call, log, topic_of(name)),
            )  # fmt: skip
            return call.answer(body)

        return self._services.finish(call, wait, answer)

    def delete_prefix(self, call: Call, name: str) -> Answer:
        prefix = decode(call, _PREFIX).prefix
        topic_of(name)
        return self._desk.answer(call, partial(self._delete_prefix, call, name, prefix))

    def _delete_prefix(self, call: Call, name: str, prefix: str) -> Answer:
        buckets = self._desk.buckets
        hidden, ticket = buckets.delete_prefix(name, prefix)
        wait: Ticket[Any] = buckets.in_turn(name) if ticket is None else ticket

        def answer(_done: object, log: LogTimes | None) -> Response:
            body = PrefixDeleted(
                deleted=hidden, seq=None if ticket is None else ticket.result.first_seq,
                performance=self._performance(call, log, topic_of(name)),
            )  # fmt: skip
            return call.answer(body)

        return self._services.finish(call, wait, answer)

    # -- reading -----------------------------------------------------------------------------

    def get(self, call: Call, name: str, key: str) -> Answer:
        topic_of(name)
        check_key(key)
        query = Query(call.query)
        at, snapshot = _at(query)
        if query.flag("history", default=False):
            if at is not None or snapshot is not None:
                raise InvalidRequest("history is of all times: not with at_seq or snapshot")
            return self._desk.answer(call, partial(self._history, call, name, key))
        return self._desk.answer(call, partial(self._get, call, name, key, at, snapshot))

    def _get(self, call: Call, name: str, key: str, at: int | None, snapshot: str | None) -> Answer:
        engine, bucket = self._services.engine, self._desk.buckets.get(name)
        found = reading.get(engine, bucket, key, at=at, snapshot=snapshot)
        body = KeyFound(
            key=key, value=Raw(found.value or b"null"), seq=found.seq, ts=found.ts,
            performance=call.performance(),
        )  # fmt: skip
        return call.answer(body)

    def _history(self, call: Call, name: str, key: str) -> Answer:
        found = reading.history(self._services.engine, self._desk.buckets.get(name), key)
        body = KeyFound(
            key=key, versions=[_version(each) for each in found], performance=call.performance()
        )
        return call.answer(body)

    def list(self, call: Call, name: str) -> Answer:
        topic_of(name)
        query = Query(call.query)
        at, snapshot = _at(query)
        read = partial(
            self._list, call, name, query.text("prefix"), place_of(query.text("cursor")),
            page_size(query), query.flag("values", default=False), at, snapshot,
        )  # fmt: skip
        return self._desk.answer(call, read)

    def _list(
        self,
        call: Call,
        name: str,
        prefix: str,
        after: str,
        limit: int,
        with_values: bool,
        at: int | None,
        snapshot: str | None,
    ) -> Answer:
        page = reading.page(
            self._services.engine, self._desk.buckets.get(name), prefix=prefix, after=after,
            limit=limit, with_values=with_values, at=at, snapshot=snapshot,
        )  # fmt: skip
        body = KeyPage(
            keys=[_entry(each) for each in page.entries],
            next_cursor=UNSET if page.after is None else cursor_after(page.after),
            performance=call.performance(),
        )
        return call.answer(body)

    def _performance(self, call: Call, log: LogTimes | None, topic: str) -> Performance:
        config = self._services.engine.config_of(topic)
        return call.performance(log, is_durable=config is not None and config.durable)


def _at(query: Query) -> tuple[int | None, str | None]:
    at, snapshot = query.number("at_seq"), query.text("snapshot") or None
    if at is not None and snapshot is not None:
        raise InvalidRequest("at_seq and snapshot say two things: give one of them")
    return at, snapshot


def _entry(found: Entry) -> KeyEntry:
    value = UNSET if found.value is None else Raw(found.value)
    return KeyEntry(key=found.key, seq=found.seq, ts=found.ts, value=value)


def _version(found: Version) -> KeyVersion:
    if found.value is None:
        return KeyVersion(seq=found.seq, ts=found.ts, deleted=True)
    return KeyVersion(seq=found.seq, ts=found.ts, value=Raw(found.value))
