"""Who is answered when an operation has ended, and what when it ended badly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from topics.errors import OutcomeUnknown, Poisoned, StorageError, TopicsError

T = TypeVar("T")


class Ticket(Generic[T]):
    """The outcome of one operation, now or later.

    `result` is there once it is done; it says nothing when there is an error.
    """

    __slots__ = ("callback", "done", "error", "result")

    result: T

    def __init__(self) -> None:
        self.done = False
        self.error: TopicsError | None = None
        self.callback: Callable[[Ticket[T]], None] | None = None

    def resolve(self, result: T) -> None:
        assert not self.done
        self.result = result
        self.done = True
        callback = self.callback
        if callback is not None:
            # It usually knows the ticket: as a ring they would outlive their use.
            self.callback = None
            callback(self)

    def fail(self, error: TopicsError) -> None:
        self.error = error
        self.resolve(None)  # type: ignore[arg-type]


class Owner(Protocol):
    """Who asked for an operation: a ticket, or somebody who is answered with others at once."""

    def fail(self, error: TopicsError) -> None: ...


def unknown(error: Poisoned) -> OutcomeUnknown:
    """For what was written, or half of it, and is not known to be durable."""
    return OutcomeUnknown(
        "the write may or may not be there: storage failed before it was known to be durable; "
        "retry with the same idempotency key after the server has restarted",
        cause=str(error),
    )


def unwritten(error: Exception) -> StorageError:
    """For what could not be put together: nothing of it is anywhere."""
    if isinstance(error, MemoryError):
        return StorageError("no memory for the write; nothing was written")
    failed = StorageError(f"the write could not be put together; nothing was written: {error!r}")
    failed.__cause__ = error
    return failed
