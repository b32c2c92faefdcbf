"""One frame on its way to the log: what every operation is for the committer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topics.engine.commit.ticket import Ticket
from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.storage import frames

# What `apply` returns when it has done a piece of its work and wants to be called again.
UNFINISHED = object()


class Frame:
    """One frame on its way: it is applied and told, or undone and failed, or unknown."""

    __slots__ = (
        "aside", "cols", "count", "first", "flags", "floor", "gated", "kind", "payload", "ticket",
        "topic", "ts",
    )  # fmt: skip

    def __init__(self, topic: Topic, kind: int, gated: bool, ticket: Ticket[Any] | None) -> None:
        self.topic = topic
        self.kind = kind
        self.gated = gated
        self.aside = False
        self.ticket = ticket
        self.first = self.count = self.ts = self.floor = self.flags = 0
        self.cols = self.payload = b""

    def entry(self) -> bytes:
        return frames.ENTRY.pack(
            self.topic.id, self.kind, self.flags, self.count, self.first, self.ts, self.floor,
            len(self.cols), len(self.payload),
        )  # fmt: skip

    def apply(self) -> Any:
        """Brings the effect into memory; returns the ticket's result, or UNFINISHED.

        Raises nothing: it has what it needs, or goes without.
        """

    def tell(self, result: Any) -> None:
        """Answers, once it is applied."""
        if self.ticket is not None:
            self.ticket.resolve(result)

    def undo(self) -> None:
        """Takes back what staging did."""

    def fail(self, error: TopicsError) -> None:
        """Ends its ticket with an error."""
        if self.ticket is not None and not self.ticket.done:
            self.ticket.fail(error)


class Op(Frame):
    """A frame whose effect is a function."""

    __slots__ = ("_apply", "_undo")

    def __init__(
        self,
        topic: Topic,
        kind: int,
        apply: Callable[[], Any],
        *,
        gated: bool,
        ticket: Ticket[Any] | None = None,
        undo: Callable[[], None] | None = None,
        first: int = 0,
        floor: int = 0,
        flags: int = 0,
        payload: bytes = b"",
    ) -> None:
        super().__init__(topic, kind, gated, ticket)
        self._apply = apply
        self._undo = undo
        self.first = first
        self.floor = floor
        self.flags = flags
        self.payload = payload

    def apply(self) -> Any:
        return self._apply()

    def undo(self) -> None:
        if self._undo is not None:
            self._undo()


def floor_frame(
    topic: Topic,
    state: int,
    payload: bytes = b"",
    ticket: Ticket[None] | None = None,
    undo: Callable[[], None] | None = None,
) -> Op:
    """Says how far records were lost to `state`, as of now; `payload` is which of them."""
    floor = dict(topic.lost).get(state, 0) + 1
    return Op(
        topic, frames.FLOOR, nothing, gated=False, ticket=ticket, undo=undo, floor=floor,
        flags=state, payload=payload,
    )  # fmt: skip


def nothing() -> None:
    """What is left to do for a frame that took effect when it was seen."""
