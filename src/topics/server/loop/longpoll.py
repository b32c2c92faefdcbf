"""Readers that wait for records: woken by publications, a deadline, a drain or a disconnect."""

from __future__ import annotations

from typing import Protocol

from topics.engine.state.topic import Topic
from topics.server.http.turns import TurnEnd


class Waiter(Protocol):
    @property
    def calls(self) -> int:
        """How many calls wait by it."""
        ...

    def wake(self) -> None:
        """Something of the topic may have changed. Called once for each `add`."""
        ...

    def end(self) -> None:
        """The server is going away: answer with what there is."""
        ...


class Waiters:
    """Who waits for which topic.

    A publication only notes the topic; waiters are called at the end of the turn, when the engine
    has applied everything that was written together.
    """

    def __init__(self) -> None:
        self._by_topic: dict[str, set[Waiter]] = {}
        self._changed: dict[str, None] = {}
        self._turn_end: TurnEnd

    def attach(self, turn_end: TurnEnd) -> None:
        self._turn_end = turn_end

    def __len__(self) -> int:
        return sum(waiter.calls for waiting in self._by_topic.values() for waiter in waiting)

    def add(self, name: str, waiter: Waiter) -> None:
        self._by_topic.setdefault(name, set()).add(waiter)

    def discard(self, name: str, waiter: Waiter) -> None:
        waiting = self._by_topic.get(name)
        if waiting is not None:
            waiting.discard(waiter)
            if not waiting:
                del self._by_topic[name]

    def published(self, topic: Topic) -> None:
        """The engine's hook: a topic's head moved, or the topic is gone."""
        if topic.name in self._by_topic:
            self._changed[topic.name] = None
            self._turn_end.defer(self._wake)

    def end_all(self) -> None:
        for waiting in list(self._by_topic.values()):
            for waiter in list(waiting):
                waiter.end()

    def _wake(self) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            for waiter in self._by_topic.pop(name, ()):
                waiter.wake()
