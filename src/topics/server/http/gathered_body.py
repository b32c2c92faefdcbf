"""Request bodies: gathered as they come, and decoded under a limit.

A gzip bomb costs what it is worth.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial

from topics.errors import PayloadTooLarge
from topics.server.http.errors import BadRequest, UnsupportedCoding

# Smaller parts of a body are put together.
PART_BYTES_MIN = 4 * 1024
# What is decoded on the loop; a body that turns out larger goes on beside it.
LOOP_BYTES_MAX = 64 * 1024
# A step of decoding, so that the limit is noticed soon after it was passed.
STEP_BYTES = 1024 * 1024
# What a decoder is shown at a time.
SHOWN_BYTES = 64 * 1024
# Members of one gzip stream: each costs a fresh decoder, whatever its size.
MEMBERS_MAX = 1000
# Bodies that are decoded beside the loop at a time.
DECODED_TOGETHER_MAX = 2

Done = Callable[["asyncio.Future[bytes | None]"], None]


def is_gzip(coding: bytes) -> bool:
    """Whether a Content-Encoding is gzip (True) or none (False); raises UnsupportedCoding."""
    name = coding.strip().lower()
    if name in (b"gzip", b"x-gzip"):
        return True
    if name in (b"", b"identity"):
        return False
    raise UnsupportedCoding(
        f"Content-Encoding {name.decode('latin-1')!r} is not supported; send gzip or none",
        supported=["gzip", "identity"],
    )


class Parts:
    """A body as it comes: large parts as they are, small ones put together.

    Each kept on its own, a byte would cost fifty; all in one buffer, large ones would be copied
    again and again as it grows.
    """

    __slots__ = ("_parts", "_small")

    def __init__(self, first: bytes = b"") -> None:
        self._parts: list[bytes | bytearray] = [first]
        self._small = bytearray()

    def add(self, data: bytes) -> None:
        if len(data) < PART_BYTES_MIN:
            self._small += data
        if len(data) >= PART_BYTES_MIN or len(self._small) >= PART_BYTES_MIN:
            self._parts.append(self._small)
            self._small = bytearray()
        if len(data) >= PART_BYTES_MIN:
            self._parts.append(data)

    def joined(self) -> bytes:
        return b"".join((*self._parts, self._small))


class Gunzip:
    """One compressed body on its way to being decoded.

    `run` may be called first on the loop with a small budget and again in a thread for the rest.
    Raises PayloadTooLarge when the decoded size passes the limit, BadRequest for bad data.
    """

    __slots__ = ("_at", "_body", "_bytes_max", "_decoder", "_members", "_parts", "_size")

    def __init__(self, body: bytes, bytes_max: int) -> None:
        self._body = memoryview(body)
        # How much of it was taken.
        self._at = 0
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0
        self._members = 1
        self._decoder = zlib.decompressobj(31)

    def run(self, budget_bytes: int | None = None) -> bytes | None:
        """Decodes; the whole body, or None when the budget ended before it did."""
        left = budget_bytes
        while True:
            step = STEP_BYTES if left is None else min(left, STEP_BYTES)
            cost = self._step(step)
            if cost is None:
                return b"".join(self._parts)
            if left is not None:
                left -= cost
                if left <= 0:
                    return None

    def _step(self, bytes_max: int) -> int | None:
        """Decodes some; how many bytes that was to look at or to make, None at the end."""
        decoder = self._decoder
        # What it does not take it copies, for each member again: never shown all of the rest.
        shown = self._body[self._at : self._at + SHOWN_BYTES]
        try:
            part = decoder.decompress(shown, bytes_max)
        except zlib.error as error:
            raise BadRequest(f"the body is not valid gzip: {error}") from None
        self._size += len(part)
        if self._size > self._bytes_max:
            raise PayloadTooLarge(
                f"the decoded body is larger than {self._bytes_max} bytes",
                limit="max_body_bytes",
                max=self._bytes_max,
            )
        if part:
            self._parts.append(part)
        self._at += len(shown) - len(decoder.unused_data) - len(decoder.unconsumed_tail)
        is_end = self._at == len(self._body)
        if decoder.eof:
            if is_end:
                return None
            self._next_member()
        elif is_end and not part:
            raise BadRequest("the gzip body ends too early")
        return max(len(shown), len(part))

    def _next_member(self) -> None:
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise BadRequest(f"the gzip body has more than {MEMBERS_MAX} members")
        self._decoder = zlib.decompressobj(31)


class Decoding:
    """Large bodies being decoded beside the loop, a few at a time: each may become a thousand
    times as large as it came."""

    __slots__ = ("_loop", "_waiting", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.running = 0
        self._waiting: deque[tuple[Gunzip, Done]] = deque()

    def start(self, gunzip: Gunzip, done: Done) -> None:
        """Decodes to the end; `done` is called on the loop when that is so."""
        if self.running >= DECODED_TOGETHER_MAX:
            self._waiting.append((gunzip, done))
            return
        self.running += 1
        work = self._loop.run_in_executor(None, gunzip.run)
        work.add_done_callback(partial(self._ended, done))

    def _ended(self, done: Done, work: asyncio.Future[bytes | None]) -> None:
        self.running -= 1
        try:
            done(work)
        finally:
            if self._waiting:
                self.start(*self._waiting.popleft())
