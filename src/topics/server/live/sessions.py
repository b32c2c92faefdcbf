"""Watch sessions: a subscription that outlives its streams, and the server.

A session is found by an unguessable id and belongs to the key that made it. Its cursors are where
the last delivered frame left them. It is reclaimed when it has had no stream for its time to live,
which begins anew with the server; one with an open stream never is. A new stream of a session takes
over from an older one: the peer of that may have gone without our having noticed.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from functools import partial

from topics.engine.engine import Engine
from topics.engine.reading.watch import Subscription
from topics.errors import NotFound, Throttled, TopicsError, Unauthorized
from topics.server.api.auth import READ, Key
from topics.server.http.errors import LOG
from topics.server.http.event_stream import EventStream
from topics.server.live.session_store import SessionStore, kept_of, mark_of
from topics.server.live.watch_stream import WatchStream
from topics.server.loop.services import Services

WID_BYTES = 16


class Session:
    """`is_restored`: it is as it was stored, and nobody has come back to it yet."""

    __slots__ = (
        "_sessions", "heartbeat_s", "idle_since_s", "is_restored", "key", "mark", "stream",
        "subscription", "wid",
    )  # fmt: skip

    # Its other topics go on.
    ends_with_topic = False

    def __init__(
        self,
        sessions: Sessions,
        wid: str,
        mark: bytes,
        subscription: Subscription,
        heartbeat_s: float,
    ) -> None:
        self._sessions = sessions
        self.wid = wid
        self.mark = mark
        self.subscription = subscription
        self.heartbeat_s = heartbeat_s
        # Of whoever came for it last.
        self.key: Key | None = None
        self.is_restored = False
        self.stream: WatchStream | None = None
        self.idle_since_s = 0.0

    def closed(self, stream: WatchStream) -> None:
        """A stream has ended, this one's or one before it."""
        if self.stream is stream:
            self.stream = None
            self._sessions.rest(self)


class Sessions:
    """All sessions, those without a stream in the order in which they lost it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._options = services.config.options
        self._store = SessionStore(services.loop)
        self._all: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()
        services.watch_sessions = lambda: len(self._all)
        services.on_opened.append(self._restore)
        services.on_closing.append(self._save)

    def __len__(self) -> int:
        return len(self._all)

    # -- life --------------------------------------------------------------------------------

    def _restore(self, engine: Engine) -> None:
        for wid, kept in self._store.open(engine):
            session = Session(self, wid, kept.mark, kept.subscription(), kept.heartbeat_s)
            session.is_restored = True
            self._all[wid] = session
            self.rest(session)

    def _save(self) -> None:
        """Writes where the cursors are, for those who come back without an id."""
        try:
            self.reclaim()
            for session in self._all.values():
                if not session.is_restored:
                    self._keep(session)
        except TopicsError as error:
            LOG.warning("watch sessions go on from where they were before: %s", error)
        finally:
            self._store.close()

    def _keep(self, session: Session) -> None:
        kept = kept_of(session.mark, session.heartbeat_s, session.subscription)
        self._store.put(session.wid, kept)

    def _keep_epochs(self, session: Session) -> None:
        try:
            self._keep(session)
        except TopicsError as error:
            # Its reader would be told once more that the topic was recreated.
            LOG.warning("a watch session goes on from an older place: %s", error)

    # -- sessions ----------------------------------------------------------------------------

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
            self._store.remove(session.wid)

    def check_room(self) -> None:
        """Raises Throttled when there are as many sessions as there may be."""
        maximum = self._options.max_watch_sessions
        if maximum and len(self._all) >= maximum:
            raise Throttled(
                f"there are {maximum} watch sessions, the most this server allows; idle ones end "
                f"after {self._options.session_ttl_ms} ms",
                limit="max_watch_sessions", max=maximum,
            )  # fmt: skip

    def create(self, key: Key | None, subscription: Subscription, heartbeat_s: float) -> Session:
        """A new session, which outlives the process from here on. Raises DiskFull."""
        wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        session = Session(self, wid, mark_of(wid, key), subscription, heartbeat_s)
        self._keep(session)
        subscription.on_new_epoch = partial(self._keep_epochs, session)
        self._all[wid] = session
        self.rest(session)
        return session

    def find(self, wid: str, key: Key | None) -> Session:
        """The session of this id, for the key that made it.

        Raises NotFound for an unknown one, whatever it looks like, Unauthorized for that of another
        key, and Forbidden where the rights of the key no longer reach.
        """
        session = self._all.get(wid)
        if session is None:
            raise NotFound("there is no such watch session, or it has ended; create a new one")
        if key is not None:
            if not hmac.compare_digest(mark_of(wid, key), session.mark):
                raise Unauthorized("this watch session belongs to another API key")
            key.require_scopes(READ)
            for cursor in session.subscription.cursors:
                key.require_name(cursor.name)
        return session

    def open(self, session: Session, key: Key | None, stream: EventStream) -> None:
        """Lets a stream carry the session, from where its cursors are."""
        assert session.stream is None
        self._idle.pop(session.wid, None)
        session.key, session.is_restored = key, False
        session.stream = WatchStream(self._services, session, stream)
        session.stream.begin()

    def rest(self, session: Session) -> None:
        session.idle_since_s = self._services.loop.time()
        self._idle[session.wid] = session
        self._idle.move_to_end(session.wid)
