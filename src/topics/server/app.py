"""The application: one handler for every request, made from one table of routes.

    origin → route → key → scopes and prefixes → readiness → handler

To add routes, write a module with a class whose `routes()` returns rows, and name it in `surface`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from topics.errors import Poisoned, TopicsError
from topics.server.api.auth import REMOVED, Key, Keys
from topics.server.api.call import Call
from topics.server.api.decoding import check_content_type
from topics.server.api.dispatch import RouteHandler, Router
from topics.server.api.meters import Meter
from topics.server.api.origin import OriginRule
from topics.server.api.route import ANY_BYTES, Route
from topics.server.config import Config
from topics.server.http.connections import HttpServer
from topics.server.http.errors import body_too_large
from topics.server.http.limits import HttpLimits
from topics.server.http.message import PENDING, Answer
from topics.server.loop.access_log import LoggedCall
from topics.server.loop.services import Services
from topics.server.queues.desks import Desks
from topics.server.surface import routes_of

# More requests in flight than a key that is known can have.
UNBOUNDED = REMOVED // 2

# Longer ones are no lengths to the protocol.
LENGTH_DIGITS_MAX = 20


class App:
    """Finds the route of a request, admits it, and lets its handler answer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.services = Services(config)
        self.desks = Desks(self.services)
        self._keys = config.keys
        self._inflight_max = config.options.max_inflight_per_key or UNBOUNDED
        # With keys, and where the operator has given up on keys, any name may lead here.
        is_open = config.options.allow_insecure_no_auth and not config.is_loopback
        origins = OriginRule(config.cors_origins, has_keys=bool(config.keys) or is_open)
        self._check_origin = origins.check
        self.routes = routes_of(self.services, self.desks)
        # For each guarded handler, what judges a request by its head, and what counts its answers.
        self._judges: dict[RouteHandler, Callable[..., bool]] = {}
        self._meters: dict[RouteHandler, Meter] = {}
        # What counts requests that are for no route, or that no route has got.
        self._nowhere = self.services.metered("", "(none)")
        self._router = Router((r.method, r.path, self._guarded(r)) for r in self.routes)

    def __call__(self, call: Call) -> Answer:
        answer = self._check_origin(call)
        if answer is not None:
            return answer
        handler, names = found = self._router.find(call)
        if not call.extra:
            # The same head would pass the same checks again.
            call.head.found = found
        return handler(call, names)

    def http_server(self, limits: HttpLimits) -> HttpServer:
        """A server of this application."""
        kind = LoggedCall if self.services.access_log.is_on else Call
        return HttpServer(
            self.__call__, judge=self.judge, refused=self.refused, limits=limits, request_type=kind
        )

    def judge(self, call: Call, has_body: bool) -> bool:
        """What the head of a request decides before its body is there.

        Raises what the request is refused with whatever its body is, in the order in which it
        would be if the body were there. Returns whether anybody will look at the body.
        """
        if self._check_origin(call) is not None:
            return False
        handler, names = self._router.find(call)
        judge = self._judges.get(handler)
        return judge is not None and judge(call, has_body, names)

    def change_keys(self, keys: Keys) -> int:
        """Takes on other keys, of which there is at least one; how many are not known any more.

        Whoever stays with one of those is told so, and ends.
        """
        gone = frozenset(self._keys.replace(keys))
        if self.services.server is not None:
            self.services.server.known_heads.forget()
        for visitor in self.services.visitors.of(gone):
            visitor.revoke()
        return len(gone)

    def refused(self, call: Call, error: BaseException, status: int) -> None:
        """Counts a request that was answered with an error before its handler had it, or by it."""
        if call.meter is None:
            call.meter = self._meter_of(call)
            call.began_s = call.began_s or perf_counter()
        self.services.access_log.refused(call, call.meter.path, error, status)
        call.count(status)

    def _meter_of(self, call: Call) -> Meter:
        """What counts the answers of a request's route, as far as that can be told."""
        try:
            handler, _ = call.head.found or self._router.find(call)
        except TopicsError:
            return self._nowhere
        return self._meters.get(handler, self._nowhere)

    # -- the guard ---------------------------------------------------------------------------

    def _guarded(self, route: Route) -> RouteHandler:
        """A route's handler, with its checks in front; it takes what the path names as a tuple."""
        has_keys = bool(self._keys)
        is_gated = has_keys and (not route.is_probe or self.config.options.probe_auth)
        services, driver = self.services, self.services.driver
        handler, prefixed = route.handler, route.prefixed
        waits = route.waits_for_recovery and not route.is_probe and not route.is_stream
        inflight_max, is_stream = self._inflight_max, route.is_stream
        body_bytes_max = ANY_BYTES if route.body is None else route.body_bytes_max
        takes_one = route.path.count("/:") == 1
        meter = services.metered(route.method, route.path)

        def admit(call: Call, names: tuple[str, ...]) -> None:
            if is_gated:
                key = call.key = call.head.caller
                if key is None:
                    key = call.key = self._authorized(route, call)
                    for index, before in prefixed:
                        key.require_name(before + names[index])
                    # Whoever sends this head again has shown it.
                    call.head.caller = key
                if key.inflight >= inflight_max:
                    key.enter(inflight_max)
            if waits and not driver.is_ready:
                raise services.unready()

        def judge(call: Call, has_body: bool, names: tuple[str, ...]) -> bool:
            admit(call, names)
            if route.body is not None and has_body:
                if _said_bytes(call) > body_bytes_max:
                    raise body_too_large(body_bytes_max)
                check_content_type(call)
            return route.body is not None

        def handle(call: Call, names: tuple[str, ...]) -> Answer:
            call.began_s = perf_counter()
            call.meter = meter
            # Most are admitted without a call: their head was, and nothing else stands against it.
            key = call.key = call.head.caller
            if not driver.is_ready or (is_gated and (key is None or key.inflight >= inflight_max)):
                admit(call, names)
                key = call.key
            if is_stream and not driver.is_ready:
                if services.is_draining:
                    raise services.unready()
                return services.await_ready(call)
            if len(call.body) > body_bytes_max:
                raise body_too_large(body_bytes_max)
            try:
                # Spreading a tuple costs more than the call.
                answer = handler(call, names[0]) if takes_one else handler(call, *names)
            except Poisoned as error:
                raise services.failed(error) from None
            if answer is not PENDING:
                call.count(answer.status)
            elif call.successor is not None:
                call.count(101 if call.is_upgrade else 200)
            elif key is not None:
                call.hold()
            return answer

        self._judges[handle], self._meters[handle] = judge, meter
        return handle

    def _authorized(self, route: Route, call: Call) -> Key:
        """The caller's key. Raises Unauthorized or Forbidden."""
        key = call.key = self._keys.of(call, takes_query_token=route.takes_query_token)
        key.require_scopes(route.scopes)
        return key


def _said_bytes(call: Call) -> int:
    """The length of a body as its head gives it; 0 where it gives none."""
    length = call.headers.get(b"content-length", b"")
    return int(length) if length.isdigit() and len(length) <= LENGTH_DIGITS_MAX else 0
