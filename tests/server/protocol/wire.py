"""A client that trusts nothing: raw bytes out, strictly checked answers in."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

TIMEOUT_S = 8.0

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) ([A-Za-z -]+)")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ([\x20-\x7e\x80-\xff\t]*)")


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of the canonical error body, whose shape is checked."""
        content = msgspec.json.decode(self.body)
        assert set(content) == {"error"}
        assert set(content["error"]) - {"detail"} == {"code", "message"}
        return str(content["error"]["code"])

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Incomplete(Exception):
    """The bytes end within an answer."""


def parse_one(data: bytes, at: int) -> tuple[Answered, int]:
    """One answer at `at`; raises AssertionError where it is malformed."""
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        raise Incomplete
    status_line, *lines = data[at:end].split(b"\r\n")
    match = _STATUS.fullmatch(status_line)
    assert match, status_line
    headers: dict[str, str] = {}
    for line in lines:
        pair = _HEADER.fullmatch(line)
        assert pair, line
        name = pair[1].decode().lower()
        assert name not in headers or name == "vary", f"{name} twice"
        headers[name] = pair[2].decode("latin-1")
    status = int(match[1])
    at = end + 4
    if status < 200 or status in (204, 304):
        assert "content-length" not in headers
        return Answered(status, headers, b""), at
    if headers.get("transfer-encoding") == "chunked":
        assert "content-length" not in headers
        return Answered(status, headers, b""), at
    if "content-length" not in headers:
        assert headers.get("connection") == "close"
        return Answered(status, headers, b""), at
    if headers.get("x-method") == "HEAD":
        return Answered(status, headers, b""), at
    size = int(headers["content-length"])
    if len(data) < at + size:
        raise Incomplete
    return Answered(status, headers, data[at : at + size]), at + size


def parse_all(data: bytes) -> Iterator[Answered]:
    at = 0
    while at < len(data):
        answered, at = parse_one(data, at)
        yield answered


class Wire:
    """One TCP connection."""

    def __init__(self, port: int, *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Wire:
        self.socket.sendall(data)
        return self

    def request(self, method: str, target: str, body: bytes = b"", headers: str = "") -> Answered:
        self.send(message(method, target, body, headers))
        return self.answer()

    def answer(self) -> Answered:
        """The next answer on this connection."""
        while True:
            try:
                answered, end = parse_one(self.buffer, 0)
            except Incomplete:
                assert self.more(), f"the connection ended within {self.buffer!r}"
                continue
            self.buffer = self.buffer[end:]
            return answered

    def more(self) -> bool:
        """Waits for more bytes; False at the end."""
        data = self.socket.recv(1 << 18)
        self.buffer += data
        return bool(data)

    def until(self, ending: bytes) -> bytes:
        """Bytes up to and including `ending`."""
        while ending not in self.buffer:
            assert self.more(), f"the connection ended before {ending!r}: {self.buffer!r}"
        found, _, self.buffer = self.buffer.partition(ending)
        return found + ending

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while self.more():
            pass
        rest, self.buffer = self.buffer, b""
        return rest

    def is_closed(self) -> bool:
        """Whether the server ended the connection, with nothing left to read."""
        try:
            return self.rest() == b""
        except ConnectionResetError:
            return True


def message(method: str, target: str, body: bytes = b"", headers: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}{headers}\r\n"
    return head.encode("latin-1") + body


def eventually(check: Callable[[], bool]) -> None:
    """Waits until something is true; fails when it takes seconds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)
