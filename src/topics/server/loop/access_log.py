"""What the log says of requests and of those who send them.

Denied keys and consumers that were cut are told always, with their peer; each kind at most a few
times a second, with how many there were besides. Every request is told where TOPICS_ACCESS_LOG
says so, and slow ones where TOPICS_SLOW_REQUEST_MS does: without both, calls are of a type that
knows nothing of it. Neither a key nor a query, which may hold one, is ever told.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

from topics.errors import Forbidden, TopicsError, Unauthorized
from topics.server.api.call import Call
from topics.server.api.meters import Meter
from topics.server.config import ServerOptions
from topics.server.loop.visitors import Visitor

LOG = logging.getLogger("topics.server")
ACCESS = logging.getLogger("topics.access")
# Lines of one kind that may follow each other within a second.
LINES_PER_S = 10


class AccessLog:
    def __init__(self, options: ServerOptions) -> None:
        self._tells_all = options.access_log
        self._slow_ms = options.slow_request_ms
        self._denied = Rate()
        self._cut = Rate()

    @property
    def is_on(self) -> bool:
        """Whether answers are looked at one by one."""
        return self._tells_all or self._slow_ms > 0

    def answered(self, call: Call, status: int, took_ms: float) -> None:
        """A call was answered, or its client has gone."""
        is_slow = 0 < self._slow_ms <= took_ms
        if is_slow or self._tells_all:
            words = "slow request" if is_slow else "request"
            level = logging.WARNING if is_slow else logging.INFO
            more = {"took_ms": round(took_ms, 3), "parked_ms": round(call.parked_ms, 3)}
            ACCESS.log(level, words, extra=_about(call, status, path=call.path, **more))

    def refused(self, call: Call, route: str, error: BaseException, status: int) -> None:
        """A call was answered with an error, which says whether its key was the reason."""
        code = error.code if isinstance(error, TopicsError) else "internal"
        if isinstance(error, Unauthorized | Forbidden):
            if self._denied.may():
                more = {"route": route, "code": code, "besides": self._denied.take_besides()}
                LOG.warning("denied: %s", error, extra=_about(call, status, **more))
        elif LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("refused", extra=_about(call, status, route=route, code=code))

    def cut(self, visitor: Visitor) -> None:
        """A consumer is cut because it took nothing for too long."""
        if self._cut.may():
            about = _of(visitor) | {"besides": self._cut.take_besides()}
            LOG.warning("a consumer that took nothing for too long is cut", extra=about)


class Rate:
    """Lets a few lines of one kind through each second, and counts the others."""

    __slots__ = ("_besides", "_left", "_since_s")

    def __init__(self) -> None:
        self._since_s = -1.0
        self._left = 0
        self._besides = 0

    def may(self) -> bool:
        now_s = monotonic()
        if now_s - self._since_s >= 1.0:
            self._since_s, self._left = now_s, LINES_PER_S
        if self._left:
            self._left -= 1
            return True
        self._besides += 1
        return False

    def take_besides(self) -> int:
        """How many were left out since somebody last asked."""
        besides, self._besides = self._besides, 0
        return besides


class LoggedMeter(Meter):
    """A meter that also tells."""

    __slots__ = ("log",)

    def __init__(self, method: str, path: str, log: AccessLog) -> None:
        super().__init__(method, path)
        self.log = log


class LoggedCall(Call):
    """A call whose answer is told."""

    def count(self, status: int) -> None:
        meter = self.meter
        super().count(status)
        if isinstance(meter, LoggedMeter):
            meter.log.answered(self, status, self.elapsed_ms())

    def respond_json(self, body: bytes) -> None:
        super().respond_json(body)
        if isinstance(self.meter, LoggedMeter):
            self.meter.log.answered(self, 200, self.elapsed_ms())


def _of(visitor: Visitor) -> dict[str, Any]:
    sight = visitor.sight()
    return {
        "kind": visitor.kind, "topics": sight.topics, "key": sight.key and sight.key.number,
        "peer": sight.peer, "lag": sight.lag, "buffered_bytes": sight.buffered_bytes,
    }  # fmt: skip


def _about(call: Call, status: int, **more: Any) -> dict[str, Any]:
    number = None if call.key is None else call.key.number
    about = {"method": call.method, "status": status, "key": number, "peer": call.connection.peer}
    return about | more
