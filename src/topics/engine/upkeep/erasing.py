"""Erasing: what topics have lost leaves the disk now, because somebody asked for it.

Everybody who has asked by then is served together, by one scrub of their topics beside all other
work. A ticket ends when no file holds a byte of what was gone when it was asked for, or fails with
the reason why that can not be said; what was done by then is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator

import msgspec

from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.state.topic import Topic
from topics.engine.upkeep.scrub import Scrubbed, scrub
from topics.errors import Closed, Poisoned, StorageError, TopicsError
from topics.storage.disk_errors import typed
from topics.storage.segment import SegmentInfo

# Rows of segments that are added up in one slice.
ROWS_SLICE = 2000


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a topic's records on the disk, live or not, before and after."""

    topic: str
    bytes_before: int
    bytes_after: int


class Eraser:
    """Who has asked, and has no answer yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: list[tuple[Topic, Ticket[Rewrite]]] = []
        self._served: list[tuple[Topic, Ticket[Rewrite]]] = []

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def ask(self, topic: Topic, ticket: Ticket[Rewrite]) -> None:
        self._asked.append((topic, ticket))

    def give_up(self, error: TopicsError) -> None:
        """Nobody is served any more."""
        waiting = [*self._served, *self._asked]
        self._served, self._asked = [], []
        for _, ticket in waiting:
            if not ticket.done:
                ticket.fail(error)

    def slices(self, between: Callable[[], Iterator[None]]) -> Iterator[None]:
        """Serves those who have asked; `between` does what can not wait for all of it."""
        core = self._core
        self._served, self._asked = self._asked, []
        topics = {topic for topic, _ in self._served}
        try:
            before = yield from _on_disk(core, topics)
            yield from scrub(core, Scrubbed(), topics=topics, between=between, is_paced=True)
            after = yield from _on_disk(core, topics)
        except Exception as error:
            told = _told(error)
            self._end(lambda _, ticket: ticket.fail(told))
            if told is error and not isinstance(error, Poisoned):
                return
            raise
        self._end(lambda topic, ticket: ticket.resolve(
            Rewrite(topic=topic.name, bytes_before=before[topic.id], bytes_after=after[topic.id])
        ))  # fmt: skip

    def _end(self, tell: Callable[[Topic, Ticket[Rewrite]], None]) -> None:
        served, self._served = self._served, []
        for topic, ticket in served:
            tell(topic, ticket)


def _told(error: Exception) -> TopicsError:
    if isinstance(error, TopicsError):
        return error
    if isinstance(error, OSError):
        return typed(error, "the topic was not rewritten")
    return StorageError(f"the topic was not rewritten; ask again: {error!r}")


def closed() -> Closed:
    return Closed("the engine closed before the topic was rewritten; ask again")


def _on_disk(core: Core, topics: set[Topic]) -> Generator[None, None, Counter[int]]:
    """The bytes of each topic's records in segments and in the log, live or not.

    Without what stands beside them, of which the log has more: records that moved from there to
    a segment are as large as they were.
    """
    found: Counter[int] = Counter()
    for topic in topics:
        # The log is kept from the last checkpoint but one; of an ephemeral topic it has none.
        is_logged = topic.durability != "ephemeral"
        found[topic.id] = topic.bytes_total - topic.cut_totals[0] if is_logged else 0
    infos: list[SegmentInfo] = [held.info for held in core.segments.live.values()]
    seen = 0
    for info in [*infos, *core.segments.leaving.values()]:
        for row in info.rows:
            if row.topic_id in found:
                found[row.topic_id] += row.payload_bytes
        seen += len(info.rows)
        if seen >= ROWS_SLICE:
            seen = 0
            yield
    return found
