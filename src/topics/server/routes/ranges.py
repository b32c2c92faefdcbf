"""POST …/range: all of a range of seqs, as JSON or Arrow, or counted. GET …/seq-at: of a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import perf_counter

import msgspec

from topics.engine.reading.ranges import Asked, RangePage
from topics.engine.state.tags import parse_match
from topics.loose import Loose
from topics.server.api.auth import READ
from topics.server.api.call import Call
from topics.server.api.decoding import Query, decode, parse_epoch
from topics.server.api.fields import FALSE_TRUE, U64_SCHEMA
from topics.server.api.route import STORED, Parameter, Route
from topics.server.api.shapes import RangeAnswer, RangeBody, SeqAt
from topics.server.http.errors import BadRequest
from topics.server.http.message import Answer, Response
from topics.server.loop.services import Services
from topics.server.routes import arrow
from topics.types import I64_MAX, Payload

# What is rendered on the loop; a larger page costs as much as many writes.
LOOP_BYTES_MAX = 64 * 1024
# Smaller pieces are copied together: every piece costs the loop something.
GATHERED_BYTES = 64 * 1024

_RANGE = Loose(RangeBody)
_ENCODER = msgspec.json.Encoder()
_HEAD = b'{"topic":"%b","records":['
_TAIL = (
    b'],"gaps":%b,"next_from_seq":%d,"complete":%b,"epoch":"%d",'
    b'"performance":{"server_total_ms":%.3f,"records_scanned":%d}}'
)


class RangeRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        # Made when it is asked for.
        self._encoder: arrow.Encoder | None = None

    def routes(self) -> list[Route]:
        ts = Parameter("ts", U64_SCHEMA, "Milliseconds since 1970.", is_required=True)
        return [
            Route(
                method="POST", path="/v0/topics/:topic/range", handler=self.range, scopes=READ,
                summary="Read everything of (from_seq, to_seq]: records and gaps in order.",
                body=RangeBody, answers={200: RangeAnswer},
                others={200: (arrow.CONTENT_TYPE, "Done.")},
                errors=("topic_not_found", *STORED),
            ),
            Route(
                method="GET", path="/v0/topics/:topic/seq-at", handler=self.seq_at, scopes=READ,
                summary="The first live record at or after a time; null past the head.",
                parameters=(ts,), answers={200: SeqAt},
                errors=("topic_not_found", *STORED),
            ),
        ]  # fmt: skip

    def range(self, call: Call, name: str) -> Answer:
        body = decode(call, _RANGE)
        delivery, engine = self._services.delivery, self._services.engine
        if delivery.pressure.is_refusing:
            delivery.refuse("read", name)
        if body.format == "arrow" and max(body.from_seq, body.to_seq or 0) >= I64_MAX:
            raise BadRequest("seqs of the arrow format are below 2^63 - 1")
        asked = Asked(
            from_seq=body.from_seq, to_seq=body.to_seq, epoch=parse_epoch(body.epoch),
            records_max=body.max_records, bytes_max=body.max_bytes,
            match=None if body.match is None else parse_match(body.match),
            keeps_records=body.format != "none",
        )  # fmt: skip
        answer = partial(self._answer, call, body.format)
        return self._services.reading_slices(call, lambda: engine.range_steps(name, asked), answer)

    def _answer(self, call: Call, kind: str, page: RangePage) -> Answer:
        if kind == "arrow":
            if self._encoder is None:
                return self._services.beside(call, arrow.Encoder, partial(self._with, call, page))
            return self._services.in_slices(call, partial(self._encoder.steps, page), columns)
        if kind == "json" and page.content_bytes > LOOP_BYTES_MAX:
            return self._services.rendering(call, partial(render, call, page))
        return render(call, page) if kind == "json" else counted(call, page)

    def _with(self, call: Call, page: RangePage, encoder: arrow.Encoder) -> Answer:
        self._encoder = encoder
        return self._answer(call, "arrow", page)

    def seq_at(self, call: Call, name: str) -> Answer:
        ts = Query(call.query).number("ts")
        if ts is None:
            raise BadRequest("ts is needed: milliseconds since 1970", parameter="ts")
        engine = self._services.engine
        seq, at = engine.seq_at(name, ts) or (None, None)
        return call.answer(
            SeqAt(
                topic=name, seq=seq, ts=at, from_seq=engine.place_at(name, ts),
                epoch=str(engine.epoch_of(name)), performance=call.performance(),
            )
        )  # fmt: skip


def columns(pieces: tuple[Payload, ...]) -> Response:
    return Response(b"", 200, arrow.CONTENT_TYPE, pieces=pieces)


def counted(call: Call, page: RangePage) -> Response:
    """What a range comes to, without its records."""
    return call.answer(
        RangeAnswer(
            topic=page.topic, count=page.count, bytes=page.content_bytes, gaps=page.gaps,
            next_from_seq=page.next_from_seq, complete=page.complete, epoch=str(page.epoch),
            performance=call.performance(),
        )
    )  # fmt: skip


def render(call: Call, page: RangePage) -> Response:
    """The records' own bytes, where they are many uncopied, between two ends."""
    pieces = page.pieces
    if pieces:
        # After the last record there is no comma.
        pieces[-1] = pieces[-1][:-1]
    opening = _HEAD % page.topic.encode()
    closing = _TAIL % (
        _ENCODER.encode(page.gaps), page.next_from_seq, FALSE_TRUE[page.complete], page.epoch,
        (perf_counter() - call.began_s) * 1000, page.count,
    )  # fmt: skip
    gathered = tuple(_gathered([opening, *pieces, closing]))
    return Response(b"", pieces=gathered) if len(gathered) > 1 else Response(bytes(gathered[0]))


def _gathered(pieces: list[Payload]) -> Iterator[Payload]:
    """The same bytes, small pieces joined; no join is so long that everybody waits for it."""
    small: list[Payload] = []
    size = 0
    for piece in pieces:
        if len(piece) < GATHERED_BYTES:
            small.append(piece)
            size += len(piece)
        if small and (size >= GATHERED_BYTES or len(piece) >= GATHERED_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if len(piece) >= GATHERED_BYTES:
            yield piece
    if small:
        yield b"".join(small)
