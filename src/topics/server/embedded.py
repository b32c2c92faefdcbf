"""The server without a door: its routes, on a loop in a thread of this process, for callers here.

What is asked goes through the same application as a request of HTTP, with the same checks, limits
and answers; only the bytes of the protocol are left out. The thread is the one that touches the
engine, from recovery to the end, so callers may be in any other. A process that is killed leaves
what a killed server leaves; `close` ends in order, with everything on the disk.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import uvloop

from topics.engine.engine import Engine
from topics.errors import Closed, Unreachable
from topics.server.api.call import Call
from topics.server.app import App
from topics.server.config import Config
from topics.server.http.connections import HttpServer
from topics.server.http.errors import body_too_large, response_to, target_too_long
from topics.server.http.limits import HttpLimits
from topics.server.http.message import JSON, PENDING, Head, Request, Response
from topics.server.http.pipe import PEER, Pipe, Taker
from topics.storage.fs import AnyPath, Fs

# A server without keys answers to names of this machine only.
HOST = b"localhost"
# Heads that were resolved before. Forgotten all at once: hot ones are back after one call.
HEADS_MAX = 4096
GRACE_S = 1.0

KEY = "Idempotency-Key"


class Embedded:
    """One data directory, open from `start` to `close`; both, and `ask`, from any thread."""

    def __init__(self, config: Config, directory: AnyPath, *, fs: Fs | None = None) -> None:
        self._config = config
        self._directory = directory
        self._fs = fs
        # A child of a fork has the object, and not the thread.
        self._pid = os.getpid()
        self.loop: asyncio.AbstractEventLoop
        self.app: App
        self.server: HttpServer
        self._stop: asyncio.Future[None]
        self._heads: dict[tuple[str, str, str], Head] = {}
        self._asked: deque[Visit] = deque()
        self._is_woken = False
        # Why nothing can be asked any more.
        self._ended: BaseException | None = None
        # Done when calls are answered, and when the directory has been let go of.
        self.opened: Future[None] = Future()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics-engine", daemon=True)

    def has_ended(self) -> bool:
        return self._ended is not None or self._is_elsewhere()

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._pid

    # -- for any thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Begins to open the directory; `opened` tells when it is, or why it can not be."""
        self._thread.start()

    def close(self) -> None:
        """Ends what waits, makes everything durable and lets go of the directory."""
        if self._is_elsewhere():
            return
        if self.opened.exception() is None:
            self.call(self._end)
        self._over.wait()

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        taker: Taker,
    ) -> Visit:
        """Carries one request to its handler. The taker is told from the engine's thread.

        Raises Unreachable when nothing can be asked any more.
        """
        if self.has_ended():
            raise self.gone(sent=False)
        visit = Visit(self, (method, target, headers, body), taker)
        self._asked.append(visit)
        if not self._is_woken:
            self._is_woken = True
            self.call(self._take)
        if self.has_ended():
            # The last look at what was asked may be over.
            self.call(self._take)
        return visit

    def listen(self, host: str, port: int) -> int:
        """Opens a door after all, for tests; returns the port."""
        return asyncio.run_coroutine_threadsafe(self.server.listen(host, port), self.loop).result()

    def call(self, callback: Callable[[], None]) -> None:
        """Calls in the engine's thread, soon; not when that has ended."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop has ended: what was asked too late has no answer.
            self._refuse_rest()

    def gone(self, *, sent: bool) -> Unreachable:
        """Why there is no answer; `sent` is whether it may have been done."""
        why = "" if isinstance(self._ended, Closed) else f": {self._ended}"
        if self._is_elsewhere():
            why = f": it belongs to process {self._pid}, which this one was forked from"
        return Unreachable(f"the log in this process is closed{why}", sent=sent, closed=True)

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self._ended = self._ended or error
            if not self.opened.done():
                self.opened.set_exception(error)
        finally:
            self._refuse_rest()
            self._over.set()

    async def _main(self) -> None:
        config = self._config
        self.loop = asyncio.get_running_loop()
        self._stop = self.loop.create_future()
        app = self.app = App(config)
        bytes_max = config.settings.max_body_bytes
        limits = HttpLimits(body_bytes_max=bytes_max, message_bytes_max=bytes_max)
        server = self.server = app.http_server(limits)
        steps: Generator[float, None, Engine] = Engine.opening(
            self._directory, settings=config.settings, fs=self._fs
        )
        services = app.services
        services.on_opened.append(lambda _engine: self.opened.set_result(None))
        services.start(server, steps)
        failed = services.driver.failed
        try:
            ends: set[asyncio.Future[Any]] = {self._stop, failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                self._ended = failed.result()
                raise self._ended
        finally:
            services.drain()
            await server.shutdown(GRACE_S)
            services.close()

    def _end(self) -> None:
        if not self._stop.done():
            self._ended = Closed("closed")
            self._take()
            self._stop.set_result(None)

    def _take(self) -> None:
        """Starts what was asked since the last turn: one group, as what arrives on sockets."""
        self._is_woken = False
        while self._asked:
            self._asked.popleft().start()

    def _refuse_rest(self) -> None:
        while self._asked:
            self._asked.popleft().refuse()

    def head_of(self, method: str, target: str, headers: Mapping[str, str]) -> Head:
        """The head of a request; the same one again where nothing but its key differs."""
        accept = headers.get("Accept", "*/*")
        place = (method, target, accept)
        head = self._heads.get(place)
        if head is None:
            named = {b"host": HOST, b"accept": accept.encode(), b"content-type": JSON.encode()}
            head = Head(method, target.encode(), named)
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            self._heads[place] = head
        return head


class Visit:
    """One request, in the place of the connection that it would have come on (`message.Line`)."""

    __slots__ = ("_asked", "_call", "_embedded", "_pipe", "_taker", "is_gone", "server", "slot")

    def __init__(
        self,
        embedded: Embedded,
        asked: tuple[str, str, Mapping[str, str] | None, bytes | None],
        taker: Taker,
    ) -> None:
        self._embedded = embedded
        self._asked = asked
        self._taker = taker
        self._call: Call | None = None
        self._pipe: Pipe | None = None
        self.server = embedded.server
        # Nobody waits for the answer any more, or it was given.
        self.is_gone = False
        # Counted by the server while its answer is on its way.
        self.slot = -1

    @property
    def peer(self) -> str:
        return PEER

    # -- for whoever asked, in any thread ----------------------------------------------------

    def leave(self) -> None:
        """Nobody waits any more: as if the client had closed its connection."""
        self._embedded.call(self._leave)

    def took(self, size: int) -> None:
        """So much of a stream has been taken."""
        pipe = self._pipe
        if pipe is not None:
            self._embedded.call(partial(pipe.took, size))

    # -- the engine's thread -----------------------------------------------------------------

    def start(self) -> None:
        if self.is_gone:
            return
        if self.server.is_draining:
            self.refuse()
            return
        method, target, headers, body = self._asked
        limits = self.server.limits
        try:
            if len(target) > limits.target_bytes_max:
                raise target_too_long(limits.target_bytes_max)
            head = self._embedded.head_of(method, target, headers or {})
            # Streams as HTTP/1.0 has them: without chunks, until the connection closes.
            call = self._call = Call(self, head, body or b"", is_http10=True)
            if headers is not None:
                call.own_key = headers.get(KEY, "").encode()
            if body is not None and len(body) > limits.body_bytes_max:
                self._embedded.app.judge(call, True)
                raise body_too_large(limits.body_bytes_max)
        except Exception as error:
            self._answer(self._refused(error))
            return
        self.handle_now(call)

    def handle_now(self, request: Request) -> None:
        found = request.head.found
        try:
            if found is None:
                answer = self._embedded.app(cast(Call, request))
            else:
                answer = found[0](request, found[1])
        except Exception as error:
            if request.successor is not None:
                request.successor.abandon()
                request.successor = None
            answer = self._refused(error)
        if answer is not PENDING:
            self.deliver(request, answer)
        elif request.successor is not None:
            self._pipe = Pipe(request.successor, self._taker)
            self._leave_server()
            self.server.join(request.successor)
            request.successor.begin(self._pipe, is_paused=False)
        elif self.slot < 0 and not self.is_gone:
            self.server.join(self)

    def _refused(self, error: Exception) -> Response:
        response = response_to(error)
        if self._call is not None:
            self._embedded.app.refused(self._call, error, response.status)
        return response

    def deliver(self, request: Request, response: Response) -> None:
        if not self.is_gone:
            request.output = ()
            self._answer(response)

    def deliver_json(self, request: Request, body: bytes) -> None:
        if not self.is_gone:
            request.output = ()
            self._go()
            self._taker.answered(200, body, None)

    def _answer(self, response: Response) -> None:
        self._go()
        body = b"".join((response.body, *response.pieces)) if response.pieces else response.body
        headers = dict(response.headers) if response.headers else {}
        self._taker.answered(response.status, body, headers.get("Retry-After"))

    def _go(self) -> None:
        self.is_gone = True
        self._leave_server()

    def _leave_server(self) -> None:
        if self.slot >= 0:
            self.server.leave(self)
            self.slot = -1

    def refuse(self) -> None:
        """It was never begun, and never will be."""
        if not self.is_gone:
            self.is_gone = True
            self._taker.failed(self._embedded.gone(sent=False))

    def _leave(self) -> None:
        if self._pipe is not None:
            self._pipe.abort()
        elif not self.is_gone:
            self._go()
            if self._call is not None:
                self._call.abandon()

    # -- http.hub.Connection -----------------------------------------------------------------

    def scan(self, now: float) -> None:
        """Answers are waited for as long as they take."""

    def drain(self) -> None:
        """What was begun is answered."""

    def abort(self) -> None:
        if not self.is_gone:
            self._leave()
            self._taker.failed(self._embedded.gone(sent=True))
