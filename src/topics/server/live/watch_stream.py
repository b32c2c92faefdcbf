"""One open stream of server-sent events: of a session, or of one topic without a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topics.engine.reading.watch import StreamFrame, Subscription, WatchCursor
from topics.errors import TopicsError
from topics.server.api import sse_frames
from topics.server.api.auth import Key
from topics.server.api.sse_frames import ADVICE_S, DRAIN_CODE, SLOW_CODE
from topics.server.http.errors import LOG
from topics.server.http.event_stream import EventStream, chunk_of
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, Sight, lag_of


class Watched(Protocol):
    """What a stream carries: who asked for it, what it is told, and who learns of its end."""

    @property
    def key(self) -> Key | None: ...

    @property
    def subscription(self) -> Subscription: ...

    @property
    def heartbeat_s(self) -> float: ...

    def closed(self, stream: WatchStream) -> None: ...


class WatchStream:
    """One open stream of events of topics."""

    __slots__ = (
        "_advised_s", "_delivery", "_key", "_services", "_since_ts", "_stream", "_visit",
        "_watched", "sent_s",
    )  # fmt: skip

    kind: Kind = "stream"

    def __init__(self, services: Services, watched: Watched, stream: EventStream) -> None:
        self._services = services
        self._since_ts = services.clock.wall_ms()
        self._visit = 0
        self._delivery = services.delivery
        self._watched = watched
        self._key = watched.key
        self._stream = stream
        self._advised_s = 0.0
        self.sent_s = services.delivery.now_s

    def begin(self) -> None:
        stream, delivery = self._stream, self._delivery
        stream.on_close = self._closed
        stream.on_writable = self._writable
        stream.on_drain = self._drain
        # The first heartbeat shows a reader, and every proxy on the way, that the stream is open.
        stream.send(sse_frames.RETRY + sse_frames.heartbeat(self._since_ts))
        self._visit = self._services.visitors.enter(self)
        delivery.keep_alive(self)
        delivery.feeds.attach(self._watched.subscription, self)

    def hand_over(self) -> None:
        """Another stream has come in its place: this one ends, the cursors stay."""
        self._stream.close()

    # -- topics.engine.reading.watch.Sink --------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        if self._stream.is_writable:
            return True
        self._delivery.note_slow(self)
        return False

    def deliver(self, cursor: WatchCursor, frames: Sequence[StreamFrame]) -> int:
        stream = self._stream
        self.sent_s = self._delivery.now_s
        if len(frames) > 1 or not stream.is_chunked:
            data = sse_frames.events(cursor, frames)
            stream.send(data)
            return len(data)
        frame = frames[0]
        data = sse_frames.event(cursor, frame)
        if data is not frame.sse:
            stream.send(data)
        else:
            # Most readers are sent just what others are.
            frame.chunk = frame.chunk or chunk_of(data)
            stream.send_chunk(frame.chunk)
        return len(data)

    def paced(self, name: str, retry_after_ms: int) -> None:
        now_s = self._delivery.now_s
        if now_s - self._advised_s < ADVICE_S or not self._stream.is_writable:
            return
        self._advised_s = now_s
        self._stream.send(
            sse_frames.error_event(
                429, "watch throttled under CPU pressure",
                retry_after_ms=retry_after_ms, topics=[name],
            )
        )  # fmt: skip

    def fail(self, cursor: WatchCursor, error: Exception, *, is_final: bool) -> None:
        LOG.error("topic %s can not be read", cursor.name, exc_info=error)
        status = 500 if is_final else 503
        code = error.code if isinstance(error, TopicsError) else "internal"
        text = "the topic's stored records can not be read" + ("" if is_final else " now")
        self._stream.send(sse_frames.error_event(status, f"{code}: {text}", topics=[cursor.name]))
        if is_final:
            self._stream.close()

    # -- topics.server.loop.visitors.Visitor -----------------------------------------------------

    def sight(self) -> Sight:
        cursors, stream = self._watched.subscription.cursors, self._stream
        return Sight(
            [cursor.name for cursor in cursors], self._key, stream.peer, self._since_ts,
            lag_of(self._services.engine, cursors), stream.buffered_bytes,
        )  # fmt: skip

    # -- topics.server.loop.delivery.Outlet ------------------------------------------------------

    @property
    def heartbeat_s(self) -> float:
        return self._watched.heartbeat_s

    @property
    def is_open(self) -> bool:
        return not self._stream.is_closed

    def beat(self, wall_ms: int) -> None:
        self._stream.send(sse_frames.heartbeat(wall_ms))

    def resume(self, *, is_degraded: bool) -> None:
        subscription = self._watched.subscription
        if is_degraded:
            # What it lost meanwhile is told as it would be had it just connected.
            for cursor in subscription.cursors:
                cursor.is_fresh = True
        self._delivery.feeds.resume(subscription)

    def cut_off(self) -> None:
        self._stream.send(
            sse_frames.error_event(
                SLOW_CODE, "this stream was not read for too long; reconnect to go on from its id",
                topics=[cursor.name for cursor in self._watched.subscription.cursors],
            )
        )  # fmt: skip
        self._stream.close()

    # -- the stream ----------------------------------------------------------------------------

    def _writable(self) -> None:
        self._delivery.resumed(self)

    def _drain(self) -> None:
        self._stream.send(
            sse_frames.error_event(
                DRAIN_CODE, "shutting_down: the server is going away; reconnect",
                retry_after_ms=2000,
            )
        )  # fmt: skip
        self._stream.close()

    def _closed(self) -> None:
        delivery, watched = self._delivery, self._watched
        self._services.visitors.leave(self._visit)
        delivery.forget(self)
        if watched.subscription.sink is self:
            delivery.feeds.detach(watched.subscription)
        delivery.leave(self._key)
        watched.closed(self)
