"""GET /v0/ws: subscribe and publish over one WebSocket, with the rules of the HTTP routes.

Opening needs a key, no scope; every command is authorized by what it does. A command is answered by
one frame with its `request_id`; frames of subscribed topics come in between, each topic's in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec

from topics.engine.reading.watch import DELETED, StreamFrame, Subscription, WatchCursor
from topics.engine.state.write_request import decode_write
from topics.errors import InvalidRequest, Poisoned, Throttled, TopicsError, Unauthorized
from topics.server.api.auth import READ, WRITE, Key
from topics.server.api.call import Call
from topics.server.api.decoding import decode_json
from topics.server.api.meters import GONE, Meter
from topics.server.api.route import Route
from topics.server.api.sse_frames import ADVICE_S
from topics.server.http.errors import LOG
from topics.server.http.message import PENDING, Answer
from topics.server.http.websocket import WebSocket
from topics.server.live.watch_routes import (
    WatchTopic,
    check_command,
    check_topic_count,
    options_of,
    place_of,
    watched,
)
from topics.server.live.ws_commands import (
    PING,
    SUBSCRIBE,
    UNSUBSCRIBE,
    RequestId,
    Subscribe,
    Unsubscribe,
    head_of,
    publish_of,
    write_body,
)
from topics.server.live.ws_publishing import ACKS, Published
from topics.server.loop.services import Services
from topics.server.loop.visitors import Kind, Sight, lag_of
from topics.types import Appended, check_name

# Publishes of one connection that wait for the log.
PENDING_MAX = 1024
# The close code for "try again later".
TRY_AGAIN = 1013
GOING_AWAY = 1001
NOT_ALLOWED = 1008

PATH = "/v0/ws"
COMMANDS = ("subscribe", "unsubscribe", "publish", "ping")
NO_COMMAND = ""

_ENCODER = msgspec.json.Encoder()
_OPS = {
    event: b'{"op":"%b",' % event.replace("-", "_").encode()
    for event in ("record", "tombstone", "caught-up", "topic-deleted")
}


class WsRoutes:
    def __init__(self, services: Services) -> None:
        self._services = services
        # Commands are counted beside requests; those that are none have no name.
        self._meters = {op: services.metered(op, PATH) for op in (*COMMANDS, NO_COMMAND)}

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET", path=PATH, handler=self.open,
                summary="Subscribe and publish over a WebSocket.",
                others={101: ("", "The connection is a WebSocket from here on.")},
                errors=("upgrade_required",),
            )
        ]  # fmt: skip

    def open(self, call: Call) -> Answer:
        delivery = self._services.delivery
        delivery.enter(call.key)
        try:
            Connection(self._services, call, self._meters)
        except BaseException:
            delivery.leave(call.key)
            raise
        return PENDING


class Connection:
    """One WebSocket: its subscriptions, one for each topic, and its publishes on their way."""

    __slots__ = (
        "_advised_s", "_delivery", "_ignored", "_key", "_meters", "_pending", "_services",
        "_since_ts", "_socket", "_topics", "_visit", "sent_s",
    )  # fmt: skip

    kind: Kind = "websocket"

    # The protocol's own pings keep the connection alive.
    heartbeat_s = 3600.0

    def __init__(self, services: Services, call: Call, meters: dict[str, Meter]) -> None:
        self._services = services
        self._meters = meters
        self._delivery = services.delivery
        self._key: Key | None = call.key
        self._topics: dict[str, Subscription] = {}
        self._pending = 0
        # Fields of the command at hand that nobody looks at.
        self._ignored: tuple[str, ...] = ()
        self._advised_s = 0.0
        self.sent_s = self._delivery.now_s
        self._since_ts = services.clock.wall_ms()
        self._socket = WebSocket(call, self._received)
        self._socket.on_close = self._closed
        self._socket.on_writable = self._writable
        self._socket.on_drain = self._drain
        self._visit = services.visitors.enter(self)

    # -- commands ----------------------------------------------------------------------------

    def _received(self, message: str | bytes) -> None:
        began_s = perf_counter()
        request_id: RequestId = None
        op = NO_COMMAND
        self._ignored = ()
        try:
            if isinstance(message, bytes):
                raise InvalidRequest("commands are JSON text messages, not binary")
            text = message.encode()
            head = head_of(text)
            request_id = head.request_id
            if head.op not in COMMANDS:
                raise InvalidRequest(f"op is one of {', '.join(COMMANDS)}; not {head.op!r:.100}")
            op = head.op
            if op == "publish":
                self._publish(text, began_s)
                return
            check_command(text, self._services)
            if op == "subscribe":
                self._subscribe(decode_json(text, SUBSCRIBE, self))
            elif op == "unsubscribe":
                self._unsubscribe(decode_json(text, UNSUBSCRIBE, self))
            else:
                decode_json(text, PING, self)
                self._send({"op": "pong"}, request_id, self._ignored)
            self._count(op, 200, began_s)
        except Poisoned as error:
            self._refuse(op, self._services.failed(error), request_id, began_s)
        except TopicsError as error:
            self._refuse(op, error, request_id, began_s)

    def _refuse(self, op: str, error: TopicsError, request_id: RequestId, began_s: float) -> None:
        self._count(op, error.status, began_s)
        self._send_error(error, request_id, self._ignored)

    def _count(self, op: str, status: int, began_s: float) -> None:
        """Counts a command with the status that a request would have been answered with."""
        is_gone = self._socket.is_closed
        self._meters[op].note(GONE if is_gone else status, (perf_counter() - began_s) * 1000)

    def ignored(self, names: list[str]) -> None:
        """Lets the answer of this command name fields that nobody looks at."""
        self._ignored += tuple(names)

    def _subscribe(self, body: Subscribe) -> None:
        wanted = dict(body.topics or {})
        if body.topic is not None:
            wanted[body.topic] = WatchTopic(
                from_seq=body.from_seq, tail=body.tail, epoch=body.epoch
            )
        if not wanted:
            raise InvalidRequest("subscribe needs topic or topics")
        self._authorize(READ, wanted)
        maximum = self._services.config.options.max_watch_topics
        check_topic_count(len(wanted.keys() | self._topics.keys()), maximum)
        options = options_of(body, self._services)
        places, told = {}, {}
        for name, given in wanted.items():
            state = self._services.engine.state(check_name(name), touch=False)
            places[name] = place_of(given or WatchTopic(), state)
            told[name] = watched(places[name][0], state)
        self._send({"op": "subscribed", "topics": told}, body.request_id, self._ignored)
        for name, place in places.items():
            self._leave(name)
            subscription = self._topics[name] = Subscription(options, tells_too_old=False)
            subscription.add({name: place})
            self._delivery.feeds.attach(subscription, self)

    def _unsubscribe(self, body: Unsubscribe) -> None:
        names = [*(body.topics or ()), *(() if body.topic is None else (body.topic,))]
        if not names:
            raise InvalidRequest("unsubscribe needs topic or topics")
        for name in names:
            self._leave(name)
        answer: dict[str, Any] = {"op": "unsubscribed"}
        answer |= {"topic": body.topic} if body.topics is None else {"topics": names}
        self._send(answer, body.request_id, self._ignored)

    def _leave(self, name: str) -> None:
        subscription = self._topics.pop(name, None)
        if subscription is not None:
            self._delivery.feeds.detach(subscription)
            subscription.end()

    def _authorize(self, scopes: int, names: Sequence[str] | dict[str, Any]) -> None:
        if self._key is not None:
            self._key.require_scopes(scopes)
            for name in names:
                self._key.require_name(name)

    # -- publishing --------------------------------------------------------------------------

    def _publish(self, text: bytes, began_s: float) -> None:
        body = publish_of(text, self)
        name = body.topic
        self._authorize(WRITE, (name,))
        services, key = self._services, self._key
        request = decode_write(write_body(body), services.settings, self)
        services.writes.check_config(key, name, request)
        if key is not None:
            services.writes.check_markers(key, name, request.records)
        if self._pending >= PENDING_MAX:
            raise Throttled(
                f"{PENDING_MAX} publishes of this connection wait for their ack",
                limit="max_pending", max=PENDING_MAX,
            )  # fmt: skip
        if key is not None:
            key.enter(services.config.options.max_inflight_per_key)
        services.writes.check_pressure("publish", name, request)
        published = Published(self, body.request_id, body.return_seqs, began_s, self._ignored)
        self._pending += 1
        if key is not None:
            key.inflight += 1
        try:
            services.writes.submit(name, request, published, ACKS)
        except BaseException:
            self._settle()
            raise

    def _settle(self) -> None:
        self._pending -= 1
        if self._key is not None:
            self._key.inflight -= 1

    def ack(self, published: Published, done: Appended) -> None:
        self._settle()
        self._count("publish", 201 if done.created else 200, published.began_s)
        engine = self._services.engine
        log, config = engine.log_times, engine.config_of(done.topic)
        is_durable = config is not None and config.durable
        answer: dict[str, Any] = {
            "op": "ack", "topic": done.topic, "first_seq": done.first_seq,
            "last_seq": done.last_seq, "head_seq": done.head_seq, "count": done.count,
            "created": done.created, "deduped": done.deduped, "epoch": str(done.epoch),
        }  # fmt: skip
        if published.returns_seqs:
            answer["seqs"] = list(range(done.first_seq, done.last_seq + 1))
        answer["performance"] = {
            "server_total_ms": round((perf_counter() - published.began_s) * 1000, 3),
            "wal_append_ms": round(log.write_s * 1000, 3),
            # A topic that does not wait for the disk may share the sync of one that does.
            "fsync_ms": round(log.sync_s * 1000, 3) if is_durable else 0.0,
        }
        self._send(answer, published.request_id, published.ignored)

    def refuse(self, published: Published, error: TopicsError) -> None:
        self._settle()
        self._count("publish", error.status, published.began_s)
        self._send_error(error, published.request_id, published.ignored)

    # -- sending -----------------------------------------------------------------------------

    def _send(
        self, frame: dict[str, Any], request_id: RequestId, ignored: tuple[str, ...] = ()
    ) -> None:
        if ignored:
            frame["ignored"] = ignored
        if request_id is not None:
            frame = {"op": frame["op"], "request_id": request_id, **frame}
        self._socket.send(_ENCODER.encode(frame))
        self.sent_s = self._delivery.now_s

    def _send_error(
        self, error: TopicsError, request_id: RequestId, ignored: tuple[str, ...] = ()
    ) -> None:
        message = error.message
        if error.status >= 500 and error.code == "internal":
            LOG.error("a WebSocket command failed", exc_info=error)
            message = "an internal error; the server's log has the details"
        frame: dict[str, Any] = {"op": "error", "code": error.code, "message": message}
        if error.detail and error.code != "internal":
            frame["detail"] = msgspec.to_builtins(error.detail, enc_hook=repr)
        self._send(frame, request_id, ignored)

    # -- topics.engine.reading.watch.Sink --------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        if self._socket.is_writable:
            return True
        self._delivery.note_slow(self)
        return False

    def deliver(self, cursor: WatchCursor, frames: Sequence[StreamFrame]) -> int:
        size = 0
        for frame in frames:
            if frame.text is None:
                frame.text = _OPS[frame.event] + frame.body
            self._socket.send(frame.text)
            size += len(frame.text)
        self.sent_s = self._delivery.now_s
        if frames[-1].event == DELETED:
            # It is not subscribed to any more: neither shown, nor in the way of another.
            self._leave(cursor.name)
        return size

    def paced(self, name: str, retry_after_ms: int) -> None:
        now_s = self._delivery.now_s
        if now_s - self._advised_s >= ADVICE_S and self._socket.is_writable:
            self._advised_s = now_s
            detail = {"retry_after_ms": retry_after_ms, "topics": [name]}
            self._send_error(Throttled("paced under CPU pressure", **detail), None)

    def fail(self, cursor: WatchCursor, error: Exception, *, is_final: bool) -> None:
        LOG.error("topic %s can not be read", cursor.name, exc_info=error)
        text = "the topic's stored records can not be read" + ("" if is_final else " now")
        code = error.code if isinstance(error, TopicsError) else "internal"
        frame = {"op": "error", "code": code, "message": text, "topic": cursor.name}
        if not is_final:
            self._send(frame, None)
            return
        # Others of this socket go on, so nothing else says that this one does not.
        self._send({**frame, "ended": True}, None)
        self._leave(cursor.name)

    # -- topics.server.loop.delivery.Outlet ------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._socket.is_closed

    def beat(self, wall_ms: int) -> None:
        """Never: see `heartbeat_s`."""

    def resume(self, *, is_degraded: bool) -> None:  # noqa: ARG002
        for subscription in list(self._topics.values()):
            self._delivery.feeds.resume(subscription)

    def cut_off(self) -> None:
        slow = Throttled("this connection was not read for too long; reconnect and subscribe again")
        self._send_error(slow, None)
        self._socket.close(TRY_AGAIN, "not read for too long")

    # -- the socket ----------------------------------------------------------------------------

    def _writable(self) -> None:
        self._delivery.resumed(self)

    def _drain(self) -> None:
        self._send(
            {"op": "error", "code": "shutting_down", "message": "the server is going away"}, None
        )
        self._socket.close(GOING_AWAY, "shutting down")

    # -- topics.server.loop.visitors.Visitor -----------------------------------------------------

    @property
    def key(self) -> Key | None:
        return self._key

    def revoke(self) -> None:
        self._send_error(Unauthorized("this API key is not known any more"), None)
        self._socket.close(NOT_ALLOWED, "the key is not known any more")

    def sight(self) -> Sight:
        cursors = [one for subscription in self._topics.values() for one in subscription.cursors]
        return Sight(
            list(self._topics), self._key, self._socket.peer, self._since_ts,
            lag_of(self._services.engine, cursors), self._socket.buffered_bytes,
        )  # fmt: skip

    def _closed(self) -> None:
        self._services.visitors.leave(self._visit)
        self._delivery.forget(self)
        for name in list(self._topics):
            self._leave(name)
        self._delivery.leave(self._key)
