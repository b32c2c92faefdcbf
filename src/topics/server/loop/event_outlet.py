"""An open stream of server-sent events, whatever it carries: how it begins, idles, and ends.

It is an Outlet of Delivery and a Visitor from `begin` until it is closed, and leaves both, and its
key's count of streams, exactly once: when its connection says that it is closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from topics.server.api import sse_frames
from topics.server.api.auth import Key
from topics.server.api.sse_frames import ADVICE_S, DENIED_CODE, DRAIN_CODE
from topics.server.http.event_stream import EventStream
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, Sight


class EventOutlet(ABC):
    """What every stream of events does; what flows in it is for the classes below."""

    __slots__ = (
        "_advised_s", "_delivery", "_key", "_services", "_since_ts", "_stream", "_visit",
        "heartbeat_s", "sent_s",
    )  # fmt: skip

    kind: Kind

    def __init__(
        self, services: Services, stream: EventStream, key: Key | None, heartbeat_s: float
    ) -> None:
        self._services = services
        self._delivery = services.delivery
        self._stream = stream
        self._key = key
        self._since_ts = services.clock.wall_ms()
        self._visit = 0
        self._advised_s = 0.0
        self.heartbeat_s = heartbeat_s
        self.sent_s = services.delivery.now_s

    def begin(self) -> None:
        stream = self._stream
        stream.on_close = self._closed
        stream.on_writable = self._writable
        stream.on_drain = self._drain
        # The first heartbeat shows a reader, and every proxy on the way, that the stream is open.
        stream.send(sse_frames.RETRY + sse_frames.heartbeat(self._since_ts))
        self._visit = self._services.visitors.enter(self)
        self._delivery.keep_alive(self)

    # -- for the classes below -------------------------------------------------------------------

    @abstractmethod
    def _names(self) -> list[str]:
        """The topics that it is about."""

    @abstractmethod
    def _lag(self) -> int:
        """How much there is that it has not sent."""

    @abstractmethod
    def resume(self, *, is_degraded: bool) -> None: ...

    @abstractmethod
    def cut_off(self) -> None: ...

    def _advise(self, code: int, text: str, **more: object) -> None:
        """Tells of trouble that passes, once in a while and only to who reads."""
        now_s = self._delivery.now_s
        if now_s - self._advised_s >= ADVICE_S and self._stream.is_writable:
            self._advised_s = now_s
            self._stream.send(sse_frames.error_event(code, text, **more))

    def _end(self, code: int, text: str) -> None:
        self._stream.send(sse_frames.error_event(code, text, topics=self._names()))
        self._stream.close()

    def _closed(self) -> None:
        self._services.visitors.leave(self._visit)
        self._delivery.forget(self)
        self._delivery.leave(self._key)

    # -- topics.server.loop.visitors.Visitor -----------------------------------------------------

    @property
    def key(self) -> Key | None:
        return self._key

    def revoke(self) -> None:
        self._end(DENIED_CODE, "unauthorized: this API key is not known any more")

    def sight(self) -> Sight:
        stream = self._stream
        return Sight(
            self._names(), self._key, stream.peer, self._since_ts, self._lag(),
            stream.buffered_bytes,
        )  # fmt: skip

    # -- topics.server.loop.delivery.Outlet ------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        if self._stream.is_writable:
            return True
        self._delivery.note_slow(self)
        return False

    @property
    def is_open(self) -> bool:
        return not self._stream.is_closed

    def beat(self, wall_ms: int) -> None:
        self._stream.send(sse_frames.heartbeat(wall_ms))

    # -- the connection --------------------------------------------------------------------------

    def _writable(self) -> None:
        self._delivery.resumed(self)

    def _drain(self) -> None:
        text = "shutting_down: the server is going away; reconnect"
        self._stream.send(sse_frames.error_event(DRAIN_CODE, text, retry_after_ms=2000))
        self._stream.close()
