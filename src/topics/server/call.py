"""One request on its way through a handler: who asked, since when, and what it holds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import msgspec

from topics.engine.commit import Committer
from topics.server.auth import Key
from topics.server.errors import response_to
from topics.server.message import Request, Response
from topics.server.shapes import Performance

_ENCODER = msgspec.json.Encoder()


class Call:
    """A request with its key. `respond` answers one that is pending, and lets go of its slot.

    `on_abandoned` is called when the client goes away before the answer; a handler that returns
    PENDING may set it.
    """

    __slots__ = ("_holds", "began_s", "key", "on_abandoned", "parked_ms", "request")

    def __init__(self, request: Request, key: Key | None) -> None:
        self.request = request
        self.key = key
        self.began_s = perf_counter()
        self.on_abandoned: Callable[[], None] | None = None
        # How long it was kept waiting behind the scheduler.
        self.parked_ms = 0.0
        self._holds = False

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self.request.connection.is_gone

    def hold(self) -> None:
        """The answer comes later: until then, or until the client has gone, a slot is taken."""
        if self.key is not None and not self._holds:
            self.key.inflight += 1
            self._holds = True
        if self._holds or self.on_abandoned is not None:
            self.request.on_abandoned = self._abandon

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        """Like setting `on_abandoned`, for a handler that has returned; at once when it is late."""
        self.on_abandoned = callback
        self.request.on_abandoned = self._abandon
        if self.is_gone:
            self._abandon()

    def respond(self, response: Response) -> None:
        if self._holds:
            self._release()
        request = self.request
        request.connection.deliver(request, response)

    def fail(self, error: BaseException) -> None:
        self.respond(response_to(error))

    def require(self, scopes: int) -> None:
        """Raises Forbidden when the caller has a key that lacks one of these scopes."""
        if self.key is not None:
            self.key.require_scopes(scopes)

    def elapsed_ms(self) -> float:
        return (perf_counter() - self.began_s) * 1000

    def performance(self, log: Committer | None = None, *, is_durable: bool = True) -> Performance:
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

    def _abandon(self) -> None:
        self._release()
        callback, self.on_abandoned = self.on_abandoned, None
        if callback is not None:
            callback()

    def _release(self) -> None:
        if self._holds and self.key is not None:
            self._holds = False
            self.key.inflight -= 1
