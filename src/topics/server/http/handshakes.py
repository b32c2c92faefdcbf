"""The door for connections over TLS: they have a descriptor, and nobody yet.

They count from the moment in which they are accepted. Whoever connects and says nothing would else
take what storage needs to open its files. A loop's own server tells of a connection only when hands
were shaken, and of one that never comes to that not at all: so they are accepted here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from topics.server.http.limits import HttpLimits

# Connections that are accepted in one go.
TOGETHER_MAX = 64
# Where nothing more can be opened the door is left alone for so long.
REST_S = 0.5
# How long a close may take as far as the loop is concerned: it does not know who reads slowly from
# who has gone, as `ending` does.
CLOSE_S = 24 * 3600.0


class Door:
    """One socket that listens. `has_room` is asked before each handshake, and `refused` is told.

    `count` is how many handshakes are under way; each ends within `head_s`.
    """

    __slots__ = (
        "_has_room", "_limits", "_loop", "_protocol", "_refused", "_socket", "_tasks", "_tls",
    )  # fmt: skip

    def __init__(
        self, listening: socket.socket, tls: ssl.SSLContext, limits: HttpLimits, *,
        protocol: Callable[[], asyncio.Protocol],
        has_room: Callable[[], bool],
        refused: Callable[[], None],
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._tls = tls
        self._limits = limits
        self._protocol = protocol
        self._has_room = has_room
        self._refused = refused
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket.setblocking(False)
        self._open()

    @property
    def count(self) -> int:
        return len(self._tasks)

    def close(self) -> None:
        """Accepts nothing more; what has not shaken hands by now ends."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for task in self._tasks:
            task.cancel()

    def _open(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(TOGETHER_MAX):
            try:
                peer, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError:
                # Too many files are open: it would be told so in each turn.
                self._loop.remove_reader(self._socket)
                self._loop.call_later(REST_S, self._open)
                return
            if self._has_room():
                task = self._loop.create_task(self._shake(peer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._refused()
                peer.close()

    async def _shake(self, peer: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, peer, ssl=self._tls, ssl_handshake_timeout=self._limits.head_s,
                ssl_shutdown_timeout=CLOSE_S,
            )  # fmt: skip
        except OSError:
            # It has left, is too slow, does not trust us, or speaks something else.
            return
