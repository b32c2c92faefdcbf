"""`follow` for callers that block: the asyncio follower in a thread, a few batches ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topics.client.follow import AsyncFollower, HandedOver, Wanted
from topics.client.following import Batch, Item
from topics.client.sync_stream import Stream

if TYPE_CHECKING:
    from topics.client.client import Client

__all__ = ["Follower", "Wanted"]


class Follower:
    """Iterate it once. `commit` stores the cursor after the last item that the iteration gave."""

    def __init__(self, client: Client, wanted: Wanted) -> None:
        wanted.check()
        self._client = client
        self._wanted = wanted
        self._handed = HandedOver()
        self._ahead: Stream[Batch] = Stream(
            client.options, lambda own: AsyncFollower(own, wanted).batches(), "topics-follow"
        )

    def __iter__(self) -> Iterator[Item]:
        for batch in self.batches():
            yield from self._handed.over(batch)

    def batches(self) -> Iterator[Batch]:
        """What comes, as it comes: runs of records of a topic, and gaps. Nothing of it is noted."""
        return iter(self._ahead)

    def commit(self) -> None:
        """Stores how far the caller has come under the cursor's name. Raises CursorRegressed."""
        for request in self._handed.commits(self._wanted.cursor):
            self._client.send(request)

    def close(self) -> None:
        """Ends the stream; an iteration that waits for it ends, too."""
        self._ahead.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
