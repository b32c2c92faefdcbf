"""A server that answers what a test tells it to, one line of the script for each request."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

# The head of a stream whose bytes never come.
SILENT = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# A script's line: bytes to answer with; b"" ends the connection without an answer.
Line = bytes


def answer(status: int, body: bytes = b"{}", **headers: str) -> Line:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *lines])
    return head.encode() + b"\r\n\r\n" + body


def refusal(status: int, code: str, **headers: str) -> Line:
    return answer(status, b'{"error":{"code":"%b","message":"no"}}' % code.encode(), **headers)


def is_cut(line: Line) -> bool:
    """Whether an answer is shorter than it says."""
    head, found, body = line.partition(b"\r\n\r\n")
    length = head.decode().partition("Content-Length: ")[2].partition("\r\n")[0]
    return not found or len(body) < int(length or 0)


@dataclass
class Scripted:
    """Listens until it is closed; `requests` are the heads and bodies that came."""

    script: Sequence[Line]
    requests: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._lines = list(self.script)
        threading.Thread(target=self._accept, daemon=True).start()

    def keys(self) -> list[str]:
        """The idempotency key of each request; empty where there was none."""
        return [
            next((line.partition(": ")[2] for line in head.split("\r\n")
                  if line.lower().startswith("idempotency-key")), "")
            for head, _ in self.requests
        ]  # fmt: skip

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        # A client may leave in the middle of anything, and a reset is how some of them do.
        with peer, peer.makefile("rb") as asked, contextlib.suppress(OSError):
            while self._is_answered(peer, asked):
                pass

    def _is_answered(self, peer: socket.socket, asked: BinaryIO) -> bool:
        """Answers one request; whether another may follow on this connection."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = asked.readline()
            if not line:
                return False
            head += line
        text = head.removesuffix(b"\r\n\r\n").decode()
        length = next(
            (int(line.partition(":")[2]) for line in text.split("\r\n")
             if line.lower().startswith("content-length")), 0,
        )  # fmt: skip
        body = asked.read(length)
        if len(body) < length:
            return False
        self.requests.append((text, body))
        # Whoever asks for more than was written is cut off.
        answered = self._lines.pop(0) if self._lines else b""
        peer.sendall(answered)
        return bool(answered) and not is_cut(answered)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
