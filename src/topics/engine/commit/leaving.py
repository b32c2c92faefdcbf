"""Names that were given up by a frame which is not durable yet: a crash would bring them back.

That something is not there is said no earlier than the frame that took it away is durable, to
whoever asks for it to be deleted: to the second one as to the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from topics.engine.commit.committer import Committer
from topics.engine.commit.ticket import Ticket
from topics.engine.state.topic import Topic

Kind = Literal["topic", "router"]
Name = tuple[Kind, str]


class Leaving:
    """Each end is known by its ticket, and stands in the log with the frames of a topic."""

    def __init__(self) -> None:
        self._by_name: dict[Name, tuple[Ticket[None], Topic]] = {}
        self._names: dict[Ticket[None], list[Name]] = {}

    def begin(self, ticket: Ticket[None], topic: Topic, names: Iterable[Name]) -> None:
        """These are gone once a frame of the topic is durable, which is about to be staged."""
        self._names[ticket] = list(names)
        self._by_name.update(dict.fromkeys(self._names[ticket], (ticket, topic)))

    def end(self, ticket: Ticket[None]) -> None:
        """It is durable, or was refused."""
        for name in self._names.pop(ticket):
            # Whoever had the name since may be on its way out as well.
            if name in self._by_name and self._by_name[name][0] is ticket:
                del self._by_name[name]

    def __contains__(self, name: Name) -> bool:
        return name in self._by_name

    def answer(self, committer: Committer, name: Name, ticket: Ticket[None]) -> None:
        """Ends a ticket behind the frame that took the name away, if that is on its way."""
        if name not in self._by_name:
            ticket.resolve(None)
            return
        _, topic = self._by_name[name]
        committer.answer(topic, lambda: None, ticket)
