"""Requests whose heads came before: no parsing, and their bodies are gathered as they come.

A client that stays sends the same head again and again. llhttp stays the judge of what is HTTP: a
head is learnt only from reads that it took as one whole plain request and nothing else, and the
same bytes at the same place mean the same again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from topics.server.http.exchange import Exchange, RequestHub
from topics.server.http.gathered_body import Parts
from topics.server.http.message import PENDING, Head

# Where a connection's input stands.
IDLE, HEAD, BODY = 0, 1, 2
HEADS_MAX = 1024
HEAD_BYTES_MAX = 1024


class KnownHeads:
    """Forgotten all at once when there are too many: hot ones are back after one request."""

    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: dict[bytes, Head] = {}

    def learn(self, raw: bytes, head: Head, body_bytes: int) -> None:
        """Keeps a head, unless there is a secret in it: keys are in memory as hashes only."""
        if len(raw) > HEAD_BYTES_MAX:
            return
        if b"authorization" in head.headers or b"token" in head.query:
            return
        head.body_bytes = body_bytes
        if len(self.heads) >= HEADS_MAX:
            self.heads.clear()
        self.heads[raw] = head


class HeadsHub(RequestHub, Protocol):
    """A server that knows the heads that came before."""

    known_heads: KnownHeads


class Repeated(Exchange):
    """The short way in."""

    __slots__ = (
        "_awaited", "_body_bytes", "_known", "_learning", "_missing_bytes", "_parts", "_phase",
        "_plain_head", "_since",
    )  # fmt: skip

    server: HeadsHub

    def __init__(self, server: HeadsHub) -> None:
        super().__init__(server)
        self._known = server.known_heads.heads
        self._phase = IDLE
        # When the phase began, on the server's coarse clock.
        self._since = server.now
        self._body_bytes = 0
        # A known head whose body has not come whole yet.
        self._awaited: Head | None = None
        self._parts: bytes | Parts = b""
        self._missing_bytes = 0
        # The head of the first plain request that this read completed.
        self._plain_head: Head | None = None
        # The bytes of a head that began a read and whose body goes on in the next ones.
        self._learning = b""

    def data_received(self, data: bytes) -> None:
        """Takes a known head and its body, or a part of that; anything else is parsed."""
        if self._awaited is not None:
            self._gather(self._awaited, data)
            return
        if self._phase == IDLE and not self._is_last:
            end = data.find(b"\r\n\r\n") + 4
            known = self._known.get(data[:end])
            if known is not None:
                missing = known.body_bytes - (len(data) - end)
                if missing == 0:
                    self._receive(known, data[end:])
                    return
                if missing > 0 and self._is_awaitable(known):
                    self._awaited, self._missing_bytes = known, missing
                    self._parts = data[end:]
                    self._phase, self._since = BODY, self.server.now
                    self._body_bytes = 0
                    self._grew(len(data) - end)
                    return
        self._parse(data)

    @abstractmethod
    def _parse(self, data: bytes) -> None:
        """The long way in."""

    @abstractmethod
    def _is_awaitable(self, known: Head) -> bool:
        """Whether the rest of a body is worth waiting for; if not, the long way finds out why."""

    @abstractmethod
    def _grew(self, size: int) -> None:
        """A body has grown and is not whole yet."""

    def _gather(self, head: Head, data: bytes) -> None:
        missing, parts = self._missing_bytes, self._parts
        if len(data) < missing:
            if isinstance(parts, bytes):
                parts = self._parts = Parts(parts)
            parts.add(data)
            self._missing_bytes -= len(data)
            self._grew(len(data))
            return
        self._awaited, self._parts, self._phase = None, b"", IDLE
        if isinstance(parts, bytes):
            body = parts + data[:missing]
        else:
            parts.add(data[:missing])
            body = parts.joined()
        self._receive(head, body)
        if self._has_body_entered and self._backlog is None:
            self._leave_body()
        if len(data) > missing:
            self.data_received(data[missing:])

    def _receive(self, head: Head, body: bytes) -> None:
        """One whole request."""
        self._since = self.server.now
        request = self._request(self, head, body)
        self._is_feeding = True
        if self._queue or self._is_paused or self._backlog is not None:
            self._line_up(request)
        else:
            answer = self._call_handler(request)
            if answer is PENDING and request.output is None and request.successor is None:
                self._queue.append(request)
            else:
                self._conclude(request, answer)
        if self._out or self._is_due:
            self._end_read()
        else:
            self._is_feeding = False

    def _learn(self, data: bytes, is_start: bool, body_bytes_before: int) -> None:
        """Learns from a read that has just been parsed."""
        head, self._plain_head = self._plain_head, None
        raw, self._learning = self._learning, b""
        if is_start:
            raw = data[: data.find(b"\r\n\r\n") + 4]
            body_bytes_before = -len(raw)
        if self._phase == BODY:
            # Kept in mind until the body is whole, if this is all there was.
            is_one = head is None and self._body_bytes == body_bytes_before + len(data)
            self._learning = raw if is_one else b""
        elif self._phase == IDLE and head is not None and raw:
            length = int(head.headers.get(b"content-length", b"0"))
            if body_bytes_before + len(data) == length:
                self.server.known_heads.learn(raw, head, length)
