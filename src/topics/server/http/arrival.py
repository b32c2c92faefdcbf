"""A request on its way in: its head is judged before its body is read, and both in shares.

What the head alone decides is answered as soon as it is there: the client need not send the body,
and we do not keep it. A body that spans reads is entered in the ledger of all of them, and one that
nobody will look at is not kept at all. One that came whole in its read passes without any of this.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING

from topics.errors import Closed, Throttled, TopicsError
from topics.server.http import general_head
from topics.server.http.errors import RequestTimeout, refusal_of
from topics.server.http.gathered_body import is_gzip
from topics.server.http.intake import Intake
from topics.server.http.known_heads import BODY, HEAD, IDLE, HeadsHub, Repeated
from topics.server.http.message import Head, Request

if TYPE_CHECKING:
    from httptools import HttpRequestParser

# What is parsed in one go where requests are expected: some dozens of the smallest ones.
PIECE_BYTES = 4 * 1024
# What is held of a smaller body is little, for as many connections as there may be.
ENTERED_BYTES_MIN = 4 * 1024

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})", re.IGNORECASE)
# What a client sends first that speaks HTTP/2 without having asked.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Arrival(Repeated):
    """`_is_judged`: the body may come. `_is_wanted`: somebody will look at it."""

    __slots__ = (
        "_extra", "_intake", "_is_judged", "_is_wanted", "_judged", "_moved_at", "_parser",
    )  # fmt: skip

    def __init__(self, server: HeadsHub) -> None:
        super().__init__(server)
        self._parser: HttpRequestParser | None = None
        # Made when a read is larger than a piece.
        self._intake: Intake | None = None
        self._is_judged = False
        # The request that was judged: what was found out about it need not be found out again.
        self._judged: Request | None = None
        self._is_wanted = True
        # Headers that a refusal of this request has.
        self._extra: tuple[tuple[str, str], ...] = ()
        # When a body last brought something.
        self._moved_at = 0.0

    @abstractmethod
    def _parse_piece(self, data: bytes) -> None:
        """Gives a part of the input to the parser, and starts what it completes."""

    @abstractmethod
    def _arriving(self) -> tuple[Request, str]:
        """The request whose body is on its way, without it, and its version."""

    @abstractmethod
    def _refuse(self, error: TopicsError) -> None:
        """Answers in turn with an error, and takes nothing more from this connection."""

    # -- shares ------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        if len(data) <= PIECE_BYTES or (self._phase == IDLE and data.startswith(PREFACE)):
            self._parse_piece(data)
        else:
            intake = self._intake or Intake(
                self.server.loop, self.server.slices, end_of=self._end_of,
                take=self._parse_piece, is_held=self._is_input_held, behind=self._behind,
            )  # fmt: skip
            self._intake = intake
            intake.feed(data)
            if intake.is_behind:
                return
        if self._phase == BODY:
            self._await_body()

    def _end_of(self, data: bytes, at: int) -> int:
        left = len(data) - at
        if left <= PIECE_BYTES:
            return len(data)
        if at == 0 and self._phase == IDLE and _is_one_request(data):
            return len(data)
        return at + min(left, max(PIECE_BYTES, self._missing()))

    @abstractmethod
    def _missing(self) -> int:
        """How much is missing of a body whose length is known; 0 otherwise."""

    def _is_input_held(self) -> bool:
        return self._backlog is not None or (self._is_last and self._parser is not None)

    def _behind(self, is_behind: bool) -> None:
        if is_behind:
            self._pause_reading()
            return
        if self._phase == BODY:
            self._await_body()
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self._intake is not None and self._intake.is_behind:
            self._intake.go_on()
        else:
            super()._resume_reading()

    def _rest(self) -> bytes:
        return b"" if self._intake is None else self._intake.rest()

    def _forget(self) -> None:
        self._rest()
        # Each of them holds this connection.
        self._intake = self._parser = self._judged = None

    # -- bodies ------------------------------------------------------------------------------

    def _await_body(self) -> None:
        """A read has ended within a body that the parser gathers."""
        if self._parser is None or self._is_last:
            # Nobody will be answered any more.
            return
        if not self._is_judged:
            error = self._judge(*self._arriving())
            if error is not None:
                self._refuse(error)
                self._end_read()
                return
        self._enter()

    def _is_awaitable(self, known: Head) -> bool:
        self._is_wanted = True
        if self.server.is_draining:
            return False
        if not known.is_welcome:
            # One that is refused, or whose body nobody wants, is left to the parser.
            try:
                is_welcome = self.server.judge(self._request(self, known, b""), True)
            except Exception:
                return False
            if known.caller is not None:
                # How much its caller has on its way decides as well, each time.
                return is_welcome
            known.is_welcome = is_welcome
        return known.is_welcome

    def _grew(self, size: int) -> None:
        self._body_bytes += size
        self._enter()

    def _enter(self) -> None:
        """Enters what has come of a body with what has come of all others."""
        self._moved_at = self.server.now
        if self._is_wanted and self._body_bytes > ENTERED_BYTES_MIN:
            self._has_body_entered = True
            self.server.bodies.enter(self, self._body_bytes)

    def _judge(self, request: Request, version: str) -> TopicsError | None:
        """Why the body need not come; None when it may."""
        headers = request.headers
        # Of a body in chunks it is known only by its first byte that there is one.
        has_body = self._body_bytes > 0 or b"content-length" in headers
        try:
            if self.server.is_draining:
                raise Closed("the server is shutting down; try again")
            general_head.check_version(version, headers)
            general_head.resolve_target(request)
            self._is_wanted = self.server.judge(request, has_body)
            if self._is_wanted:
                is_gzip(headers.get(b"content-encoding", b""))
        except Exception as error:
            self._extra, self._judged = request.extra, request
            return refusal_of(error)
        self._is_judged = has_body
        self._judged = request if has_body else None
        return None

    def cut_body(self) -> None:
        if self._phase != BODY or self._transport is None:
            super().cut_body()
            return
        maximum = self._limits.inflight_body_bytes_max
        self._refuse(
            Throttled(
                "bodies on their way to this server hold as much as they may; try again",
                limit="max_inflight_body_bytes", max=maximum,
            )
        )  # fmt: skip
        self._settle()

    # -- life --------------------------------------------------------------------------------

    def scan(self, now: float) -> None:
        """Ends what has taken too long."""
        super().scan(now)
        limits = self._limits
        age = now - self._since
        if self._transport is None or self._ended_at:
            return
        if not self._is_reading:
            # We keep the client waiting, not it us.
            self._since = now
        elif self._phase == HEAD:
            if age > limits.head_s:
                self._time_out("head", limits.head_s)
        elif self._phase == BODY:
            allowed_s = limits.body_s + self._body_bytes / limits.body_bytes_per_s_min
            # What came fast may not be held for as long as it could have taken.
            if age > allowed_s or min(age, now - self._moved_at) > limits.body_s:
                self._time_out("body", limits.body_s)
        elif min(age, now - self._answered_at) > limits.idle_s and not self._queue:
            self._is_last = True
            self._end()

    def _time_out(self, part: str, limit_s: float) -> None:
        self._refuse(RequestTimeout(f"the request's {part} took longer than {limit_s:g} s"))
        self._settle()

    def _is_idle(self) -> bool:
        return self._phase == IDLE


def _is_one_request(data: bytes) -> bool:
    """Whether a read that begins with a head has the whole body of the length it gives, no more."""
    end = data.find(b"\r\n\r\n", 0, PIECE_BYTES) + 4
    length = _LENGTH.search(data, 0, max(end, 0))
    return length is not None and end + int(length[1]) == len(data)
