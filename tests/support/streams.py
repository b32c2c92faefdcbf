"""Clients of the two ways to watch: an EventSource after the WHATWG algorithm, and a WebSocket."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from websockets.sync.client import ClientConnection, connect

TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Event:
    """One dispatched event. `id` is the last id seen, as a browser has it."""

    name: str
    data: Any
    id: str

    @property
    def place(self) -> dict[str, Any]:
        """The map that the id encodes."""
        decoded: dict[str, Any] = json.loads(unbase64(self.id))
        return decoded


def unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Refused(Exception):
    """The stream was not opened."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(f"{status}: {body!r}")
        self.status = status
        self.code = json.loads(body)["error"]["code"] if body else ""
        self.detail = json.loads(body)["error"].get("detail", {}) if body else {}
        self.headers = headers


class EventSource:
    """One GET of a stream: chunks decoded, lines parsed, comments and retries noted.

    `receive_bytes` makes a reader with a small window, for tests of back-pressure.
    """

    def __init__(
        self,
        port: int,
        path: str,
        *,
        last_id: str = "",
        receive_bytes: int = 0,
        method: str = "GET",
        **headers: str,
    ) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        sent = {"Host": "localhost", "Accept": "text/event-stream", **headers}
        if last_id:
            sent["Last-Event-ID"] = last_id
        lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in sent.items() if v)
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())
        self._raw = b""
        self._text = b""
        self.last_id = last_id
        self.retries: list[int] = []
        self.comments: list[tuple[float, str]] = []
        self.is_ended = False
        self._open()

    def _open(self) -> None:
        while b"\r\n\r\n" not in self._raw:
            self._receive()
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status_line.split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        if self.status != 200:
            size = int(self.headers.get("content-length", 0))
            while len(self._raw) < size:
                self._receive()
            self.socket.close()
            raise Refused(self.status, self._raw, self.headers)

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise EOFError("the stream's connection ended")
        self._raw += data

    def _chunk(self) -> bytes:
        """The next chunk; empty at the end of the stream."""
        while b"\r\n" not in self._raw:
            self._receive()
        size_line, _, rest = self._raw.partition(b"\r\n")
        size = int(size_line, 16)
        while len(rest) < size + 2:
            self._receive()
            rest = self._raw[len(size_line) + 2 :]
        assert rest[size : size + 2] == b"\r\n"
        self._raw = rest[size + 2 :]
        return rest[:size]

    def text_until(self, end: bytes) -> bytes:
        """What comes up to a chunk with `end` in it, as it is on the wire."""
        while end not in self._text:
            self._text += self._chunk()
        return self._text

    def events(self) -> Iterator[Event]:
        """Events until the stream ends."""
        name, data = "", []
        while True:
            while b"\n" not in self._text:
                chunk = self._chunk()
                if not chunk:
                    self.is_ended = True
                    return
                self._text += chunk
            raw, _, self._text = self._text.partition(b"\n")
            line = raw.decode()
            if not line:
                if data:
                    yield Event(name, json.loads("\n".join(data)), self.last_id)
                name, data = "", []
            elif line.startswith(":"):
                self.comments.append((time.time(), line[1:].strip()))
                self._on_comment()
            else:
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if field == "event":
                    name = value
                elif field == "data":
                    data.append(value)
                elif field == "id":
                    self.last_id = value
                elif field == "retry":
                    self.retries.append(int(value))

    def _on_comment(self) -> None:
        pass

    def next(self, *names: str) -> Event:
        """The next event, or the next of these names."""
        for event in self.events():
            if not names or event.name in names:
                return event
        raise EOFError("the stream ended")

    def until(self, *names: str) -> list[Event]:
        """Events up to and including the first of these names."""
        found: list[Event] = []
        for event in self.events():
            found.append(event)
            if event.name in names:
                return found
        raise EOFError(f"the stream ended after {found}")

    def wait_for_comment(self, seconds: float) -> None:
        """Reads until one more comment has come; no event may."""
        count = len(self.comments)
        self.socket.settimeout(seconds)
        while len(self.comments) == count:
            while b"\n" not in self._text:
                self._text += self._chunk()
            raw, _, self._text = self._text.partition(b"\n")
            if raw.startswith(b":"):
                self.comments.append((time.time(), raw[1:].strip().decode()))
            else:
                assert raw == b"" or raw.startswith(b"retry:"), raw
        self.socket.settimeout(TIMEOUT_S)

    def is_silent(self, seconds: float) -> bool:
        """Whether no event comes for a while; comments do not count."""
        self.socket.settimeout(seconds)
        try:
            self.next()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> EventSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Socket:
    """A WebSocket that speaks commands."""

    def __init__(self, port: int, token: str = "", **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._stack = contextlib.ExitStack()
        self.connection: ClientConnection = self._stack.enter_context(
            connect(
                f"ws://127.0.0.1:{port}/v0/ws", additional_headers=headers, compression=None,
                max_size=None, **options,
            )
        )  # fmt: skip

    def send(self, op: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"op": op, **fields}))

    def next(self, *ops: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The next frame, or the next of these kinds."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame: dict[str, Any] = json.loads(
                self.connection.recv(timeout=max(deadline - time.monotonic(), 0.001))
            )
            if not ops or frame["op"] in ops:
                return frame

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Sends a command; the frame that answers it."""
        self.send(op, request_id="r", **fields)
        while True:
            frame = self.next()
            if frame.get("request_id") == "r":
                return frame

    def until(self, *ops: str) -> list[dict[str, Any]]:
        found = []
        while True:
            found.append(self.next())
            if found[-1]["op"] in ops:
                return found

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
