"""A queue as whoever hands out its jobs sees it: what can be claimed, and when more can be."""

from __future__ import annotations

from topics.engine.commit.core import Core
from topics.engine.ops.catalog import queue_state
from topics.engine.state.topic import Topic


class QueueHandle:
    """One instance of a topic that is a queue; it stays what it was when the topic is deleted."""

    __slots__ = ("_core", "_queue", "_topic", "name")

    def __init__(self, core: Core, topic: Topic) -> None:
        assert topic.queue is not None
        self.name = topic.name
        self._core = core
        self._topic = topic
        self._queue = topic.queue

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueHandle) and self._topic is other._topic

    def __hash__(self) -> int:
        return hash(self._topic)

    @property
    def is_dropped(self) -> bool:
        """Whether the topic was deleted; another may have its name by now."""
        return self._topic.dropped

    @property
    def window_ms(self) -> int:
        """How long claims are gathered before jobs are divided among them; 0 for not at all."""
        return self._topic.config.claim_jitter_ms

    @property
    def evict_floor(self) -> int:
        """Moves when jobs were lost to the caps."""
        return self._topic.evict_floor

    @property
    def ready(self) -> int:
        """How many jobs can be claimed now."""
        state = queue_state(self._core, self._topic)
        return 0 if state is None else state.ready

    @property
    def due_s(self) -> float | None:
        """When the next lease runs out or delay ends, on the monotonic clock; None if none does."""
        due_ms = self._queue.next_due()
        return None if due_ms is None else due_ms / 1000

    def lapse(self) -> None:
        """Lets what is due by now be claimed again."""
        self._queue.expire(self._core.monotonic_ms())

    def is_held(self, seq: int, lease: int) -> bool:
        """Whether a job is under the lease of this number, which has not run out."""
        return self._queue.is_held(seq, lease)
