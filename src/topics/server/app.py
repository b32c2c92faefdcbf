"""The application: one handler for every request, made from one table of routes.

    origin → route → key → scopes and prefixes → readiness → handler

To add routes, write a module with a class whose `routes()` returns rows, and name it in PARTS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Protocol

from topics.clock import Clock, SystemClock
from topics.engine.commit.committer import Committer, Ticket
from topics.engine.engine import Engine
from topics.engine.state.segments import ColdMiss
from topics.errors import Closed, NotReady, OutcomeUnknown, Poisoned, TopicsError
from topics.server.api.auth import Key
from topics.server.api.call import Call
from topics.server.api.decoding import check_content_type
from topics.server.api.dispatch import RouteHandler, Router
from topics.server.api.origin import OriginRule
from topics.server.api.route import Route
from topics.server.config import Config
from topics.server.http.connections import HttpServer
from topics.server.http.errors import response_to
from topics.server.http.message import PENDING, Answer, Request, Response
from topics.server.http.turns import Tick
from topics.server.loop.counts import Counts
from topics.server.loop.delivery import Delivery
from topics.server.loop.driver import Driver
from topics.server.loop.longpoll import Waiters
from topics.server.loop.parking import Parking
from topics.server.queues.desks import Desks

LOG = logging.getLogger("topics.server")


class Part(Protocol):
    """A piece of the surface."""

    def routes(self) -> list[Route]: ...


class App:
    """Serves a directory. `start` begins recovery; `drain` and `close` end in order."""

    def __init__(self, config: Config, *, clock: Clock | None = None) -> None:
        from topics.server import surface

        self.config = config
        self.settings = config.settings
        self.clock = clock or SystemClock()
        self.loop = asyncio.get_running_loop()
        self.driver = Driver(self.loop)
        self.waiters = Waiters()
        self.counts = Counts(self)
        self.delivery = Delivery(self)
        self.parking = Parking(self)
        self.desks = Desks(self)
        self.tick: Tick
        self.is_draining = False
        self.started_s = self.clock.monotonic_s()
        self._keys = config.keys
        self._inflight_max = config.options.max_inflight_per_key
        # With keys, and where the operator has given up on keys, any name may lead here.
        is_open = config.options.allow_insecure_no_auth and not config.is_loopback
        origins = OriginRule(config.cors_origins, has_keys=bool(config.keys) or is_open)
        self._check_origin = origins.check
        self.routes: list[Route] = [row for part in surface.PARTS for row in part(self).routes()]
        # What judges a request by its head, for each handler that is behind one.
        self._judges: dict[RouteHandler, Callable[..., bool]] = {}
        self._router = Router((r.method, r.path, self._guarded(r)) for r in self.routes)

    @property
    def engine(self) -> Engine:
        """The engine. Handlers of routes that wait for recovery may rely on it."""
        return self.driver.engine

    @property
    def long_polls(self) -> int:
        """Reads and claims that wait. A desk waits for its queue on behalf of all claims."""
        return len(self.waiters) - len(self.desks.by_name) + self.desks.waiting_claims

    def __call__(self, call: Call) -> Answer:
        answer = self._check_origin(call)
        if answer is not None:
            return answer
        handler, names = found = self._router.find(call)
        if not call.extra:
            # The same head would pass the same checks again.
            call.head.found = found
        return handler(call, *names)

    def judge(self, call: Call, has_body: bool) -> bool:
        """What the head of a request decides before its body is there.

        Raises what the request is refused with whatever its body is, in the order in which it
        would be if the body were there. Returns whether anybody will look at the body.
        """
        if self._check_origin(call) is not None:
            return False
        handler, names = self._router.find(call)
        judge = self._judges.get(handler)
        return judge is not None and judge(call, has_body, *names)

    # -- life --------------------------------------------------------------------------------

    def start(self, server: HttpServer, steps: Generator[float, None, Engine]) -> None:
        self.tick = server.tick
        self.counts.server = server
        self.waiters.attach(server.tick)
        self.delivery.attach(server.tick)
        self.driver.start(server.tick, steps, self._opened)

    def _opened(self, engine: Engine) -> None:
        engine.core.published = self.waiters.published
        self.delivery.opened(engine)
        LOG.info(
            "ready",
            extra={
                "topics": len(engine.core.by_name),
                "ms": int((self.clock.monotonic_s() - self.started_s) * 1000),
            },
        )

    def drain(self) -> None:
        """Readiness is denied from now on, and nobody waits for records any more."""
        self.is_draining = True
        self.waiters.end_all()

    def close(self) -> None:
        self.delivery.close()
        self.driver.close()

    # -- the guard ---------------------------------------------------------------------------

    def _guarded(self, route: Route) -> RouteHandler:
        """A route's handler behind its checks."""
        has_keys = bool(self._keys)
        is_gated = has_keys and (not route.is_probe or self.config.options.probe_auth)
        driver, handler, prefixed = self.driver, route.handler, route.prefixed
        waits = route.waits_for_recovery and not route.is_probe

        def admit(call: Call, names: tuple[str, ...]) -> None:
            if is_gated:
                if call.key is None:
                    call.key = self._authorized(route, call)
                    for index in prefixed:
                        call.key.require_name(names[index])
                call.key.enter(self._inflight_max)
            if waits and not driver.is_ready:
                raise self.unready()

        def judge(call: Call, has_body: bool, *names: str) -> bool:
            admit(call, names)
            if route.body is not None and has_body:
                check_content_type(call)
            return route.body is not None

        def handle(call: Call, *names: str) -> Answer:
            call.began_s = perf_counter()
            if is_gated or not driver.is_ready:
                admit(call, names)
            try:
                answer = handler(call, *names)
            except Poisoned as error:
                raise self._failed(error) from None
            if answer is PENDING and call.key is not None and call.successor is None:
                call.hold()
            return answer

        self._judges[handle] = judge
        return handle

    def go_on(self, call: Call, resume: Callable[[], Answer]) -> None:
        """Goes on with a call that was put off; `resume` answers as its handler would have."""
        try:
            answer = resume()
        except Poisoned as error:
            call.fail(self._failed(error))
        except Exception as error:
            call.fail(error)
        else:
            if answer is not PENDING:
                call.respond(answer)
            else:
                call.hold()

    def finish(
        self, call: Call, ticket: Ticket, answer: Callable[[Committer | None], Response]
    ) -> Answer:
        """Answers when the ticket has ended; `answer` gets the log if that was waited for."""
        log = self.engine.core.committer

        def ended(ticket: Ticket, log: Committer | None) -> Response:
            return answer(log) if ticket.error is None else response_to(ticket.error)

        if ticket.done:
            return ended(ticket, None)
        ticket.callback = lambda ticket: call.respond(ended(ticket, log))
        self.driver.flush_soon()
        return PENDING

    def fetch(self, call: Call, miss: ColdMiss, resume: Callable[[], Answer]) -> None:
        """Goes on with a call when the cold store has answered."""

        def fetched(error: BaseException | None) -> None:
            if error is not None:
                call.fail(error)
            elif not call.is_gone:
                self.go_on(call, resume)

        self.driver.fetch(miss, fetched)

    def _failed(self, error: Poisoned) -> OutcomeUnknown:
        self.driver.fail(error)
        return OutcomeUnknown(
            "storage failed, and the server ends to recover; retry when it is back"
        )

    def _authorized(self, route: Route, request: Request) -> Key:
        """The caller's key. Raises Unauthorized or Forbidden."""
        key = self._keys.of(request, takes_query_token=route.takes_query_token)
        key.require_scopes(route.scopes)
        return key

    def unready(self) -> TopicsError:
        """Why there is no engine now."""
        if self.is_draining:
            return Closed("the server is shutting down; try again")
        progress = round(self.driver.progress, 3)
        return NotReady(
            f"the log is being recovered, {progress:.0%} done; try again soon",
            replay_progress=progress,
        )
