"""One open stream of server-sent events: of a session, or of one topic without a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topics.engine.reading.watch import DELETED, StreamFrame, Subscription, WatchCursor
from topics.errors import TopicsError
from topics.server.api import sse_frames
from topics.server.api.auth import Key
from topics.server.api.sse_frames import SLOW_CODE
from topics.server.http.errors import LOG
from topics.server.http.event_stream import EventStream, chunk_of
from topics.server.loop.event_outlet import EventOutlet
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, lag_of


class Watched(Protocol):
    """What a stream carries: who asked for it, what it is told, and who learns of its end."""

    @property
    def key(self) -> Key | None: ...

    @property
    def subscription(self) -> Subscription: ...

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def ends_with_topic(self) -> bool:
        """Whether there is nothing more to tell when a topic was deleted."""
        ...

    def closed(self, stream: WatchStream) -> None: ...


class WatchStream(EventOutlet):
    """One open stream of events of topics."""

    __slots__ = ("_watched",)

    kind: Kind = "stream"

    def __init__(self, services: Services, watched: Watched, stream: EventStream) -> None:
        super().__init__(services, stream, watched.key, watched.heartbeat_s)
        self._watched = watched

    def begin(self) -> None:
        super().begin()
        self._delivery.feeds.attach(self._watched.subscription, self)

    def hand_over(self) -> None:
        """Another stream has come in its place: this one ends, the cursors stay."""
        self._stream.close()

    # -- topics.engine.reading.watch.Sink --------------------------------------------------------

    def deliver(self, cursor: WatchCursor, frames: Sequence[StreamFrame]) -> int:
        stream = self._stream
        self.sent_s = self._delivery.now_s
        if len(frames) > 1 or not stream.is_chunked:
            data = sse_frames.events(cursor, frames)
            stream.send(data)
            self._end_with(frames[-1])
            return len(data)
        frame = frames[0]
        data = sse_frames.event(cursor, frame)
        if data is not frame.sse:
            stream.send(data)
        else:
            # Most readers are sent just what others are.
            frame.chunk = frame.chunk or chunk_of(data)
            stream.send_chunk(frame.chunk)
        self._end_with(frame)
        return len(data)

    def _end_with(self, frame: StreamFrame) -> None:
        # Left open it would be silent for ever, whatever took the name; a reader that comes again
        # learns what there is.
        if frame.event == DELETED and self._watched.ends_with_topic:
            self._stream.close()

    def paced(self, name: str, retry_after_ms: int) -> None:
        text = "watch throttled under CPU pressure"
        self._advise(429, text, retry_after_ms=retry_after_ms, topics=[name])

    def fail(self, cursor: WatchCursor, error: Exception, *, is_final: bool) -> None:
        LOG.error("topic %s can not be read", cursor.name, exc_info=error)
        status = 500 if is_final else 503
        code = error.code if isinstance(error, TopicsError) else "internal"
        text = "the topic's stored records can not be read" + ("" if is_final else " now")
        self._stream.send(sse_frames.error_event(status, f"{code}: {text}", topics=[cursor.name]))
        if is_final:
            self._stream.close()

    # -- topics.server.loop.event_outlet.EventOutlet ---------------------------------------------

    def _names(self) -> list[str]:
        return [cursor.name for cursor in self._watched.subscription.cursors]

    def _lag(self) -> int:
        return lag_of(self._services.engine, self._watched.subscription.cursors)

    def resume(self, *, is_degraded: bool) -> None:
        subscription = self._watched.subscription
        if is_degraded:
            # What it lost meanwhile is told as it would be had it just connected.
            for cursor in subscription.cursors:
                cursor.is_fresh = True
        self._delivery.feeds.resume(subscription)

    def cut_off(self) -> None:
        self._end(
            SLOW_CODE, "this stream was not read for too long; reconnect to go on from its id"
        )

    def _closed(self) -> None:
        super()._closed()
        watched = self._watched
        if watched.subscription.sink is self:
            self._delivery.feeds.detach(watched.subscription)
        watched.closed(self)
