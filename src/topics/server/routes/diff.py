"""POST /v0/topics/:topic/diff: what is behind a cursor, now or within `wait_ms`.

Most reads are answered within the call, from bytes that were rendered when they were written. One
that has to wait, for the cold store or for new records, becomes a Reading.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter

import msgspec

from topics.engine.state.segments import ColdMiss
from topics.server.api.auth import READ
from topics.server.api.call import Call
from topics.server.api.decoding import decode, parse_epoch
from topics.server.api.route import STORED, Route
from topics.server.api.shapes import DiffBody, DiffPage
from topics.server.http.message import COPY_BYTES_MAX, PENDING, Answer, Response
from topics.server.loop.services import Services
from topics.types import Page

WAIT_MS_MAX = 30_000
# Pages of nothing but the reader's own records that one turn of the loop steps over.
OWN_PAGES_MAX = 4

_DIFF = msgspec.json.Decoder(DiffBody)
_ENCODER = msgspec.json.Encoder()
_HEAD = b'{"topic":"%b","records":['
_TAIL = (
    b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,'
    b'"caught_up":%b,"tombstone":%b,"lag":%d,"epoch":"%d","performance":'
    b'{"server_total_ms":%.3f,"records_scanned":%d,"throttle_wait_ms":%.3f}}'
)
_FALSE_TRUE = (b"false", b"true")


class ReadRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._driver = services.driver
        self._pressure = services.delivery.pressure

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST", path="/v0/topics/:topic/diff", handler=self.diff, scopes=READ,
                summary="Read the records behind a cursor, with a tombstone for what was lost.",
                body=DiffBody, answers={200: DiffPage},
                errors=("topic_not_found", *STORED),
            )
        ]  # fmt: skip

    def diff(self, call: Call, name: str) -> Answer:
        body = decode(call, _DIFF)
        epoch = parse_epoch(body.epoch)
        if self._pressure.is_parking:
            if self._pressure.is_refusing:
                self._services.delivery.refuse("read", name)
            resume = partial(self._read, call, name, body, epoch)
            return self._services.parking.park(call, name, "read", resume, may_refuse=True)
        return self._read(call, name, body, epoch)

    def _read(self, call: Call, name: str, body: DiffBody, epoch: int | None) -> Answer:
        try:
            page = self._driver.engine.diff_now(
                name, from_seq=body.from_seq, limit=body.limit,
                node=() if body.node is None else body.node, include_tags=body.include_tags,
                include_meta=body.include_meta, epoch=epoch, bytes_max=body.max_batch_bytes,
            )  # fmt: skip
        except ColdMiss as miss:
            Reading(self._services, call, name, body, epoch).fetch(miss)
            return PENDING
        if page.count or not body.wait_ms or page.tombstone is not None:
            return render(call, page)
        Reading(self._services, call, name, body, epoch).look_at(page)
        return PENDING


def render(call: Call, page: Page) -> Response:
    """The answer of a read: the records' own bytes, uncopied, between two ends."""
    cursor, head = page.next_from_seq, page.head_seq
    tombstone = b"null" if page.tombstone is None else _ENCODER.encode(page.tombstone)
    opening = _HEAD % page.topic.encode()
    closing = _TAIL % (
        cursor, head, page.earliest_seq, _FALSE_TRUE[cursor == head], tombstone, head - cursor,
        page.epoch, (perf_counter() - call.began_s) * 1000, page.records_scanned, call.parked_ms,
    )  # fmt: skip
    if not page.pieces:
        return Response(opening + closing)
    *pieces, last = page.pieces
    # Behind the last record there is no comma.
    pieces.append(last[:-1])
    if sum(map(len, pieces)) <= COPY_BYTES_MAX:
        return Response(b"".join((opening, *pieces, closing)))
    return Response(opening, pieces=(*pieces, closing))


class Reading:
    """A read that takes longer than its call. Ends once: answered, or given up with its client."""

    __slots__ = (
        "_body",
        "_call",
        "_epoch",
        "_from_seq",
        "_is_done",
        "_is_fetching",
        "_is_over",
        "_name",
        "_services",
        "_timer",
    )  # fmt: skip

    # A call of its own.
    calls = 1

    def __init__(
        self, services: Services, call: Call, name: str, body: DiffBody, epoch: int | None
    ) -> None:
        self._services = services
        self._call = call
        self._name = name
        self._body = body
        self._epoch = epoch
        self._from_seq = body.from_seq
        # No more waiting: the next page is the answer, whatever is on it.
        self._is_over = not body.wait_ms or services.is_draining
        self._is_fetching = False
        self._is_done = False
        self._timer: asyncio.TimerHandle | None = None
        if not self._is_over:
            wait_s = min(body.wait_ms, WAIT_MS_MAX) / 1000
            self._timer = services.loop.call_later(wait_s, self.end)
        call.on_abandoned = self._cancel

    def fetch(self, miss: ColdMiss) -> None:
        """Goes on when the cold store has answered."""
        self._is_fetching = True
        self._services.driver.fetch(miss, self._fetched)

    def look_at(self, page: Page) -> None:
        """Answers with the page, or waits for a better one."""
        for _ in range(OWN_PAGES_MAX):
            if page.count or page.tombstone is not None or page.caught_up or self._is_over:
                break
            # Only records of the reader's own: they are passed over, as in any read.
            self._from_seq = page.next_from_seq
            found = self._read()
            if found is None:
                return
            page = found
        if page.count or page.tombstone is not None or self._is_over or not page.caught_up:
            self._cancel()
            self._call.respond(render(self._call, page))
            return
        self._from_seq = page.next_from_seq
        # From here on another instance of the topic is news.
        self._epoch = page.epoch
        self._services.waiters.add(self._name, self)

    def wake(self) -> None:
        """Reads again."""
        if self._is_done or self._is_fetching:
            return
        page = self._read()
        if page is not None:
            self.look_at(page)

    def end(self) -> None:
        """The time is over: answers with what is there now."""
        self._services.waiters.discard(self._name, self)
        self._is_over = True
        self.wake()

    def _read(self) -> Page | None:
        """A page from where this read stands; None when it has to be fetched or has failed."""
        body = self._body
        try:
            return self._services.engine.diff_now(
                self._name, from_seq=self._from_seq, limit=body.limit,
                node=() if body.node is None else body.node, include_tags=body.include_tags,
                include_meta=body.include_meta, epoch=self._epoch, bytes_max=body.max_batch_bytes,
            )  # fmt: skip
        except ColdMiss as miss:
            self.fetch(miss)
        except Exception as error:
            self._cancel()
            self._call.fail(error)
        return None

    def _fetched(self, error: BaseException | None) -> None:
        self._is_fetching = False
        if self._is_done:
            return
        if error is not None:
            self._cancel()
            self._call.fail(error)
            return
        self.wake()

    def _cancel(self) -> None:
        """Nothing more is waited for."""
        self._is_done = True
        self._services.waiters.discard(self._name, self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
