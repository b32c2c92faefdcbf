"""Who is told what became of a write, and the frames that tell.

A write has an owner: a ticket, a request, a message. How owners of a kind are told is known to
their teller; writes of one frame have one teller, which tells many of them at once.
"""

from __future__ import annotations

from typing import Any, Protocol

from topics.engine.commit.ticket import Ticket
from topics.engine.ops.growth import Growth
from topics.engine.state.topic import Topic
from topics.types import Appended


class Teller(Protocol):
    """Owners have `fail`, for what went wrong."""

    def together(self, topic: Topic, first: int, ts: int, owners: list[Any], /) -> None:
        """Tells owners whose single records have the seqs from `first` on, and are readable."""
        ...

    def alone(self, owner: Any, done: Appended, /) -> None:
        """Tells the owner of any other write."""
        ...


class Tickets:
    """Tells owners that are tickets."""

    def together(self, topic: Topic, first: int, ts: int, owners: list[Any]) -> None:
        name, epoch = topic.name, topic.epoch
        for seq, ticket in enumerate(owners, first):
            ticket.resolve(Appended(name, epoch, seq, seq, seq, 1, ts, False, False))

    def alone(self, owner: Any, done: Appended) -> None:
        owner.resolve(done)


TICKETS = Tickets()


class ToldFrame(Growth):
    """A write on its way, with its teller."""

    __slots__ = ("teller",)

    teller: Teller


def ticket_for(owner: Any, teller: Teller) -> Ticket[Appended]:
    """A ticket whose end is told to an owner."""

    def ended(ticket: Ticket[Appended]) -> None:
        if ticket.error is None:
            teller.alone(owner, ticket.result)
        else:
            owner.fail(ticket.error)

    ticket: Ticket[Appended] = Ticket()
    ticket.callback = ended
    return ticket


def appended(
    topic: Topic, first: int, count: int, ts: int, *, created: bool, deduped: bool
) -> Appended:
    return Appended(
        topic=topic.name, epoch=topic.epoch, first_seq=first, last_seq=first + count - 1,
        head_seq=max(topic.head, first + count - 1), count=count, ts=ts, created=created,
        deduped=deduped,
    )  # fmt: skip
