"""One request on its way through a handler: who asked, since when, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from urllib.parse import quote

import msgspec

from topics.engine.serving import LogTimes
from topics.server.api.auth import Key
from topics.server.api.meters import GONE, Meter
from topics.server.api.shapes import Performance
from topics.server.http.errors import response_to
from topics.server.http.message import Request, Response

IGNORED_FIELDS = "Topics-Ignored-Fields"

_ENCODER = msgspec.json.Encoder()
# What may stand in a header's list as it is, besides letters and digits.
_TOKEN_CHARS = "!#$&'*+-.^_`|~"


class Call(Request):
    """A request as handlers get it, with its key. A pending one holds a slot of that key.

    A handler that returns PENDING may set `on_abandoned`, which is called when the client goes
    away before the answer.
    """

    key: Key | None = None
    began_s: float = 0.0
    # What counts the answer; None once it was counted, or while nobody has taken the call.
    meter: Meter | None = None
    # How long the scheduler kept it waiting.
    parked_ms: float = 0.0
    holds_slot: bool = False
    # Whether the answer of a write has the seqs.
    returns_seqs: bool = True

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self.connection.is_gone

    def hold(self) -> None:
        """The answer comes later: until then, or until the client has gone, a slot is taken."""
        # It may have been answered before its handler returned.
        if self.key is not None and self.output is None and not self.holds_slot:
            self.key.inflight += 1
            self.holds_slot = True

    def abandon(self) -> None:
        if self.holds_slot:
            self._release()
        if self.output is None:
            self.count(GONE)
        super().abandon()

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        """Like setting `on_abandoned`, for a handler that has returned; at once when it is late."""
        self.on_abandoned = callback
        if self.is_gone:
            self.abandon()

    def mind_leaving(self) -> None:
        """Is given up when its client goes, who is not waited for then: `Exchange.eof_received`."""
        if self.on_abandoned is None:
            self.on_abandoned = self.drop_callback

    def drop_callback(self) -> None:
        """Nothing is left to abandon: lets go of what holds the call, and its answer with it."""
        self.on_abandoned = None

    def count(self, status: int) -> None:
        """Counts the answer, the first time."""
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.note(status, (perf_counter() - self.began_s) * 1000)

    def respond(self, response: Response) -> None:
        self.drop_callback()
        if self.holds_slot:
            self._release()
        self.count(response.status)
        self.connection.deliver(self, response)

    def respond_json(self, body: bytes) -> None:
        """`respond` with 200 and JSON, as most are; `count_together` counts them."""
        self.on_abandoned = None
        if self.holds_slot and self.key is not None:
            self.holds_slot = False
            self.key.inflight -= 1
        self.connection.deliver_json(self, body)

    def fail(self, error: BaseException) -> None:
        self.respond(response_to(error))

    def require(self, scopes: int) -> None:
        """Raises Forbidden when the caller has a key that lacks one of these scopes."""
        if self.key is not None:
            self.key.require_scopes(scopes)

    def ignored(self, names: list[str]) -> None:
        """Lets the answer name fields of the body that nobody looks at."""
        told = ", ".join(quote(name, safe=_TOKEN_CHARS) for name in names)
        self.extra = (*self.extra, (IGNORED_FIELDS, told))

    def elapsed_ms(self) -> float:
        return (perf_counter() - self.began_s) * 1000

    def performance(self, log: LogTimes | None = None, *, is_durable: bool = True) -> Performance:
        """The time this call took until now; with `log`, what the log took of it.

        Syncs are counted for durable topics only, as the contract has it.
        """
        spent = Performance(server_total_ms=round(self.elapsed_ms(), 3))
        if log is not None:
            spent.wal_append_ms = round(log.write_s * 1000, 3)
            if is_durable:
                spent.fsync_ms = round(log.sync_s * 1000, 3)
        if self.parked_ms:
            spent.throttle_wait_ms = round(self.parked_ms, 3)
        return spent

    def answer(self, body: msgspec.Struct, status: int = 200) -> Response:
        return Response(_ENCODER.encode(body), status)

    def _release(self) -> None:
        assert self.key is not None
        self.holds_slot = False
        self.key.inflight -= 1


def count_together(calls: Sequence[Call], now_s: float) -> None:
    """Counts calls of one route that are answered at once with `respond_json`, before they are."""
    first = calls[0]
    meter = first.meter
    if meter is None:
        return
    if len(calls) == 1:
        meter.note(200, (now_s - first.began_s) * 1000)
    else:
        meter.note_all([call.began_s for call in calls], now_s)
