"""Calls over plain connections, in the caller's own thread: what `http://` needs, and no more.

The library of `transport` works in threads of its own, and waking them costs more than all else of
a small call; docs/client.md has the figures. TLS and proxies are left to it. Waiting here hears
signals.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from topics.client.incoming import Incoming, Place
from topics.client.options import Options
from topics.client.request import Reply, Request
from topics.client.transport import closed, no_answer
from topics.errors import Unreachable

RECEIVED_BYTES = 64 * 1024
# Connections that wait for another call; more are closed after theirs.
IDLE_MAX = 128


class Direct:
    """Blocking. May be used by many threads at once; a process that forks makes its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._place = Place(options)
        self._idle: list[_Line] = []
        # All there are, so that `close` ends calls that wait.
        self._lines: set[_Line] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def exchange(self, request: Request[Any]) -> Reply:
        """Sends once. Raises Unreachable when no answer came."""
        if self._closed.is_set():
            raise closed()
        line = self._line()
        try:
            reply = line.exchange(
                self._place.pieces(request), self._options.timeout_s + request.wait_s
            )
        except OSError as error:
            self._drop(line)
            raise no_answer(self._options, error, sent=True) from None
        except Unreachable as error:
            self._drop(line)
            raise no_answer(self._options, error.message, sent=True) from None
        except BaseException:
            self._drop(line)
            raise
        if line.incoming.keeps and len(self._idle) < IDLE_MAX:
            line.incoming.forget()
            self._idle.append(line)
            if self._closed.is_set():
                self.close()
        else:
            self._drop(line)
        return reply

    def _line(self) -> _Line:
        idle = self._idle
        while True:
            try:
                line = idle.pop()
            except IndexError:
                return self._connect()
            if self._closed.is_set():
                # Taken from under `close`, which ends it no more.
                self._drop(line)
                raise closed()
            if line.is_quiet():
                return line
            # The server has closed it meanwhile.
            self._drop(line)

    def _connect(self) -> _Line:
        place, options = self._place, self._options
        try:
            made = socket.create_connection((place.host, place.port), options.connect_timeout_s)
        except OSError as error:
            raise no_answer(options, error, sent=False) from None
        line = _Line(made)
        with self._lock:
            if not self._closed.is_set():
                self._lines.add(line)
                return line
        line.close()
        raise closed()

    def _drop(self, line: _Line) -> None:
        with self._lock:
            self._lines.discard(line)
        line.close()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            idle, self._idle = self._idle, []
            busy = self._lines.difference(idle)
            self._lines.clear()
        # Whoever takes one out of the list owns it: a call may be doing so right now.
        while idle:
            with suppress(IndexError):
                idle.pop().close()
        # Those who wait close their own.
        for line in busy:
            line.end()


class _Line:
    """One connection."""

    __slots__ = ("_poll", "_socket", "_timeout_s", "incoming")

    def __init__(self, made: socket.socket) -> None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = made
        self._timeout_s = -1.0
        self._poll = select.poll()
        self._poll.register(made, select.POLLIN)
        self.incoming = Incoming()

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer, its end included."""
        return not self._poll.poll(0)

    def exchange(self, pieces: tuple[bytes, ...], timeout_s: float) -> Reply:
        """Raises OSError, or Unreachable for what is no answer."""
        deadline_s = time.monotonic() + timeout_s
        if timeout_s != self._timeout_s:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
        failed = self._send(pieces)
        if len(pieces) > 1:
            # Sending it may have taken long, and is a part of the time.
            self._wait_at_most(deadline_s - time.monotonic())
        incoming, receive = self.incoming, self._socket.recv
        while True:
            try:
                data = receive(RECEIVED_BYTES)
            except OSError as error:
                raise failed or error from None
            if not data:
                reply = incoming.end()
                if reply is None:
                    raise failed or ConnectionResetError("the connection was closed")
                return reply
            incoming.feed(data)
            if incoming.reply is not None:
                return incoming.reply
            self._wait_at_most(deadline_s - time.monotonic())

    def _wait_at_most(self, left_s: float) -> None:
        if left_s <= 0:
            raise TimeoutError("it took too long")
        self._socket.settimeout(left_s)
        self._timeout_s = left_s

    def _send(self, pieces: tuple[bytes, ...]) -> OSError | None:
        """What went wrong: a server that refuses a body may have answered before it was sent."""
        try:
            for piece in pieces:
                self._socket.sendall(piece)
        except TimeoutError:
            raise
        except OSError as error:
            return error
        return None

    def end(self) -> None:
        """Wakes whoever waits for it. From any thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has ended already.

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        # Of a client that nobody has closed.
        self.close()
