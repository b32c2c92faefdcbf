"""Watch sessions: a subscription that outlives its streams, and the stream that carries it now.

A session is found by an unguessable id and belongs to the key that made it. Its cursors are where
the last delivered frame left them. It is reclaimed when it has had no stream for its time to live;
one with an open stream never is. A new stream of a session takes over from an older one: the peer
of that may have gone without our having noticed.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence

from topics.engine.reading.watch import StreamFrame, Subscription, WatchCursor
from topics.errors import NotFound, Throttled, TopicsError, Unauthorized
from topics.server.api import sse_frames
from topics.server.api.auth import Key
from topics.server.api.sse_frames import ADVICE_S, DRAIN_CODE, SLOW_CODE
from topics.server.http.errors import LOG
from topics.server.http.event_stream import EventStream, chunk_of
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, Sight, lag_of

WID_BYTES = 16


class Session:
    __slots__ = ("heartbeat_s", "idle_since_s", "key", "stream", "subscription", "wid")

    def __init__(self, key: Key | None, subscription: Subscription, heartbeat_s: float) -> None:
        self.wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        self.key = key
        self.subscription = subscription
        self.heartbeat_s = heartbeat_s
        self.stream: SessionStream | None = None
        self.idle_since_s = 0.0


class Sessions:
    """All sessions, those without a stream in the order in which they lost it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._options = services.config.options
        self._all: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()
        services.watch_sessions = lambda: len(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def reclaim(self) -> None:
        """Forgets what has been without a stream for too long."""
        oldest_s = self._services.loop.time() - self._options.session_ttl_ms / 1000
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.idle_since_s >= oldest_s:
                return
            self._idle.popitem(last=False)
            del self._all[session.wid]
            session.subscription.end()

    def check_room(self) -> None:
        """Raises Throttled when there are as many sessions as there may be."""
        maximum = self._options.max_watch_sessions
        if maximum and len(self._all) >= maximum:
            raise Throttled(
                f"there are {maximum} watch sessions, the most this server allows; idle ones end "
                f"after {self._options.session_ttl_ms} ms",
                limit="max_watch_sessions", max=maximum,
            )  # fmt: skip

    def add(self, session: Session) -> None:
        self._all[session.wid] = session
        self._rest(session)

    def find(self, wid: str, key: Key | None) -> Session:
        """The session of this id, for the key that made it.

        Raises NotFound for an unknown one, whatever it looks like, and Unauthorized for that of
        another key.
        """
        session = self._all.get(wid)
        if session is None:
            raise NotFound("there is no such watch session, or it has ended; create a new one")
        if session.key is not key:
            raise Unauthorized("this watch session belongs to another API key")
        return session

    def open(self, session: Session, stream: EventStream) -> None:
        """Lets a stream carry the session, from where its cursors are."""
        assert session.stream is None
        self._idle.pop(session.wid, None)
        session.stream = SessionStream(self, self._services, session, stream)
        session.stream.begin()

    def closed(self, session: Session, stream: SessionStream) -> None:
        if session.stream is stream:
            session.stream = None
            self._rest(session)

    def _rest(self, session: Session) -> None:
        session.idle_since_s = self._services.loop.time()
        self._idle[session.wid] = session
        self._idle.move_to_end(session.wid)


class SessionStream:
    """One open stream of a session."""

    __slots__ = (
        "_advised_s", "_delivery", "_services", "_session", "_sessions", "_since_ts", "_stream",
        "_visit", "sent_s",
    )  # fmt: skip

    kind: Kind = "stream"

    def __init__(
        self, sessions: Sessions, services: Services, session: Session, stream: EventStream
    ) -> None:
        self._sessions = sessions
        self._services = services
        self._since_ts = services.clock.wall_ms()
        self._visit = 0
        self._delivery = services.delivery
        self._session = session
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
        delivery.feeds.attach(self._session.subscription, self)

    def hand_over(self) -> None:
        """Another stream of the session has come: this one ends, the cursors stay."""
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
        cursors, stream = self._session.subscription.cursors, self._stream
        return Sight(
            [cursor.name for cursor in cursors], self._session.key, stream.peer, self._since_ts,
            lag_of(self._services.engine, cursors), stream.buffered_bytes,
        )  # fmt: skip

    # -- topics.server.loop.delivery.Outlet ------------------------------------------------------

    @property
    def heartbeat_s(self) -> float:
        return self._session.heartbeat_s

    @property
    def is_open(self) -> bool:
        return not self._stream.is_closed

    def beat(self, wall_ms: int) -> None:
        self._stream.send(sse_frames.heartbeat(wall_ms))

    def resume(self, *, is_degraded: bool) -> None:
        subscription = self._session.subscription
        if is_degraded:
            # What it lost meanwhile is told as it would be had it just connected.
            for cursor in subscription.cursors:
                cursor.is_fresh = True
        self._delivery.feeds.resume(subscription)

    def cut_off(self) -> None:
        self._stream.send(
            sse_frames.error_event(
                SLOW_CODE, "this stream was not read for too long; reconnect to go on from its id",
                topics=[cursor.name for cursor in self._session.subscription.cursors],
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
        delivery, session = self._delivery, self._session
        self._services.visitors.leave(self._visit)
        delivery.forget(self)
        if session.subscription.sink is self:
            delivery.feeds.detach(session.subscription)
        delivery.leave(session.key)
        self._sessions.closed(session, self)
