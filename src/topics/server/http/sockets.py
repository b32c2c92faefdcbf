"""What the system knows of a connection and its transport does not tell."""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import sys
import termios

_NONE = struct.pack("i", 0)
# Not every system tells half an end; a whole one all of them do.
_END = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def unacknowledged_bytes(transport: asyncio.Transport | None) -> int:
    """What left the process and has not reached the client; 0 where nobody can tell.

    The system takes megabytes from us at a time and asks for more when a third of them is gone:
    by what the transport holds, a client that reads steadily stands still for seconds.
    """
    number = _descriptor(transport)
    if number < 0 or sys.platform != "linux":
        return 0
    try:
        found = fcntl.ioctl(number, termios.TIOCOUTQ, _NONE)
    except OSError:
        return 0
    return int(struct.unpack("i", found)[0])


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the client sends no more, however much of what it sent was not read yet."""
    number = _descriptor(transport)
    if number < 0:
        return False
    door = select.poll()
    door.register(number, _END)
    return bool(door.poll(0))


def _descriptor(transport: asyncio.Transport | None) -> int:
    """That of the socket, below TLS too; -1 where there is none: not yet, or not any more."""
    door = None if transport is None else transport.get_extra_info("socket")
    return -1 if door is None else int(door.fileno())
