"""Lists that come in pages: one page after the other, until there is no next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol, TypeVar

from topics.client.methods import Sends, SendsLater
from topics.client.request import Request


class Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=Page)


def pages(client: Sends, describe: Callable[[str | None], Request[P]]) -> Iterator[P]:
    """The pages of what `describe` asks for, each by the cursor that the one before it gave."""
    cursor: str | None = None
    while True:
        page = client.send(describe(cursor))
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


async def pages_later(
    client: SendsLater, describe: Callable[[str | None], Request[P]]
) -> AsyncIterator[P]:
    """The same for asyncio."""
    cursor: str | None = None
    while True:
        page = await client.send(describe(cursor))
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
