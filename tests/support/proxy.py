"""A TCP proxy that breaks connections where a test tells it to: after so many bytes, either way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fate:
    """What becomes of a connection: cut after so many bytes up or down, or None: never.

    `is_refused`: it is closed before a byte is let through.
    """

    up_bytes: int | None = None
    down_bytes: int | None = None
    is_refused: bool = False


CALM = Fate()


class Proxy:
    """Listens on a port of its own until it is closed; each connection has its fate."""

    def __init__(self, port: int, fate: Callable[[], Fate] = lambda: CALM) -> None:
        self.target = port
        self.fate = fate
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            fate = self.fate()
            try:
                if fate.is_refused:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                self.cuts += 1
                near.close()
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for source, sink, left in ((near, far, fate.up_bytes), (far, near, fate.down_bytes)):
                threading.Thread(target=self._pump, args=(source, sink, left), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, left: int | None) -> None:
        try:
            while left is None or left > 0:
                part = source.recv(65536 if left is None else min(left, 65536))
                if not part:
                    break
                sink.sendall(part)
                left = None if left is None else left - len(part)
            else:
                self.cuts += 1
        except OSError:
            pass
        for end in (source, sink):
            self._open.discard(end)
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open) // 2

    def cut_all(self) -> None:
        """Breaks every open connection."""
        for end in list(self._open):
            self._open.discard(end)
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._socket.close()
        self.cut_all()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
