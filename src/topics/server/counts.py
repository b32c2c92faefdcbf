"""What the server counts for state and metrics. Streams, routers and queues put their own here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.engine.topic import Topic
from topics.server.shapes import QueueCounts

if TYPE_CHECKING:
    from topics.server.app import App


def _none() -> int:
    return 0


class Counts:
    """Each is a call, so that whoever keeps the registry answers; without one there are none."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.routers: Callable[[], int] = _none
        self.sse_connections: Callable[[], int] = _none
        self.watch_sessions: Callable[[], int] = _none
        self.leases_in_flight: Callable[[], int] = _none
        self.queue: Callable[[Topic], QueueCounts] = _unleased


def _unleased(topic: Topic) -> QueueCounts:
    """A queue that nobody has claimed from: every job is ready."""
    return QueueCounts(ready=topic.live_count, in_flight=0, dead_lettered=0)
