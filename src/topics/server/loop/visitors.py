"""Who stays for long: streams, sockets and calls that wait, for an operator to look at.

A visitor is entered when it begins to stay and leaves when it ends; what it is at is asked only
when somebody looks, so that staying costs one entry of a table.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

from topics.engine.engine import Engine
from topics.engine.reading.watch import WatchCursor
from topics.server.api.auth import Key

Kind = Literal["stream", "websocket", "long_poll", "work"]


class Sight(NamedTuple):
    """What a visitor is at. `lag` counts what it has still to get, of all its topics."""

    topics: list[str]
    key: Key | None
    peer: str
    since_ts: int
    lag: int
    buffered_bytes: int


class Visitor(Protocol):
    @property
    def kind(self) -> Kind: ...

    @property
    def key(self) -> Key | None: ...

    def revoke(self) -> None:
        """Its key is not known any more: it is told so, and ends."""
        ...

    def sight(self) -> Sight: ...


class Visitors:
    """All of them, by a number that is given once, in the order in which they came."""

    __slots__ = ("_all", "_last")

    def __init__(self) -> None:
        self._all: dict[int, Visitor] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, visitor: Visitor) -> int:
        """Counts a visitor in; the number to leave with."""
        self._last = number = self._last + 1
        self._all[number] = visitor
        return number

    def leave(self, number: int) -> None:
        self._all.pop(number, None)

    def of(self, keys: Container[Key]) -> list[Visitor]:
        """Those of some keys."""
        return [visitor for visitor in self._all.values() if visitor.key in keys]

    def after(self, last: int) -> Iterator[tuple[int, Visitor]]:
        """Those with a higher number. They may not change while it is asked."""
        return (visit for visit in self._all.items() if visit[0] > last)


def lag_of(engine: Engine, cursors: Iterable[WatchCursor]) -> int:
    """How many seqs readers of topics have in front of them.

    One whose topic was deleted gets nothing more, also when there is another of that name.
    """
    return sum(
        engine.lag_of(cursor.name, cursor.seq, cursor.epoch)
        for cursor in cursors
        if cursor.feed is not None
    )
