"""Operations that are too much for a turn before there is a frame of them.

They are prepared in pieces, in turns of maintenance, and staged with the last piece: until then
nothing of them has happened.
"""

from __future__ import annotations

from typing import Any, Protocol

from topics.engine.commit.ticket import Ticket
from topics.engine.state.block import Block
from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.storage.columns import Columns


class Work(Protocol):
    topic: Topic
    ticket: Ticket[Any]

    def step(self) -> bool:
        """Does a piece; True when it is staged, or can not be. Raises StorageError."""
        ...

    def finish(self) -> None:
        """Prepares to the end, at once; what fails is told by the ticket."""
        ...


class Fetching(Work, Protocol):
    """Such a one that needs blocks of the cold store: its step raises ColdMiss."""

    def keep(self, block: Block, columns: Columns) -> None:
        """Hands over a block that was missed, to be held for as long as it is needed."""
        ...


class Preparing:
    def __init__(self) -> None:
        self.deletions: list[Work] = []
        # Ephemeral topics on their way to another class, by id.
        self.promotions: dict[int, Fetching] = {}
        # Stages and commits whose files are written or read beside the engine.
        self.beside: set[Ticket[Any]] = set()

    def finish_promotion(self, topic_id: int) -> None:
        """Takes the promotion of a topic to its end now, if there is one."""
        work = self.promotions.pop(topic_id, None)
        if work is not None:
            work.finish()

    def finish_for(self, ticket: Ticket[Any]) -> None:
        """Takes what somebody waits for to its end, if it is one of these."""
        for topic_id in [key for key, work in self.promotions.items() if work.ticket is ticket]:
            self.finish_promotion(topic_id)
        for work in [work for work in self.deletions if work.ticket is ticket]:
            self.deletions.remove(work)
            work.finish()

    def give_up(self, error: TopicsError) -> None:
        """The engine is about to end: what was not staged has not happened."""
        works: list[Work] = [*self.promotions.values(), *self.deletions]
        self.promotions, self.deletions = {}, []
        beside, self.beside = self.beside, set()
        for ticket in [*(work.ticket for work in works), *beside]:
            if not ticket.done:
                ticket.fail(error)
