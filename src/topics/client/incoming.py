"""HTTP/1.1 on a plain connection: the bytes of a request, and the answers that come back.

Parsing is httptools'. A connection carries one request at a time; what comes unasked for, or is not
HTTP, makes it useless.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

from topics.client.options import Options
from topics.client.request import JSON, Reply, Request
from topics.errors import Unreachable

# A larger body is sent by itself instead of being copied behind its head.
JOINED_BYTES_MAX = 64 * 1024


class Place:
    """Where a server is, and how requests to it begin."""

    def __init__(self, options: Options) -> None:
        parts = urlsplit(options.url)
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        own = f"Host: {parts.netloc}\r\nUser-Agent: topics-python\r\n"
        if options.token:
            own += f"Authorization: Bearer {options.token}\r\n"

        @lru_cache(maxsize=4096)
        def begin(method: str, path: str) -> bytes:
            return f"{method} {parts.path}{path} HTTP/1.1\r\n{own}".encode()

        self._begin = begin

    def pieces(self, request: Request[Any]) -> tuple[bytes, ...]:
        """The bytes of a request: in one piece, or a large body in a second one."""
        lines = self._begin(request.method, request.path)
        headers = request.headers
        if headers is None or "Accept" not in headers:
            lines += b"Accept: */*\r\n"
        if headers is not None:
            lines += "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
        body = request.body
        if body is None:
            return (lines + b"\r\n",)
        lines += b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (_JSON, len(body))
        return (lines + body,) if len(body) <= JOINED_BYTES_MAX else (lines, body)


_JSON = JSON.encode()


class Incoming:
    """The answers of one connection. `reply` is the answer that is whole, or None.

    Most answers begin with the very bytes of one before: those are not parsed again.
    """

    __slots__ = (
        "_has_head", "_has_length", "_is_begun", "_known_bytes", "_known_head", "_known_status",
        "_parser", "_parts", "_retry_after", "keeps", "reply",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        # The head of an answer that came in one piece, how long that was, and its status.
        self._known_head = b"\0"
        self._known_bytes = self._known_status = 0
        self.forget()

    def forget(self) -> None:
        """The answer was taken: the next one is another request's."""
        self.reply: Reply | None = None
        # Whether another request may be sent.
        self.keeps = False
        self._has_head = self._has_length = self._is_begun = False
        self._retry_after: str | None = None
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Raises Unreachable for what is no answer."""
        is_first = self.reply is None and not self._is_begun
        if is_first and len(data) == self._known_bytes and data.startswith(self._known_head):
            self.reply = Reply(self._known_status, data[len(self._known_head) :], None)
            self.keeps = True
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            raise Unreachable(f"an answer that is not HTTP: {error}") from None
        self._is_begun = True
        if is_first and self.reply is not None:
            self._learn(data, self.reply)

    def _learn(self, data: bytes, reply: Reply) -> None:
        size = len(data) - len(reply.body)
        is_whole = data.find(b"\r\n\r\n") + 4 == size
        if is_whole and self.keeps and self._has_length and reply.retry_after is None:
            self._known_head, self._known_bytes = data[:size], len(data)
            self._known_status = reply.status

    def end(self) -> Reply | None:
        """The connection has ended, and with it an answer that did not say its length."""
        if self.reply is None and self._has_head and not self._has_length:
            self._complete()
            self.keeps = False
        return self.reply

    # -- of httptools --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.reply is not None:
            # Nobody has asked for this one.
            self.keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" or name == b"transfer-encoding":
            self._has_length = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.reply is not None:
            return
        if self._parser.get_status_code() < 200:
            # Something on the way to the answer.
            self.forget()
            return
        self._complete()
        self.keeps = self._parser.should_keep_alive()

    def _complete(self) -> None:
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.reply = Reply(self._parser.get_status_code(), body, self._retry_after)
