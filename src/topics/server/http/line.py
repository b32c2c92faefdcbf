"""The requests of a connection in their order: which may begin, and whose answers may leave.

A request whose answer comes later keeps its place in `_queue`. Requests that arrive while too
many wait, while the client does not read, or behind one of another kind that has not happened yet,
stay unstarted in `_backlog`, and when they are a few, reading pauses: a client can not make us hold
more answers than it takes, and what it sends behind a write without waiting finds it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque

from topics.server.http.channel import Channel
from topics.server.http.hub import Hub
from topics.server.http.message import Request

# So much may wait unstarted before reading pauses: only who reads on is told that the client left.
KEPT_MAX = 8
KEPT_BODY_BYTES_MAX = 64 * 1024


class Line(Channel):
    __slots__ = ("_backlog", "_is_blocked", "_queue")

    def __init__(self, server: Hub) -> None:
        super().__init__(server)
        self._queue: list[Request] = []
        self._backlog: deque[Request] | None = None
        # The request at the end of the queue has to be started before any other.
        self._is_blocked = False

    @abstractmethod
    def _start(self, request: Request) -> None:
        """Calls the handler, and takes its answer or keeps the request's place for it."""

    @abstractmethod
    def _conclude_turn(self) -> None:
        """Sends what there is, ends what is over, reads on when nothing waits to begin."""

    def _keep(self, request: Request) -> None:
        """Keeps a request until it may be started."""
        backlog = self._backlog = self._backlog or deque()
        backlog.append(request)
        if (
            len(backlog) >= KEPT_MAX
            or self._is_full()
            or sum(len(kept.body) for kept in backlog) > KEPT_BODY_BYTES_MAX
        ):
            self._pause_reading()

    def _may_start(self, request: Request) -> bool:
        """Whether nothing is in a request's way.

        What was sent before it has to have happened. What goes the same way keeps its order anyway.
        """
        queue, head = self._queue, request.head
        if self._is_full() or self._is_blocked or len(queue) >= self._limits.pending_max:
            return False
        last = queue[-1].head if queue else head
        return last.path == head.path and last.method == head.method

    def _line_up(self, request: Request) -> None:
        """Starts a request now, if nothing is in its way."""
        if self._backlog is None and self._may_start(request):
            self._start(request)
        else:
            self._keep(request)

    def _advance(self) -> None:
        """Takes finished answers from the front of the queue.

        What has waited for them begins at the end of this turn: whoever answers is in the midst of
        work that a new call must not come between, and routers have theirs to do in front of it.
        """
        self._take_finished()
        if self._backlog is not None:
            self.server.turn_end.defer_behind(self._go_on)
        self._conclude_turn()

    def _go_on(self) -> None:
        """Starts what has waited, as far as nothing is in its way."""
        if self._transport is None:
            return
        queue = self._queue
        while (
            (backlog := self._backlog) is not None
            and not (queue and queue[-1].successor)
            and self._may_start(backlog[0])
        ):
            request = backlog.popleft()
            self._backlog = backlog or None
            if request.output is None:
                self._start(request)
            else:
                queue.append(request)
            self._take_finished()
        self._conclude_turn()

    def _take_finished(self) -> None:
        queue = self._queue
        while queue and queue[0].output is not None:
            request = queue.pop(0)
            self._emit(request.output or ())
            if self._queued:
                self._count_queued(-self._queued.pop(request, 0))

    def _everything(self) -> list[Request]:
        return [*self._queue, *(self._backlog or ())]
