"""POST /v0/topics/:topic/diff: what is after a cursor, now or within `wait_ms`.

Most reads are answered within the call, from bytes that were rendered when they were written. One
that has to wait, for the cold store or for new records, becomes a Reading.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter

import msgspec

from topics.engine.engine import Engine
from topics.engine.state.segments import ColdMiss
from topics.errors import Unauthorized
from topics.loose import Loose
from topics.server.api.auth import READ, Key
from topics.server.api.call import Call
from topics.server.api.decoding import decode, parse_epoch
from topics.server.api.fields import FALSE_TRUE
from topics.server.api.route import STORED, Route
from topics.server.api.shapes import DiffBody, DiffPage
from topics.server.http.message import COPY_BYTES_MAX, PENDING, Answer, Response
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, Sight
from topics.types import Page

WAIT_MS_MAX = 30_000
# Pages of nothing but the reader's own records that one turn of the loop steps over.
OWN_PAGES_MAX = 4

_DIFF = Loose(DiffBody)
_ENCODER = msgspec.json.Encoder()
_HEAD = b'{"topic":"%b","records":['
_TAIL = (
    b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,'
    b'"caught_up":%b,"tombstone":%b,"lag":%d,"epoch":"%d","performance":'
    b'{"server_total_ms":%.3f,"records_scanned":%d,"throttle_wait_ms":%.3f}}'
)


class ReadRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._driver = services.driver
        self._pressure = services.delivery.pressure

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST", path="/v0/topics/:topic/diff", handler=self.diff, scopes=READ,
                summary="Read the records after a cursor, with a tombstone for what was lost.",
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
            page = read_page(self._driver.engine, name, body, body.from_seq, epoch)
        except ColdMiss as miss:
            reading = Reading(self._services, call, name, body, epoch)
            return self._services.fetch(call, miss, reading.look)
        if page.count or not body.wait_ms or page.tombstone is not None:
            return render(call, page)
        return Reading(self._services, call, name, body, epoch).look_at(page)


def read_page(engine: Engine, name: str, body: DiffBody, from_seq: int, epoch: int | None) -> Page:
    """One page of what a reader asked for. Raises ColdMiss."""
    return engine.diff_now(
        name, from_seq=from_seq, limit=body.limit, node=() if body.node is None else body.node,
        include_tags=body.include_tags, include_meta=body.include_meta, epoch=epoch,
        bytes_max=body.max_batch_bytes,
    )  # fmt: skip


def render(call: Call, page: Page) -> Response:
    """The answer of a read: the records' own bytes, uncopied, between two ends."""
    cursor, head = page.next_from_seq, page.head_seq
    tombstone = b"null" if page.tombstone is None else _ENCODER.encode(page.tombstone)
    opening = _HEAD % page.topic.encode()
    closing = _TAIL % (
        cursor, head, page.earliest_seq, FALSE_TRUE[cursor == head], tombstone, head - cursor,
        page.epoch, (perf_counter() - call.began_s) * 1000, page.records_scanned, call.parked_ms,
    )  # fmt: skip
    if not page.pieces:
        return Response(opening + closing)
    *pieces, last = page.pieces
    # After the last record there is no comma.
    pieces.append(last[:-1])
    if sum(map(len, pieces)) <= COPY_BYTES_MAX:
        return Response(b"".join((opening, *pieces, closing)))
    return Response(opening, pieces=(*pieces, closing))


class Reading:
    """A read that takes longer than its call: it waits for records, or for the cold store."""

    __slots__ = (
        "_body", "_call", "_epoch", "_from_seq", "_is_over", "_name", "_services", "_stop_s",
        "_timer", "_visit",
    )  # fmt: skip

    # A call of its own.
    calls = 1
    kind: Kind = "long_poll"

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
        self._is_over = not body.wait_ms
        self._stop_s = services.loop.time() + min(body.wait_ms, WAIT_MS_MAX) / 1000
        # Runs only while it waits for records.
        self._timer: asyncio.TimerHandle | None = None
        self._visit = 0

    def look(self) -> Answer:
        """Reads from where it stands, and answers or waits. Raises ColdMiss."""
        return self.look_at(self._read())

    def look_at(self, page: Page) -> Answer:
        """Answers with the page, or waits for a better one."""
        services = self._services
        is_over = self._is_over or services.is_draining or services.loop.time() >= self._stop_s
        for _ in range(OWN_PAGES_MAX):
            if page.count or page.tombstone is not None or page.caught_up or is_over:
                break
            # Only records of the reader's own: they are passed over, as in any read.
            self._from_seq = page.next_from_seq
            page = self._read()
        if page.count or page.tombstone is not None or is_over or not page.caught_up:
            return render(self._call, page)
        self._from_seq = page.next_from_seq
        # From here on another instance of the topic is news.
        self._epoch = page.epoch
        services.waiters.add(self._name, self)
        self._visit = services.visitors.enter(self)
        self._timer = services.loop.call_at(self._stop_s, self.end)
        self._call.on_abandoned = self._leave
        return PENDING

    def _read(self) -> Page:
        engine = self._services.engine
        return read_page(engine, self._name, self._body, self._from_seq, self._epoch)

    # -- topics.server.loop.longpoll.Waiter ------------------------------------------------------

    def wake(self) -> None:
        """Reads again."""
        self._leave()
        self._services.go_on(self._call, partial(self._services.reading, self._call, self.look))

    def end(self) -> None:
        """The time is over: answers with what is there now."""
        self._is_over = True
        self.wake()

    # -- topics.server.loop.visitors.Visitor -----------------------------------------------------

    @property
    def key(self) -> Key | None:
        return self._call.key

    def revoke(self) -> None:
        self._leave()
        self._call.fail(Unauthorized("this API key is not known any more"))

    def sight(self) -> Sight:
        call, engine = self._call, self._services.engine
        lag = engine.lag_of(self._name, self._from_seq, self._epoch or 0)
        since_ts = self._services.clock.wall_ms() - int(call.elapsed_ms())
        return Sight([self._name], call.key, call.connection.peer, since_ts, lag, 0)

    def _leave(self) -> None:
        """Waits no longer."""
        self._services.waiters.discard(self._name, self)
        self._services.visitors.leave(self._visit)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
