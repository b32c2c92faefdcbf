"""Reading files ahead of the one who wants them, in threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

AHEAD = 2


class Prefetch:
    """Reads whole files, expecting them to be asked for in the order given."""

    def __init__(self, read: Callable[[str], bytes], paths: list[str], *, threads: bool) -> None:
        self._read = read
        self._paths = paths
        self._next = 0
        self._started: dict[str, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(AHEAD, "topics-read") if threads else None

    def __call__(self, path: str) -> bytes:
        if self._pool is None:
            return self._read(path)
        while self._next < len(self._paths) and len(self._started) <= AHEAD:
            ahead = self._paths[self._next]
            self._started[ahead] = self._pool.submit(self._read, ahead)
            self._next += 1
        started = self._started.pop(path, None)
        return started.result() if started is not None else self._read(path)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
