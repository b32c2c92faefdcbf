"""What the routes share: the running engine, who waits for it, and how calls end.

The pieces are made here, each with what it needs of the others; routes get the whole. Nothing of
it knows how a request is found or admitted: that is the application's, which stands above.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from time import monotonic, perf_counter
from typing import TypeVar

from topics.clock import SystemClock
from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.serving import LogTimes
from topics.engine.state.segments import ColdMiss
from topics.errors import Closed, NotReady, OutcomeUnknown, Poisoned, TopicsError
from topics.server.api.call import Call
from topics.server.api.meters import Meter
from topics.server.config import Config
from topics.server.http.beside import Beside
from topics.server.http.connections import HttpServer
from topics.server.http.errors import response_to
from topics.server.http.giving_way import Company
from topics.server.http.message import PENDING, Answer, Response
from topics.server.http.slices import Slices, Steps
from topics.server.http.turns import TurnEnd
from topics.server.loop.access_log import AccessLog, LoggedMeter
from topics.server.loop.buckets import BucketDesk
from topics.server.loop.delivery import Delivery
from topics.server.loop.driver import Driver
from topics.server.loop.longpoll import Waiters
from topics.server.loop.parking import Parking
from topics.server.loop.visitors import Visitors
from topics.server.loop.writes import Writes
from topics.types import clamp

LOG = logging.getLogger("topics.server")
# Answers that are rendered beside the loop at a time: it needs a core, too.
RENDERED_TOGETHER = clamp((os.cpu_count() or 1) // 2, 1, 4)

# A client that sends no more so soon behind its request waits for the answer; later, it has left.
STAYS_S = 0.1

T = TypeVar("T")
BACKUP_PATH = "/v0/backup"


class Services:
    """Serves a directory to routes. `start` begins recovery; `drain` and `close` end in order."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.settings = config.settings
        self.clock = SystemClock()
        self.loop = asyncio.get_running_loop()
        self.driver = Driver(self.loop)
        self.waiters = Waiters()
        self.access_log = AccessLog(config.options)
        self.delivery = Delivery(self.driver, self.clock, config.options, self.access_log)
        self.parking = Parking(self.driver, self.delivery, self.go_on)
        self.writes = Writes(self.driver, self.delivery)
        self._rendering = Beside(self.loop, RENDERED_TOGETHER, "topics-render")
        self.visitors = Visitors()
        # Called when there is an engine, and before it is closed.
        self.on_opened: list[Callable[[Engine], None]] = []
        self.on_closing: list[Callable[[], None]] = []
        self.buckets = BucketDesk(
            self.go_on, self.fetch, tombstones_warn=config.options.kv_tombstones_warn
        )
        # Told of a topic that records were deleted from.
        self.on_deleted: list[Callable[[str], None]] = []
        # How many watch sessions there are: whoever keeps them says so.
        self.watch_sessions: Callable[[], int] = _none
        # What clients make the process hold is known here; None before `start`.
        self.server: HttpServer | None = None
        self.turn_end: TurnEnd
        self._slices: Slices
        self.is_draining = False
        # What was answered, by route.
        self.meters: list[Meter] = []
        # Calls that came before there was an engine, and wait for it.
        self._early: list[Call] = []
        self.started_s = self.clock.monotonic_s()

    @property
    def engine(self) -> Engine:
        """The engine. Handlers of routes that wait for recovery may rely on it."""
        return self.driver.engine

    @property
    def uptime_ms(self) -> int:
        return int((self.clock.monotonic_s() - self.started_s) * 1000)

    def _done(self) -> int:
        """How often anybody had something done: an answer, a message, an event.

        Not who asks how far a backup is: that one would rest because somebody waits for it.
        """
        meters = (meter for meter in self.meters if meter.path != BACKUP_PATH)
        return self.turn_end.count + sum(sum(meter.counts) for meter in meters)

    def metered(self, method: str, path: str) -> Meter:
        """A meter for a route, which the metrics show from now on."""
        log = self.access_log
        meter = LoggedMeter(method, path, log) if log.is_on else Meter(method, path)
        self.meters.append(meter)
        return meter

    # -- life --------------------------------------------------------------------------------

    def start(self, server: HttpServer, steps: Generator[float, None, Engine]) -> None:
        self.turn_end = server.turn_end
        self._slices = server.slices
        self.server = server
        self.waiters.attach(server.turn_end)
        self._rendering.attach(server.turn_end)
        self.delivery.attach(server.turn_end)
        self.driver.start(server.turn_end, steps, self._opened)

    def _opened(self, engine: Engine) -> None:
        engine.on_published(self.waiters.published)
        engine.rests_beside(Company(self._done).is_present)
        self.delivery.opened(engine)
        for told in self.on_opened:
            told(engine)
        self.buckets.open(engine)
        self.driver.chores.append(self.buckets.work)
        self._handle_early()
        LOG.info("ready", extra={"topics": engine.topic_count, "ms": self.uptime_ms})

    def drain(self) -> None:
        """Readiness is denied from now on, and nobody waits for records any more."""
        self.is_draining = True
        self.waiters.end_all()
        self._handle_early()

    def close(self) -> None:
        for told in (self.delivery.close, *(self.on_closing if self.driver.is_ready else ())):
            try:
                told()
            except Exception as error:
                # Whatever it was: what was acknowledged has still to reach the disk.
                LOG.error("the end goes on without a part of it", exc_info=error)
        try:
            self.driver.close()
        finally:
            self._rendering.close()

    def await_ready(self, call: Call) -> Answer:
        """Answers when there is an engine: a browser's EventSource takes no for its last answer."""
        self._early.append(call)
        call.mind_leaving()
        return PENDING

    def _handle_early(self) -> None:
        early, self._early = self._early, []
        for call in early:
            call.drop_callback()
            if not call.is_gone:
                call.connection.handle_now(call)

    def unready(self) -> TopicsError:
        """Why there is no engine now."""
        if self.is_draining:
            return Closed("the server is shutting down; try again")
        progress = round(self.driver.progress, 3)
        return NotReady(
            f"the log is being recovered, {progress:.0%} done; try again soon",
            replay_progress=progress,
        )

    # -- how calls end -------------------------------------------------------------------------

    def go_on(self, call: Call, resume: Callable[[], Answer]) -> None:
        """Goes on with a call that was put off; `resume` answers as its handler would have."""
        try:
            answer = resume()
        except Poisoned as error:
            call.fail(self.failed(error))
        except Exception as error:
            call.fail(error)
        else:
            if answer is not PENDING:
                call.respond(answer)
            else:
                call.hold()

    def finish(
        self, call: Call, ticket: Ticket[T], answer: Callable[[T, LogTimes | None], Response]
    ) -> Answer:
        """Answers when the ticket has ended: with its result, and the log if it was waited for."""
        if ticket.error is not None:
            return response_to(ticket.error)
        if ticket.done:
            return answer(ticket.result, None)

        def ended(ticket: Ticket[T]) -> None:
            if ticket.error is None:
                call.respond(answer(ticket.result, self.driver.engine.log_times))
            else:
                call.fail(ticket.error)

        ticket.callback = ended
        self.driver.flush_soon()
        return PENDING

    def reading(
        self, call: Call, read: Callable[[], Answer], again: Callable[[], Answer] | None = None
    ) -> Answer:
        """Answers with `read`, repeated until the cold store has given all that it misses.

        `again` takes the place of one that can not be repeated.
        """
        try:
            return read()
        except ColdMiss as miss:
            return self.fetch(call, miss, again or read)

    def reading_slices(
        self, call: Call, begin: Callable[[], Steps[T]], answer: Callable[[T], Answer]
    ) -> Answer:
        """As `reading`, for a read in pieces: a slice of them at a time, others in between.

        It begins anew when the cold store has given what it missed, and is given up when its client
        goes: not at once, for a client that has nothing more to say may still listen. It begins at
        once: what a client sends behind it is not to be seen by it.
        """
        return self.reading(call, partial(self._slice, call, begin, answer))

    def in_slices(
        self, call: Call, begin: Callable[[], Steps[T]], answer: Callable[[T], Answer]
    ) -> Answer:
        """Answers with what the steps come to, which read nothing: one call after the other."""
        more = self._slices.stay
        self._slices.line_up(partial(self._next_slice, call, begin, answer, more=more))
        return PENDING

    def _slice(
        self,
        call: Call,
        begin: Callable[[], Steps[T]],
        answer: Callable[[T], Answer],
        steps: Steps[T] | None = None,
        more: Callable[[Callable[[], None]], None] | None = None,
    ) -> Answer:
        steps = begin() if steps is None else steps
        stop_s = self._slices.stop_s()
        try:
            next(steps)
            while monotonic() < stop_s:
                next(steps)
        except StopIteration as done:
            return answer(done.value)
        if perf_counter() >= call.began_s + STAYS_S:
            call.mind_leaving()
        more = more or self._slices.add
        more(partial(self._next_slice, call, begin, answer, steps, more))
        return PENDING

    def _next_slice(
        self,
        call: Call,
        begin: Callable[[], Steps[T]],
        answer: Callable[[T], Answer],
        steps: Steps[T] | None = None,
        more: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        if not call.is_gone:
            again = partial(self._slice, call, begin, answer)
            self.go_on(call, partial(self.reading, call, partial(again, steps, more), again))

    def rendering(self, call: Call, render: Callable[[], Response]) -> Answer:
        """Answers with what `render` makes, in a thread: it touches nothing that changes."""
        return self.beside(call, render, _itself)

    def beside(self, call: Call, work: Callable[[], T], resume: Callable[[T], Answer]) -> Answer:
        """Does `work` in a thread, and answers on the loop with `resume` of what it came to."""

        def ended(done: Future[T]) -> None:
            if done.cancelled() or call.is_gone:
                return
            error = done.exception()
            if error is None:
                self.go_on(call, partial(resume, done.result()))
            else:
                call.fail(error)

        self._rendering.do(work, ended)
        return PENDING

    def fetch(self, call: Call, miss: ColdMiss, read: Callable[[], Answer]) -> Answer:
        """As `reading`, for a read that has missed something; given up when its client goes."""
        call.mind_leaving()
        self.driver.fetch(miss, partial(self._fetched, call, read))
        return PENDING

    def _fetched(self, call: Call, read: Callable[[], Answer], error: BaseException | None) -> None:
        if call.is_gone:
            return
        if error is not None:
            call.fail(error)
        else:
            self.go_on(call, partial(self.reading, call, read))

    def failed(self, error: Poisoned) -> OutcomeUnknown:
        """Ends the server, which can not write any more; what its callers are told of it."""
        self.driver.fail(error)
        return OutcomeUnknown(
            "storage failed, and the server ends to recover; retry when it is back"
        )


def _none() -> int:
    return 0


def _itself(response: Response) -> Answer:
    return response
