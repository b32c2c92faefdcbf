"""Peers that mean no good, in a process of their own: `python -m tests.server.soak.abuse PORT`.

Floods of tiny frames, bodies that never come to their end, and everything that can be opened and
closed. Each kind is a thread that goes on until the process is ended; what the server does about
it (closing the connection, an error) is its good right.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import sys
import threading
import time
from collections.abc import Callable

from tests.server.soak.visits import PREFACE, UPGRADE, VISITS, frame

SLOW_PEERS = 50
SLOW_PAUSE_S = 0.5
FLOOD_FRAMES = 2000
PAUSE_S = 0.01
TIMEOUT_S = 5.0

_SETTINGS, _PING, _WINDOW_UPDATE, _PRIORITY, _UNKNOWN = 4, 6, 8, 2, 0x50
# Frames of HTTP/2 that cost their sender nothing.
H2_FLOODS = (
    frame(_PING, 0, 0, bytes(8)),
    frame(_SETTINGS, 0, 0),
    frame(_WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    frame(_PRIORITY, 0, 1, b"\0\0\0\0\0"),
    frame(_UNKNOWN, 0, 0),
)
# Of a WebSocket: pings, and a message of empty fragments.
WS_FLOODS = (b"\x89\x80\0\0\0\0", b"\x00\x80\0\0\0\0")
WS_FIRST_FRAGMENT = b"\x01\x80\0\0\0\0"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)


def flood(port: int, opening: bytes, tiny: bytes) -> None:
    """One connection of nothing but tiny frames, for as long as the server puts up with it."""
    with connect(port) as peer:
        peer.sendall(opening)
        peer.recv(1 << 16)
        for _ in range(FLOOD_FRAMES // 100):
            peer.sendall(tiny * 100)


def floods(port: int) -> None:
    for tiny in H2_FLOODS:
        with contextlib.suppress(OSError):
            flood(port, PREFACE + frame(_SETTINGS, 0, 0), tiny)
    for tiny in WS_FLOODS:
        with contextlib.suppress(OSError):
            flood(port, UPGRADE, WS_FIRST_FRAGMENT + tiny)


class SlowBodies:
    """Bodies of a byte at a time."""

    def __init__(self) -> None:
        self._peers: list[socket.socket] = []

    def __call__(self, port: int) -> None:
        while len(self._peers) < SLOW_PEERS:
            peer = connect(port)
            peer.sendall(
                b"POST /v0/topics/visited HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
            )
            self._peers.append(peer)
        for peer in list(self._peers):
            try:
                peer.sendall(b" ")
            except OSError:
                self._peers.remove(peer)
                peer.close()
        time.sleep(SLOW_PAUSE_S)


class Churn:
    """Everything that can be opened is, and closed again."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._draw = random.Random(1)

    def __call__(self, port: int) -> None:
        visit = self._draw.choice(VISITS)
        for peer in visit(port, next(self._numbers)):
            peer.close()


def without_end(kind: Callable[[int], None], port: int) -> None:
    while True:
        # An answer that was cut short, or none: the server may have had enough.
        with contextlib.suppress(OSError, AssertionError, ValueError):
            kind(port)
        time.sleep(PAUSE_S)


def main(port: int) -> None:
    kinds = (floods, SlowBodies(), Churn())
    for kind in kinds:
        threading.Thread(target=without_end, args=(kind, port), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
