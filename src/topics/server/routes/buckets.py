"""Buckets of the key-value store: PUT, GET and DELETE of one, the list, compaction, snapshots."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET

from topics.configs import BucketInput
from topics.engine.commit.ticket import Ticket
from topics.engine.serving import LogTimes
from topics.errors import Forbidden, InvalidRequest
from topics.kv.buckets import topic_of
from topics.kv.compaction import Compacted
from topics.loose import Loose
from topics.server.api.auth import ADMIN, DELETE, READ
from topics.server.api.call import Call
from topics.server.api.decoding import Query, decode
from topics.server.api.kv_shapes import (
    BucketCompacted,
    BucketDeleted,
    BucketPage,
    BucketPut,
    BucketReader,
    BucketState,
    BucketSummary,
    CompactBody,
    Kept,
    SnapshotBody,
    SnapshotClosed,
    SnapshotOpened,
)
from topics.server.api.route import STORED, Route
from topics.server.http.errors import response_to
from topics.server.http.message import PENDING, Answer, Response
from topics.server.loop.services import Services
from topics.server.routes.listing import PAGING, cursor_after, page_size, place_of, visible_prefixes
from topics.types import BUCKET_TOPIC, U64_MAX

_CONFIG = Loose(BucketInput)
_COMPACT = Loose(CompactBody)
_SNAPSHOT = Loose(SnapshotBody)


class BucketRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._desk = services.buckets

    def routes(self) -> list[Route]:
        one = "/v0/kv/:bucket"
        unsure = ("outcome_unknown", "disk_full")
        return [
            Route(
                method="GET", path="/v0/kv", handler=self.list, scopes=READ, parameters=PAGING,
                summary="List buckets.", answers={200: BucketPage}, errors=STORED,
            ),
            Route(
                method="PUT", path=one, handler=self.put, scopes=ADMIN, body=BucketInput,
                summary="Create a bucket, or replace its config.",
                answers={200: BucketPut, 201: BucketPut}, errors=unsure,
            ),
            Route(
                method="GET", path=one, handler=self.state, scopes=READ,
                summary="The state of a bucket: its keys, its markers and who holds them.",
                answers={200: BucketState}, errors=("bucket_not_found", *STORED),
            ),
            Route(
                method="DELETE", path=one, handler=self.delete, scopes=DELETE,
                summary="Remove a bucket, its keys and its routers for good.",
                answers={200: BucketDeleted}, errors=unsure,
            ),
            Route(
                method="POST", path=one + "/compact", handler=self.compact, scopes=DELETE,
                body=CompactBody, answers={200: BucketCompacted},
                summary="Remove markers and versions that nobody needs any more.",
                errors=("bucket_not_found", *STORED, *unsure),
            ),
            Route(
                method="POST", path=one + "/snapshots", handler=self.open_snapshot, scopes=READ,
                body=SnapshotBody, answers={201: SnapshotOpened},
                summary="Open a snapshot: reads that ask for it see the bucket as it is now.",
                errors=("bucket_not_found", *STORED),
            ),
            Route(
                method="DELETE", path=one + "/snapshots/:snapshot", handler=self.close_snapshot,
                scopes=READ, answers={200: SnapshotClosed}, summary="Close a snapshot.",
                errors=("bucket_not_found", *STORED),
            ),
        ]  # fmt: skip

    def put(self, call: Call, name: str) -> Answer:
        given = decode(call, _CONFIG)
        if call.key is not None:
            call.key.require_config(given)
        put = self._services.engine.submit_put(topic_of(name), given)

        def answer(_done: None, log: LogTimes | None) -> Response:
            config = put.topic.config
            body = BucketPut(
                bucket=name, topic=put.topic.name, created=put.created, config=config,
                performance=call.performance(log, is_durable=config.durable),
            )  # fmt: skip
            return call.answer(body, 201 if put.created else 200)

        return self._services.finish(call, put.ticket, answer)

    def state(self, call: Call, name: str) -> Answer:
        return self._desk.answer(call, partial(self._state, call, name))

    def _state(self, call: Call, name: str) -> Answer:
        bucket = self._desk.buckets.get(name)
        topic, index = bucket.topic, bucket.index
        readers = self._services.engine.readers(topic)
        body = BucketState(
            bucket=name, topic=topic.name, size=len(index.keys),
            pending_tombstones=len(index.markers), oldest_tombstone_ts=index.oldest_marker_ts(),
            head_seq=topic.head, compacted_seq=bucket.past.compacted_seq, bytes=topic.live_bytes,
            snapshots=len(bucket.snapshots), config=topic.config,
            readers=[
                BucketReader(name=each.name, kind=each.kind, seq=each.seq) for each in readers
            ],
            performance=call.performance(),
        )  # fmt: skip
        return call.answer(body)

    def list(self, call: Call) -> Answer:
        query = Query(call.query)
        prefix, size = BUCKET_TOPIC + query.text("prefix"), page_size(query)
        after = place_of(query.text("cursor"))
        return self._desk.answer(call, partial(self._list, call, prefix, after, size))

    def _list(self, call: Call, prefix: str, after: str, size: int) -> Answer:
        buckets = self._desk.buckets
        prefixes = visible_prefixes(call.key, prefix)
        names = buckets.names(prefixes, after=after, limit=size + 1)
        shown = []
        for name in names[:size]:
            bucket = buckets.get(name)
            shown.append(
                BucketSummary(
                    bucket=name, topic=bucket.topic.name, size=len(bucket.index.keys),
                    pending_tombstones=len(bucket.index.markers), head_seq=bucket.topic.head,
                    bytes=bucket.topic.live_bytes,
                )
            )  # fmt: skip
        more = len(names) > size
        body = BucketPage(
            buckets=shown, next_cursor=cursor_after(names[size - 1]) if more else UNSET,
            performance=call.performance(),
        )  # fmt: skip
        return call.answer(body)

    def delete(self, call: Call, name: str) -> Answer:
        engine, topic = self._services.engine, topic_of(name)
        if call.key is not None and not all(map(call.key.may_name, engine.routers_of(topic))):
            raise Forbidden(
                f"routers lead to or from {name!r} that this API key may not touch; nothing was "
                "deleted", name=name,
            )  # fmt: skip
        deleted, ticket = engine.submit_drop(topic, if_empty=False)

        def answer(_done: None, log: LogTimes | None) -> Response:
            body = BucketDeleted(bucket=name, deleted=deleted, performance=call.performance(log))
            return call.answer(body)

        return self._services.finish(call, ticket, answer)

    # -- compaction --------------------------------------------------------------------------

    def compact(self, call: Call, name: str) -> Answer:
        body = decode(call, _COMPACT)
        if body.max_age_ms is not None and body.max_age_ms > U64_MAX:
            raise InvalidRequest("max_age_ms must be at most 2^64 - 1")
        return self._desk.answer(call, partial(self._compact, call, name, body))

    def _compact(self, call: Call, name: str, body: CompactBody) -> Answer:
        buckets = self._desk.buckets
        bucket = buckets.get(name)
        max_age_ms = bucket.grace_ms if body.max_age_ms is None else body.max_age_ms
        ticket = buckets.compactor.ask(bucket, max_age_ms, body.prefix)

        def ended(ticket: Ticket[Compacted]) -> None:
            if ticket.error is not None:
                call.respond(response_to(ticket.error))
                return
            done = ticket.result
            shown = BucketCompacted(
                removed_tombstones=done.removed_tombstones, removed_versions=done.removed_versions,
                kept=Kept(young=done.young, snapshots=done.snapshots, readers=done.readers),
                pending_tombstones=len(bucket.index.markers), performance=call.performance(),
            )  # fmt: skip
            call.respond(call.answer(shown))

        ticket.callback = ended
        self._services.driver.work_soon()
        return PENDING

    # -- snapshots ---------------------------------------------------------------------------

    def open_snapshot(self, call: Call, name: str) -> Answer:
        body = decode(call, _SNAPSHOT)
        return self._desk.answer(call, partial(self._open_snapshot, call, name, body.ttl_ms))

    def _open_snapshot(self, call: Call, name: str, ttl_ms: int) -> Answer:
        bucket = self._desk.buckets.get(name)
        made = bucket.snapshots.open(bucket.topic.head, ttl_ms)
        body = SnapshotOpened(
            snapshot=made.id, seq=made.seq, expires_ts=made.expires_ts,
            performance=call.performance(),
        )  # fmt: skip
        return call.answer(body, 201)

    def close_snapshot(self, call: Call, name: str, snapshot: str) -> Answer:
        return self._desk.answer(call, partial(self._close_snapshot, call, name, snapshot))

    def _close_snapshot(self, call: Call, name: str, snapshot: str) -> Answer:
        closed = self._desk.buckets.get(name).snapshots.close(snapshot)
        body = SnapshotClosed(snapshot=snapshot, deleted=closed, performance=call.performance())
        return call.answer(body)
