"""A stream for a reader in this process: the bytes of an answer, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from topics.errors import Unreachable
from topics.server.http.takeover import Takeover

PEER = "this process"
# What waits for a reader before its writer is asked to pause, and to go on.
HIGH_BYTES, LOW_BYTES = 4 * 1024 * 1024, 1024 * 1024


class Taker(Protocol):
    """Whoever asked. Called from the engine's thread, and once, unless it is a stream."""

    def answered(self, status: int, body: bytes, retry_after: str | None) -> None: ...

    def failed(self, error: Unreachable) -> None:
        """There will be no answer."""
        ...

    def streamed(self, data: bytes) -> None:
        """A stream has begun, first with nothing, or goes on."""
        ...

    def ended(self) -> None:
        """A stream is over."""
        ...


class Pipe(asyncio.Transport):
    """Takes the bytes of a stream, instead of a socket. What waits for its reader is counted."""

    def __init__(self, protocol: Takeover, taker: Taker) -> None:
        super().__init__()
        self._protocol = protocol
        self._taker = taker
        # What has come of the head, which its reader does not need; None from its end on.
        self._head: bytes | None = b""
        self._waiting_bytes = 0
        self._is_paused = False
        self._is_ended = False

    def took(self, size: int) -> None:
        self._waiting_bytes -= size
        if self._is_paused and self._waiting_bytes <= LOW_BYTES and not self._is_ended:
            self._is_paused = False
            self._protocol.resume_writing()

    # -- asyncio.Transport -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_ended:
            return
        data = bytes(data)
        if self._head is not None:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            self._head = None if found else head
            if not found:
                return
            self._taker.streamed(b"")
        if data:
            self._waiting_bytes += len(data)
            self._taker.streamed(data)
        if self._waiting_bytes > HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.abort()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._taker.ended()
            # Not now: the protocol may be the caller.
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self._is_ended

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return PEER if name == "peername" else default
