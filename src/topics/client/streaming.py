"""Streams of events: one connection, read until it ends, breaks or falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from topics.client.event_stream import Event, EventReader
from topics.client.request import Request
from topics.errors import Unreachable

T = TypeVar("T")
# A stream sends its first bytes at once. Where they do not come, something holds them back.
FIRST_BYTES_S = 5.0
SLACK_S = 5.0


@dataclass(frozen=True, slots=True)
class StreamRequest(Generic[T]):
    """What to open, and how to read its events: None is for nobody, and what is raised ends it."""

    path: str
    read: Callable[[Event], T | None]
    heartbeat_ms: int
    last_event_id: str = ""

    @property
    def silence_s(self) -> float:
        """Nothing for so long means that the stream is dead; heartbeats come more often."""
        return 2 * self.heartbeat_ms / 1000 + SLACK_S


class OpensStreams(Protocol):
    def open_stream(
        self, request: Request[Any], /
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


async def told(client: OpensStreams, wanted: StreamRequest[T]) -> AsyncGenerator[T, None]:
    """What the events of a stream tell, as they come. Always ends by raising.

    Raises what the server refuses with, what its last event says, or Unreachable: `held_back` in
    its detail when not even the first bytes came.
    """
    headers = {"Accept": "text/event-stream"}
    if wanted.last_event_id:
        headers["Last-Event-ID"] = wanted.last_event_id
    request = Request("GET", wanted.path, bytes, headers=headers)
    reader, read = EventReader(), wanted.read
    has_begun = False
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(FIRST_BYTES_S):
                chunks = await stack.enter_async_context(client.open_stream(request))
            while True:
                async with asyncio.timeout(wanted.silence_s if has_begun else FIRST_BYTES_S):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    raise Unreachable("the stream ended")
                has_begun = True
                for event in reader.feed(chunk):
                    found = read(event)
                    if found is not None:
                        yield found
    except TimeoutError:
        raise Unreachable("the stream is silent", held_back=not has_begun) from None
    except msgspec.DecodeError as error:
        raise Unreachable(f"an event that is not one of ours: {error}") from None


class AsyncStream(Generic[T]):
    """One stream: iterate it in an `async with`, whose end closes it. It raises where it breaks."""

    def __init__(self, client: OpensStreams, wanted: StreamRequest[T]) -> None:
        self._items = told(client, wanted)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def close(self) -> None:
        """Ends the connection. Not while another task iterates: cancel that one instead."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
