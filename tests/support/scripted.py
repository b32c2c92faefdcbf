"""A server that answers what a test tells it to, one line of the script for each request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

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
        buffer = b""
        with peer:
            while True:
                while b"\r\n\r\n" not in buffer:
                    part = peer.recv(65536)
                    if not part:
                        return
                    buffer += part
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                text = head.decode()
                length = next(
                    (int(line.partition(":")[2]) for line in text.split("\r\n")
                     if line.lower().startswith("content-length")), 0,
                )  # fmt: skip
                while len(buffer) < length:
                    buffer += peer.recv(65536)
                body, buffer = buffer[:length], buffer[length:]
                self.requests.append((text, body))
                # Whoever asks for more than was written is cut off.
                line = self._lines.pop(0) if self._lines else b""
                if not line:
                    return
                peer.sendall(line)
                if is_cut(line):
                    return

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
