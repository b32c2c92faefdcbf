"""A bucket of a server, as `client.kv(name)`: the names that an embedded bucket has too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from topics.client import kv_calls
from topics.client.kv_calls import KeyEntry
from topics.client.kv_follow import Replica, follow, follow_async
from topics.client.paging import pages, pages_later
from topics.client.request import Request
from topics.errors import BucketNotFound, KeyNotFound

if TYPE_CHECKING:
    from topics.client.async_client import AsyncClient
    from topics.client.client import Client

PAGE = 1000


class Reads:
    """What can be read of a bucket: as it is, or as a snapshot has it."""

    def __init__(self, client: Client, name: str, snapshot: str | None = None) -> None:
        self.client = client
        self.name = name
        self._snapshot = snapshot

    def get(self, key: str, default: Any = None, *, at_seq: int | None = None) -> Any:
        """The value of a key; `default` when it is not there."""
        found = self.entry(key, at_seq=at_seq)
        return default if found is None else found.value

    def entry(self, key: str, *, at_seq: int | None = None) -> KeyEntry | None:
        """Value, seq and ts of a key; None when it is not there."""
        call = kv_calls.get_key(self.name, key, at_seq=at_seq, snapshot=self._snapshot)
        try:
            return self.client.send(call)
        except (KeyNotFound, BucketNotFound):
            return None

    def keys(self, prefix: str = "", *, at_seq: int | None = None) -> Iterator[str]:
        """Live keys in byte order."""
        return (entry.key for entry in self._entries(prefix, at_seq, values=False))

    def scan(self, prefix: str = "", *, at_seq: int | None = None) -> Iterator[tuple[str, Any]]:
        """Live keys and their values, in byte order."""
        entries = self._entries(prefix, at_seq, values=True)
        return ((entry.key, entry.value) for entry in entries)

    def entries(self, prefix: str = "", *, at_seq: int | None = None) -> Iterator[KeyEntry]:
        """Live keys with value, seq and ts, in byte order."""
        return self._entries(prefix, at_seq, values=True)

    def _entries(self, prefix: str, at_seq: int | None, *, values: bool) -> Iterator[KeyEntry]:
        def describe(cursor: str | None) -> Request[kv_calls.KeyPage]:
            return kv_calls.keys(
                self.name, prefix=prefix, page_size=PAGE, cursor=cursor, values=values,
                at_seq=at_seq, snapshot=self._snapshot,
            )  # fmt: skip

        try:
            for page in pages(self.client, describe):
                yield from page.keys
        except BucketNotFound:
            return


class Kv(Reads):
    """One bucket, now. The first put makes it where it is missing."""

    def put(self, key: str, value: Any, *, if_seq: int | None = None) -> int:
        """Sets a key; its seq. Raises Conflicting when the live version is not `if_seq`."""
        return self.client.send(kv_calls.put_key(self.name, key, value, if_seq=if_seq)).seq

    def delete(self, key: str, *, if_seq: int | None = None) -> bool:
        """Deletes a key; False when it was not live. Raises Conflicting."""
        try:
            return bool(
                self.client.send(kv_calls.delete_key(self.name, key, if_seq=if_seq)).deleted
            )
        except BucketNotFound:
            return False

    def delete_range(self, prefix: str) -> int:
        """Deletes all keys that begin with a prefix; how many."""
        try:
            return int(self.client.send(kv_calls.delete_prefix(self.name, prefix)).deleted)
        except BucketNotFound:
            return 0

    def history(self, key: str) -> list[KeyEntry]:
        """What is left of a key's past, oldest first; empty when nothing is."""
        try:
            return self.client.send(kv_calls.key_history(self.name, key)).versions
        except (KeyNotFound, BucketNotFound):
            return []

    @property
    def size(self) -> int:
        """How many keys are live."""
        return self.client.send(kv_calls.bucket(self.name)).size

    @property
    def pending_tombstones(self) -> int:
        """How many markers were not removed yet."""
        return self.client.send(kv_calls.bucket(self.name)).pending_tombstones

    def compact(self, max_age_ms: int | None = None, *, prefix: str = "") -> int:
        """Removes what nobody needs any more; how many markers."""
        call = kv_calls.compact(self.name, max_age_ms=max_age_ms, prefix=prefix)
        return self.client.send(call).removed_tombstones

    def follow_into(
        self, other: Kv, *, cursor: str | None = None, until_caught_up: bool = False
    ) -> int:
        """Keeps another bucket a replica of this one, for ever or until it has caught up.

        Its place is a named cursor of this bucket's topic (`kv-follow-` and the other's name, when
        none is given). Returns how many changes it applied. Raises BucketNotFound.
        """
        replica = Replica(self.name, other.name, cursor)
        return follow(replica, self, other, until_caught_up=until_caught_up)

    def snapshot(self, ttl_ms: int | None = None) -> View:
        """The bucket as it is now, until it is closed."""
        made = self.client.send(kv_calls.open_snapshot(self.name, ttl_ms=ttl_ms))
        return View(self.client, self.name, made.snapshot)


class View(Reads):
    """A snapshot. Closed at the end of a `with`."""

    def close(self) -> None:
        self.client.send(kv_calls.close_snapshot(self.name, self._snapshot or ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncReads:
    """The same for asyncio."""

    def __init__(self, client: AsyncClient, name: str, snapshot: str | None = None) -> None:
        self.client = client
        self.name = name
        self._snapshot = snapshot

    async def get(self, key: str, default: Any = None, *, at_seq: int | None = None) -> Any:
        found = await self.entry(key, at_seq=at_seq)
        return default if found is None else found.value

    async def entry(self, key: str, *, at_seq: int | None = None) -> KeyEntry | None:
        call = kv_calls.get_key(self.name, key, at_seq=at_seq, snapshot=self._snapshot)
        try:
            return await self.client.send(call)
        except (KeyNotFound, BucketNotFound):
            return None

    async def keys(self, prefix: str = "", *, at_seq: int | None = None) -> AsyncIterator[str]:
        async for entry in self._entries(prefix, at_seq, values=False):
            yield entry.key

    async def scan(
        self, prefix: str = "", *, at_seq: int | None = None
    ) -> AsyncIterator[tuple[str, Any]]:
        async for entry in self._entries(prefix, at_seq, values=True):
            yield entry.key, entry.value

    def entries(self, prefix: str = "", *, at_seq: int | None = None) -> AsyncIterator[KeyEntry]:
        return self._entries(prefix, at_seq, values=True)

    async def _entries(
        self, prefix: str, at_seq: int | None, *, values: bool
    ) -> AsyncIterator[KeyEntry]:
        def describe(cursor: str | None) -> Request[kv_calls.KeyPage]:
            return kv_calls.keys(
                self.name, prefix=prefix, page_size=PAGE, cursor=cursor, values=values,
                at_seq=at_seq, snapshot=self._snapshot,
            )  # fmt: skip

        try:
            async for page in pages_later(self.client, describe):
                for entry in page.keys:
                    yield entry
        except BucketNotFound:
            return


class AsyncKv(AsyncReads):
    """One bucket, now."""

    async def put(self, key: str, value: Any, *, if_seq: int | None = None) -> int:
        done = await self.client.send(kv_calls.put_key(self.name, key, value, if_seq=if_seq))
        return done.seq

    async def delete(self, key: str, *, if_seq: int | None = None) -> bool:
        try:
            call = kv_calls.delete_key(self.name, key, if_seq=if_seq)
            return bool((await self.client.send(call)).deleted)
        except BucketNotFound:
            return False

    async def delete_range(self, prefix: str) -> int:
        try:
            return int((await self.client.send(kv_calls.delete_prefix(self.name, prefix))).deleted)
        except BucketNotFound:
            return 0

    async def history(self, key: str) -> list[KeyEntry]:
        try:
            return (await self.client.send(kv_calls.key_history(self.name, key))).versions
        except (KeyNotFound, BucketNotFound):
            return []

    @property
    def size(self) -> Awaitable[int]:
        return self._counted("size")

    @property
    def pending_tombstones(self) -> Awaitable[int]:
        return self._counted("pending_tombstones")

    async def _counted(self, name: str) -> int:
        state = await self.client.send(kv_calls.bucket(self.name))
        return state.size if name == "size" else state.pending_tombstones

    async def compact(self, max_age_ms: int | None = None, *, prefix: str = "") -> int:
        call = kv_calls.compact(self.name, max_age_ms=max_age_ms, prefix=prefix)
        return (await self.client.send(call)).removed_tombstones

    async def follow_into(
        self, other: AsyncKv, *, cursor: str | None = None, until_caught_up: bool = False
    ) -> int:
        """As that of `Kv`. Begun again after it was cancelled it goes on where it was."""
        replica = Replica(self.name, other.name, cursor)
        return await follow_async(replica, self, other, until_caught_up=until_caught_up)

    async def snapshot(self, ttl_ms: int | None = None) -> AsyncView:
        made = await self.client.send(kv_calls.open_snapshot(self.name, ttl_ms=ttl_ms))
        return AsyncView(self.client, self.name, made.snapshot)


class AsyncView(AsyncReads):
    """A snapshot. Closed at the end of an `async with`."""

    async def close(self) -> None:
        await self.client.send(kv_calls.close_snapshot(self.name, self._snapshot or ""))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
