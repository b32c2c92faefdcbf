"""`follow`: records and gaps of topics as they come, each once and in order, over any interruption.

The event stream is used where it gets through, and long-polls where something in between holds it
back. After an interruption the follower asks again from its own places: it does not depend on what
the server remembers of it. The session stays the same where it can: a server has room for so many,
and keeps each for minutes after its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from topics.client import reader_calls
from topics.client.following import LIMIT, Batch, Following, Item
from topics.client.reader_calls import WatchFrom
from topics.client.request import Request
from topics.client.retries import Attempts, is_transient
from topics.client.stream_values import CaughtUp, Received, StreamEvent, topic_told
from topics.client.streaming import StreamRequest, told
from topics.errors import InvalidRequest, NotFound, TopicsError

if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient

Mode = Literal["auto", "stream", "poll"]
HEARTBEAT_MS = 5_000
HELD_BACK_MAX = 2
POLL_WAIT_MS = 20_000
# With several topics each is asked in turn, so none may wait for long.
POLL_WAIT_MANY_MS = 250


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to follow, from where, and how it is to look."""

    topics: tuple[str, ...]
    # One for all topics, or each its own.
    from_seq: int | Mapping[str, int] = 0
    from_ts_ms: int | None = None
    tail: bool = False
    cursor: str | None = None
    node: str | Sequence[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    mode: Mode = "auto"

    def look(self) -> dict[str, Any]:
        return {
            "node": self.node, "include_tags": self.include_tags,
            "include_meta": self.include_meta,
        }  # fmt: skip

    def check(self) -> None:
        if not self.topics:
            raise InvalidRequest("follow needs at least one topic")
        starts = [self.from_seq != 0, self.from_ts_ms is not None, self.tail]
        if sum(starts) > 1:
            raise InvalidRequest("follow starts at one of from_seq, from_ts_ms and tail")


@dataclass(frozen=True, slots=True)
class Joined:
    """A session that the server has for this follower, and what it was made for."""

    stream_url: str
    topics: frozenset[str]
    limit: int


class HandedOver:
    """How far the caller has been given what was received: what a commit stores."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[int, str]] = {}
        self._committed: dict[str, tuple[int, str]] = {}

    def over(self, batch: Batch) -> Iterator[Item]:
        """The items of a batch; each counts as handed over when it is asked for."""
        places, topic, epoch = self.places, batch.topic, batch.epoch
        for item in batch.items[:-1]:
            if isinstance(item, Received):
                places[topic] = (item.seq, epoch)
            yield item
        places[topic] = (batch.seq_after, epoch)
        yield batch.items[-1]

    def commits(self, cursor: str | None) -> Iterator[Request[Any]]:
        """The calls that store what is new; each counts as done when the next one is asked for.

        Raises InvalidRequest without a cursor's name.
        """
        if cursor is None:
            raise InvalidRequest("this follow has no cursor: name one with cursor=")
        for name, at in list(self.places.items()):
            if self._committed.get(name) != at:
                seq, epoch = at
                yield reader_calls.set_cursor(name, cursor, seq, epoch=epoch)
                self._committed[name] = at


class AsyncFollower:
    """Iterate it. `commit` stores the cursor after the last item that the iteration gave."""

    def __init__(self, client: AsyncClient, wanted: Wanted) -> None:
        wanted.check()
        self._client = client
        self._wanted = wanted
        self._handed = HandedOver()
        self._held_back = 0
        self._is_polling = wanted.mode == "poll"
        # Whether the server has said since the last interruption how far there is anything.
        self._has_heard = False
        # Less at a time where connections break before anything whole has come through.
        self._limit = LIMIT
        self._joined: Joined | None = None

    async def __aiter__(self) -> AsyncIterator[Item]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for item in self._handed.over(batch):
                    yield item

    async def commit(self) -> None:
        """Stores how far the caller has come under the cursor's name. Raises CursorRegressed."""
        for request in self._handed.commits(self._wanted.cursor):
            await self._client.send(request)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """What comes, as it comes: runs of records of a topic, and gaps. Nothing of it is noted."""
        following = Following(await self._places())
        attempts: Attempts | None = None
        is_first = True
        while following.places:
            way = self._polled if self._is_polling else self._streamed
            try:
                async with aclosing(way(following, is_first)) as batches:
                    async for batch in batches:
                        self._has_heard = True
                        self._limit = min(self._limit * 2, LIMIT)
                        yield batch
            except TopicsError as error:
                if self._has_heard:
                    # Another interruption than the one before, however little came between them.
                    attempts, is_first, self._has_heard = None, False, False
                elif attempts is not None:
                    self._limit = max(self._limit // 4, 1)
                if is_first and isinstance(error, NotFound):
                    raise
                attempts = attempts or Attempts(_FOLLOW, self._client.options.retries)
                await asyncio.sleep(attempts.pause_s_after(error))

    async def _places(self) -> dict[str, WatchFrom]:
        wanted = self._wanted
        return {name: await self._place(name) for name in wanted.topics}

    async def _place(self, name: str) -> WatchFrom:
        wanted = self._wanted
        if wanted.cursor is not None:
            try:
                found = await self._client.cursor(name, wanted.cursor)
                return WatchFrom(from_seq=found.seq, epoch=found.epoch)
            except NotFound:
                # Without the topic, the watch says so.
                pass
        if wanted.from_ts_ms is not None:
            at = await self._client.seq_at(name, wanted.from_ts_ms)
            return WatchFrom(from_seq=at.from_seq, epoch=at.epoch)
        from_seq = wanted.from_seq
        return WatchFrom(
            from_seq=from_seq if isinstance(from_seq, int) else from_seq.get(name, 0),
            tail=wanted.tail,
        )

    async def _streamed(self, following: Following, is_first: bool) -> AsyncGenerator[Batch, None]:
        last_id = self._resumed_from(following)
        stream_url = "" if self._joined is None else self._joined.stream_url
        if not last_id:
            stream_url = await self._join(following, is_first)
        if not following.places:
            return
        wanted: StreamRequest[StreamEvent] = StreamRequest(
            stream_url, topic_told, HEARTBEAT_MS, last_id
        )
        try:
            async with aclosing(told(self._client, wanted)) as events:
                async for event in events:
                    self._held_back = 0
                    self._has_heard = self._has_heard or isinstance(event, CaughtUp)
                    batch = following.take(event)
                    if batch is not None:
                        yield batch
                    if not following.places:
                        return
        except TopicsError as error:
            self._note_broken(error)
            # A session that is over is no end: the caller asks again, and gets a new one.
            if not last_id or is_transient(error):
                raise

    def _resumed_from(self, following: Following) -> str:
        """The event id to go on from in the session that there is; empty when a new one is due."""
        joined = self._joined
        if joined is None or joined.limit != self._limit or joined.topics != set(following.places):
            return ""
        return following.event_id()

    async def _join(self, following: Following, is_first: bool) -> str:
        """Makes a session from the places, and says where its stream is."""
        session = await self._client.send(
            reader_calls.watch(
                following.places,
                limit=self._limit, heartbeat_ms=HEARTBEAT_MS, lenient=not is_first,
                **self._wanted.look(),
            )
        )  # fmt: skip
        following.began(session)
        self._joined = Joined(session.stream_url, frozenset(following.places), self._limit)
        return session.stream_url

    def _note_broken(self, error: TopicsError) -> None:
        if not is_transient(error) or error.detail.get("astray"):
            self._joined = None
        if error.detail.get("held_back"):
            self._held_back += 1
            self._is_polling = self._wanted.mode == "auto" and self._held_back >= HELD_BACK_MAX

    async def _polled(self, following: Following, is_first: bool) -> AsyncGenerator[Batch, None]:
        look = self._wanted.look()
        await self._resolve_tails(following)
        wait_ms = POLL_WAIT_MS if len(following.places) == 1 else POLL_WAIT_MANY_MS
        while following.places:
            for name in list(following.places):
                try:
                    page = await self._client.send(
                        following.poll(name, wait_ms, self._limit, **look)
                    )
                except NotFound:
                    if is_first and following.places[name].epoch is None:
                        raise
                    del following.places[name]
                    continue
                self._has_heard = True
                for batch in following.take_page(page):
                    yield batch

    async def _resolve_tails(self, following: Following) -> None:
        for name, place in following.places.items():
            if place.tail:
                state = await self._client.topic(name)
                following.places[name] = WatchFrom(from_seq=state.head_seq, epoch=state.epoch)


# Stands for the whole of a follow where it is tried again: reading it on is always safe.
_FOLLOW: Request[bytes] = Request("GET", "", bytes)
