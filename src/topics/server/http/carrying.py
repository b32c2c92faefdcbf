"""Large answers are sent beside the loop: it would spend on the copies what others wait for.

The kernel copies what is sent on the sender's core, and wakes the reader there. In the loop's
thread that is most of what a write notices of a range that somebody reads. So the bytes of a large
answer are carried by a thread, for as long as the client takes them at once; one that is slower
is waited for on the loop, which is made for that.

While an answer is carried nobody else may write to its connection. Whoever has to, calls it back
first (`Carry.recall`): from then on it is known how much has gone out, and no more does.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from topics.server.http.beside import Beside
from topics.server.http.giving_way import give_way
from topics.server.http.turns import TurnEnd
from topics.types import Payload

# Answers that are carried at a time; the loop sends those beyond, in portions.
CARRIED_TOGETHER = 2
# What is sent in one call: the loop waits no longer than for one of them to call a carry back.
CALL_BYTES = 256 * 1024
# The system takes no more pieces in one call (IOV_MAX is 1,024, and 16 at least).
CALL_PIECES = 256
# How long a client may take nothing before the loop waits for it instead.
PATIENCE_MS = 5


class Carry:
    """The pieces of an answer on their way. `sent_bytes` is how much of them has gone out."""

    __slots__ = ("_fd", "_is_recalled", "_lock", "_pieces", "sent_bytes", "size_bytes")

    def __init__(self, fd: int, pieces: Sequence[Payload]) -> None:
        # Of its own: one that the loop closes meanwhile may be somebody else's at once.
        self._fd = os.dup(fd)
        self._pieces = list(pieces)
        self.size_bytes = sum(map(len, pieces))
        self._lock = threading.Lock()
        self._is_recalled = False
        self.sent_bytes = 0

    def recall(self) -> int:
        """From now on nothing is sent; returns how much was."""
        with self._lock:
            self._is_recalled = True
            return self.sent_bytes

    def drop(self) -> None:
        """Ends it whether it has run or not, or never will."""
        with self._lock:
            self._is_recalled = True
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def run(self) -> None:
        """Sends until everything is gone, the client is slow or has left, or it is called back."""
        door = select.poll()
        try:
            with self._lock:
                if self._fd < 0:
                    return
                door.register(self._fd, select.POLLOUT)
            while self._send():
                if not door.poll(PATIENCE_MS):
                    return
                give_way()
        except OSError:
            # The loop meets the same when it goes on, and ends the connection.
            return
        finally:
            self.drop()

    def _send(self) -> bool:
        """Sends as much as goes in one call; False when there is no more to do."""
        with self._lock:
            if self._is_recalled:
                return False
            try:
                size = os.writev(self._fd, front(self._pieces[:CALL_PIECES], CALL_BYTES))
            except BlockingIOError:
                return True
            self.sent_bytes += size
        self._pieces = behind(self._pieces, size)
        return bool(self._pieces)


class Carrier:
    """The threads that carry. Called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_end: TurnEnd) -> None:
        self._beside = Beside(loop, CARRIED_TOGETHER, "topics-carry")
        self._beside.attach(turn_end)
        # How many answers are on their way.
        self.count = 0

    def carry(
        self,
        transport: asyncio.Transport,
        pieces: Sequence[Payload],
        ended: Callable[[Carry], None],
    ) -> Carry | None:
        """Takes an answer on its way, if that can be; `ended` is called on the loop afterwards."""
        if self.count >= CARRIED_TOGETHER or transport.get_write_buffer_size():
            return None
        fd = plain_socket(transport)
        if fd is None:
            return None
        try:
            carry = Carry(fd, pieces)
        except OSError:
            # Too many files are open.
            return None
        self.count += 1

        def done(_work: Future[None]) -> None:
            carry.drop()
            self.count -= 1
            ended(carry)

        self._beside.do(carry.run, done)
        return carry

    def close(self) -> None:
        self._beside.close()


def plain_socket(transport: asyncio.Transport) -> int | None:
    """The descriptor that a transport writes to as it is; None where TLS or a pipe is between."""
    door = transport.get_extra_info("socket")
    if door is None or transport.get_extra_info("sslcontext") is not None:
        return None
    return int(door.fileno())


def front(pieces: Sequence[Payload], bytes_max: int) -> list[Payload]:
    """The first of the bytes, as pieces."""
    found: list[Payload] = []
    for piece in pieces:
        found.append(piece if len(piece) <= bytes_max else memoryview(piece)[:bytes_max])
        bytes_max -= len(found[-1])
        if not bytes_max:
            break
    return found


def behind(pieces: list[Payload], size: int) -> list[Payload]:
    """The pieces without so many bytes at their front."""
    for count, piece in enumerate(pieces):
        if size < len(piece):
            first = memoryview(piece)[size:] if size else piece
            return [first, *pieces[count + 1 :]]
        size -= len(piece)
    return []
