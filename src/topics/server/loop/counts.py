"""What the server counts for state and metrics. Streams and routers put their own here."""

from __future__ import annotations

from collections.abc import Callable

from topics.server.http.connections import HttpServer


def _none() -> int:
    return 0


class Counts:
    """Each is a call, so that whoever keeps the registry answers; without one there are none."""

    def __init__(self) -> None:
        self.routers: Callable[[], int] = _none
        self.sse_connections: Callable[[], int] = _none
        self.watch_sessions: Callable[[], int] = _none
        # Who knows what clients make the process hold.
        self.server: HttpServer | None = None
