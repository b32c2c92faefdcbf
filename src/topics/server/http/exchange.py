"""The answering half of a connection: every request gets its answer, in order, within bounds."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from topics.errors import Closed
from topics.server.http.errors import LOG, internal_response
from topics.server.http.gathered_body import LOOP_BYTES_MAX, Decoding, Gunzip, is_gzip
from topics.server.http.hub import Hub
from topics.server.http.line import Line
from topics.server.http.message import (
    OK_HEAD,
    PENDING,
    Answer,
    Handler,
    Judge,
    Request,
    Response,
    gzipped,
    plain,
    plain_head,
    render,
    wants_gzip,
)
from topics.server.http.sockets import has_hung_up
from topics.types import Payload


class RequestHub(Hub, Protocol):
    """A server that answers requests. `tail` ends the head of every answer."""

    handler: Handler
    judge: Judge
    request_type: type[Request]
    decoding: Decoding
    tail: bytes


class Exchange(Line):
    """Starts requests, collects their answers, writes them, ends the connection.

    `_is_last` means that nothing more is taken from the input: the connection ends when what was
    taken has been answered. `_is_due` means that `_settle` has something to look at.
    """

    __slots__ = (
        "_answered_at", "_gzip_bytes_min", "_handler", "_has_eof", "_is_due", "_is_feeding",
        "_is_last", "_leftover", "_request",
    )  # fmt: skip

    server: RequestHub

    def __init__(self, server: RequestHub) -> None:
        super().__init__(server)
        self._handler = server.handler
        self._request = server.request_type
        self._gzip_bytes_min = server.limits.gzip_bytes_min
        self._leftover = b""
        # The client has closed its half, and waits for its answers.
        self._has_eof = False
        # Answers of this read are gathered; they are written when it has been parsed.
        self._is_feeding = False
        self._is_last = False
        self._is_due = False
        # When a pending request was last answered; idleness begins no earlier.
        self._answered_at = 0.0

    # -- starting ----------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        """Calls the handler, and takes its answer or keeps the request's place for it."""
        if request.is_plain or self._decode(request):
            self._conclude(request, self._call_handler(request))

    def _conclude(self, request: Request, answer: Answer) -> None:
        """What a handler returned."""
        if answer is PENDING:
            if request.output is None or self._queue:
                self._queue.append(request)
                if request.successor is not None:
                    self._is_last = self._is_due = True
            else:
                self._emit(request.output)
            return
        if not self._queue:
            data = self._plain(request, answer)
            if data is not None:
                self._out.append(data)
                self._out_bytes += len(data)
                if self._out_bytes > self._limits.out_bytes_max:
                    self._flush()
                return
        self._answer(request, answer)

    def _call_handler(self, request: Request) -> Answer:
        if self.server.is_draining:
            if self._backlog is None:
                request.is_keep_alive = request.is_plain = False
                self._is_last = self._is_due = True
            return self._refused(request, Closed("the server is shutting down; try again"))
        try:
            found = request.head.found
            if found is None:
                answer = self._handler(request)
            else:
                answer = found[0](request, found[1])
            if answer is PENDING:
                return PENDING
            if type(answer) is not Response or request.output is not None:
                raise TypeError(f"a handler returned {answer!r}")
            return answer
        except Exception as error:
            if request.output is not None:
                # It was answered before it failed: that answer stands.
                LOG.error("a handler failed after its answer", exc_info=error)
                return PENDING
            if request.successor is not None:
                request.successor.abandon()
                request.successor = None
            return self._refused(request, error)

    def _decode(self, request: Request) -> bool:
        """Decodes the body; False when it was answered, or will be started, elsewhere.

        Decoding costs more than reading: it is done for those only who may send a body here.
        """
        coding = request.headers.get(b"content-encoding")
        if coding is None or not request.body:
            return True
        try:
            if not self.server.judge(request, True) or not is_gzip(coding):
                return True
            gunzip = Gunzip(request.body, self._limits.body_bytes_max)
            body = gunzip.run(LOOP_BYTES_MAX)
        except Exception as error:
            self._answer(request, self._refused(request, error))
            return False
        if body is not None:
            request.body = body
            return True
        self._queue.append(request)
        self._is_blocked = True
        self.server.decoding.start(gunzip, partial(self._decoded, request))
        return False

    def _decoded(self, request: Request, work: asyncio.Future[bytes | None]) -> None:
        self._is_blocked = False
        error = work.exception()
        if self._transport is None:
            return
        if error is not None:
            self.deliver(request, self._refused(request, error))
            return
        request.body = work.result() or b""
        self.handle_now(request)

    def handle_now(self, request: Request) -> None:
        """Calls the handler of a request that has kept its place for it."""
        answer = self._call_handler(request)
        if answer is not PENDING:
            self.deliver(request, answer)
            return
        if request.successor is not None:
            self._is_last = self._is_due = True
        self._advance()

    # -- answering ---------------------------------------------------------------------------

    def _answer(self, request: Request, response: Response) -> None:
        """The answer of a request that is not in the queue."""
        output = self._render(request, response)
        if output is not None and not self._queue:
            self._emit(output)
            return
        self._queue.append(request)
        self._wait_in_line(request, output)

    def deliver(self, request: Request, response: Response) -> None:
        """The answer of a pending request."""
        if self._transport is None:
            return
        assert request.output is None, "a request has one answer"
        self._answered_at = self.server.now
        data = self._plain(request, response)
        output = self._render(request, response) if data is None else (data,)
        if self._queue and self._queue[0] is not request:
            self._wait_in_line(request, output)
        else:
            request.output = output
            if self._queue and output is not None:
                self._advance()

    def deliver_json(self, request: Request, body: bytes) -> None:
        """`deliver` of 200 and JSON, at once where nothing else is on its way: most are so."""
        queue, transport, server = self._queue, self._transport, self.server
        if (
            transport is not None
            and len(queue) == 1
            and queue[0] is request
            and self._backlog is None
            and not self._out
            and not self._is_due
        ):
            data = plain(request, OK_HEAD, body, server.tail, self._gzip_bytes_min)
            if data is not None:
                self._answered_at = server.now
                queue.clear()
                transport.write(data)
                return
        self.deliver(request, Response(body))

    def _plain(self, request: Request, response: Response) -> bytes | None:
        head, least = plain_head(response), self._gzip_bytes_min
        return plain(request, head, response.body, self.server.tail, least)

    def _render(self, request: Request, response: Response) -> tuple[Payload, ...] | None:
        """The bytes of an answer, or None when a thread is still compressing it."""
        limits = self._limits
        if wants_gzip(request, response, limits.gzip_bytes_min):
            if response.size_bytes > limits.gzip_thread_bytes:
                work = self.server.loop.run_in_executor(None, gzipped, response)
                work.add_done_callback(lambda done: self._compressed(request, done))
                return None
            response = gzipped(response)
        is_last = not request.is_keep_alive
        try:
            return render(request, response, self.server.tail, is_last=is_last)
        except ValueError as error:
            request.extra = ()
            return render(request, internal_response(error), self.server.tail, is_last=is_last)

    def _compressed(self, request: Request, work: asyncio.Future[Response]) -> None:
        error = work.exception()
        self.deliver(request, work.result() if error is None else internal_response(error))

    def _conclude_turn(self) -> None:
        """Sends what there is, ends what is over, reads on when nothing waits to begin."""
        queue = self._queue
        if self._is_feeding:
            return
        if self._out:
            if queue and queue[0].successor is None:
                # More answers of this connection may follow in this turn: one write for all.
                self.server.turn_end.defer(self._flush)
            else:
                self._flush()
        if self._is_due:
            self._settle()
        if self._backlog is None:
            if self._has_body_entered:
                self._leave_body()
            self._resume_reading()

    def _end_read(self) -> None:
        """What a read has brought has been started: its answers leave together."""
        self._is_feeding = False
        if self._out:
            self._flush()
        if self._is_due:
            self._settle()

    # -- ending ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """What waits for the queue to empty: a takeover or the end."""
        if self._queue:
            request = self._queue[0]
            if request.successor is not None and not self._is_blocked:
                self._hand_over(request)
            return
        if self._is_last and self._backlog is None and not self._is_portioned:
            if self._has_eof:
                # Nothing more comes that a close could answer with a reset.
                self._is_lingering = False
            self._end()

    def _hand_over(self, request: Request) -> None:
        transport, successor = self._transport, request.successor
        assert transport is not None
        assert successor is not None
        self._flush_whole()
        self._resume_reading()
        self._queue.pop(0)
        for waiting in self._everything():
            waiting.abandon()
        leftover, self._leftover = self._leftover + self._rest(), b""
        self._transport = None
        self._forget()
        self._leave_body()
        self.server.unsent.leave(self)
        self.server.replace(self, successor)
        transport.set_protocol(successor)
        successor.begin(transport, is_paused=self._is_paused)
        if leftover:
            successor.data_received(leftover)
        if self._has_eof and not successor.eof_received():
            transport.close()
        elif self.server.is_draining:
            successor.drain()

    def drain(self) -> None:
        """Ends when what was taken has been answered; at once when that is nothing."""
        everything = self._everything()
        if everything:
            everything[-1].is_keep_alive = everything[-1].is_plain = False
        elif not self._is_idle():
            return
        self._is_last = self._is_due = True
        self._settle()

    def _is_idle(self) -> bool:
        """Whether no request is on its way in."""
        return True

    def _rest(self) -> bytes:
        """Input that came after the last request and was not looked at."""
        return b""

    def _forget(self) -> None:
        """Lets go of what only a connection with a future needs."""

    def scan(self, now: float) -> None:
        super().scan(now)
        if self._transport is None or (self._is_reading and not self._has_eof):
            return
        if any(request.on_abandoned for request in self._queue) and has_hung_up(self._transport):
            # As if its end were read now: it was not, or nobody waited yet to hear of it.
            self.abort()

    # -- asyncio.Protocol --------------------------------------------------------------------

    def eof_received(self) -> bool:
        """The client sends no more: it has left, or it only waits for its answers.

        The two look alike. A request that wants to know takes it as left, any other is answered.
        """
        self._flush_whole()
        everything = self._everything()
        # Over TLS nothing can be sent to a client that has closed its half.
        is_whole = self._transport is not None and not self._transport.can_write_eof()
        if is_whole or not everything or any(request.on_abandoned for request in everything):
            return False
        self._is_last = self._is_due = self._has_eof = True
        return True

    def resume_writing(self) -> None:
        if not self._resumes_later() and not self._is_feeding:
            self._advance()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.server.leave(self)
        self._transport = None
        self._recall()
        self._forget()
        self.server.unsent.leave(self)
        everything = self._everything()
        self._queue, self._backlog, self._out, self._queued = [], None, [], {}
        self._leave_body()
        for request in everything:
            request.abandon()
