"""How a connection is cut that does not go on, or that does not end when it is over.

A client that takes nothing of what it is sent is waited for `write_stall_s`; one that takes some of
it now and then is waited for as long as it takes. One that has been told everything may still be
sending: it has `linger_s` to close, and what it sends until then is read and dropped, since a reset
could take our last answer from it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from topics.server.http.limits import HttpLimits
from topics.server.http.sockets import unacknowledged_bytes

# What a connection that we ended may still send us before we cut it off.
LINGER_BYTES_MAX = 16 * 1024 * 1024
# What a transport that is no socket of its own says, asked for `get_extra_info`, of where its bytes
# are on their way: anything that changes when the client takes some.
TAKEN = "taken"


class Ending(asyncio.Protocol):
    """The socket of any connection. `_ended_at` is when the last of it was written, 0 before."""

    __slots__ = (
        "_discarded_bytes", "_ended_at", "_is_paused", "_limits", "_stall", "_transport", "slot",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, transport: asyncio.Transport | None = None) -> None:
        self.slot = 0
        self._limits = limits
        self._transport = transport
        # The client does not read.
        self._is_paused = False
        self._ended_at = 0.0
        self._discarded_bytes = 0
        # How much waits for a client that does not read, and since when it is as much.
        self._stall: tuple[object, float] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes written that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def untaken_bytes(self) -> int:
        """Bytes written that the client has not taken yet, as far as we are told.

        Those that the system holds belong to them: it takes more from us in large steps only, and
        where a client is slow there can be minutes between two of them.
        """
        return self.buffered_bytes + unacknowledged_bytes(self._transport)

    @property
    def peername(self) -> Any:
        """The address of the client, as the system has it."""
        return None if self._transport is None else self._transport.get_extra_info("peername")

    @property
    def peer(self) -> str:
        """The address of the client, in words; empty when it is not known."""
        found = self.peername
        if not isinstance(found, tuple):
            return str(found or "")
        host, port = found[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @staticmethod
    def _send_no_more(transport: asyncio.Transport) -> None:
        """Half a close; a whole one after what was written where TLS knows no halves."""
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def abort(self) -> None:
        """Drops the connection and what it still had to send."""
        if self._transport is not None:
            self._transport.abort()

    def cut_answers(self) -> None:
        """Answers that were not taken are too much, and this client takes the least."""
        self.abort()

    def _discard(self, size: int) -> None:
        """More has come on a connection that has ended."""
        self._discarded_bytes += size
        if self._discarded_bytes > LINGER_BYTES_MAX:
            self.abort()

    def _keeps_us_waiting(self, now: float) -> bool:
        """Whether there is nothing to expect of the client any more."""
        if self._ended_at:
            return self._is_overdue(now)
        if not self._is_paused or self._transport is None:
            self._stall = None
            return False
        return self._waited_s(now) > self._limits.write_stall_s

    def _is_overdue(self, now: float) -> bool:
        """Whether a connection that has ended keeps us waiting for too long."""
        limit_s = self._limits.write_stall_s if self.untaken_bytes else self._limits.linger_s
        return self._waited_s(now) > limit_s

    def _waited_s(self, now: float) -> float:
        """For how long the client has taken nothing of what it was sent."""
        below = None if self._transport is None else self._transport.get_extra_info(TAKEN)
        waiting = self.untaken_bytes, below
        if self._stall is None or self._stall[0] != waiting:
            self._stall = (waiting, now)
        return now - self._stall[1]
