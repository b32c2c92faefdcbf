"""A replica of a bucket in another bucket, here or on another server.

The follower's place is a named cursor of the source's topic, so that no marker goes before the
replica has it. It is set before anything is read, and moved after what it passes was applied: what
is applied again after an interruption comes in the same order and ends in the same state. A
follower that is new, or whose place is below what was compacted, or that met a loss, begins anew
with a snapshot: what the snapshot lacks is deleted here, what differs is put.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topics.client import kv_calls, reader_calls
from topics.client.kv_calls import KeyEntry
from topics.client.values import Page
from topics.errors import BucketNotFound, Compacted, NotFound, SnapshotNotFound, TopicNotFound

if TYPE_CHECKING:
    from topics.client.kv import Kv

WAIT_MS = 20_000
PAGE_RECORDS = 1000


class Replica:
    """`follow` applies what comes until it is caught up, or for ever."""

    def __init__(self, source: Kv, into: Kv, cursor: str) -> None:
        self._source = source
        self._into = into
        self._topic = f"kv:{source.name}"
        self._cursor = cursor
        # Changes that were applied, and how often it began anew.
        self.applied = 0
        self.resynced = 0

    def follow(self, *, until_caught_up: bool) -> None:
        place, epoch = self._begin()
        while True:
            page = self._source.client.send(
                reader_calls.diff(
                    self._topic, from_seq=place, limit=PAGE_RECORDS, include_tags=True,
                    epoch=epoch, wait_ms=None if until_caught_up else WAIT_MS,
                )
            )  # fmt: skip
            if page.tombstone is not None or page.epoch != epoch:
                place, epoch = self._resync()
                continue
            self._apply(page)
            if page.next_from_seq > place:
                place = page.next_from_seq
                self._move(place, epoch)
            if page.caught_up and until_caught_up:
                return

    def _begin(self) -> tuple[int, str]:
        """The place to go on from; whatever is older was applied."""
        client = self._source.client
        try:
            held = client.send(reader_calls.cursor(self._topic, self._cursor))
        except TopicNotFound:
            raise BucketNotFound("there is no such bucket", bucket=self._source.name) from None
        except NotFound:
            # Before the first look: from here on no marker goes without us.
            state = client.send(kv_calls.bucket(self._source.name))
            client.send(reader_calls.set_cursor(self._topic, self._cursor, state.head_seq))
            return self._resync()
        state = client.send(kv_calls.bucket(self._source.name))
        if held.seq < state.compacted_seq:
            return self._resync()
        return held.seq, held.epoch

    def _resync(self) -> tuple[int, str]:
        while True:
            try:
                return self._copy()
            except (SnapshotNotFound, Compacted):
                # It took longer than the snapshot lived.
                continue

    def _copy(self) -> tuple[int, str]:
        epoch = self._source.client.topic(self._topic).epoch
        made = self._source.client.send(kv_calls.open_snapshot(self._source.name))
        view = self._source.view(made.snapshot)
        try:
            self._make_equal(view.entries(), self._into.entries())
        finally:
            view.close()
        self._move(made.seq, epoch)
        self.resynced += 1
        return made.seq, epoch

    def _make_equal(self, wanted: Iterator[KeyEntry], held: Iterator[KeyEntry]) -> None:
        """Two runs in byte order, side by side."""
        mine = next(held, None)
        for entry in wanted:
            while mine is not None and mine.key < entry.key:
                self._into.delete(mine.key)
                mine = next(held, None)
            if mine is not None and mine.key == entry.key:
                if bytes(mine.data) != bytes(entry.data):
                    self._put(entry.key, entry.data)
                mine = next(held, None)
            else:
                self._put(entry.key, entry.data)
        while mine is not None:
            self._into.delete(mine.key)
            mine = next(held, None)

    def _apply(self, page: Page) -> None:
        for record in page.records:
            kind = (record.meta or {}).get("kv")
            if kind is None:
                if record.tag:
                    self._put(record.tag, record.data)
            elif kind == "delete":
                if record.tag:
                    self._into.delete(record.tag)
            elif kind == "delete_prefix":
                self._delete_prefix(record.value)
            self.applied += 1

    def _delete_prefix(self, data: Any) -> None:
        prefix = data.get("prefix") if isinstance(data, dict) else None
        if isinstance(prefix, str):
            self._into.delete_range(prefix)

    def _put(self, key: str, data: Any) -> None:
        self._into.client.send(kv_calls.put_key(self._into.name, key, data))

    def _move(self, seq: int, epoch: str) -> None:
        call = reader_calls.set_cursor(self._topic, self._cursor, seq, epoch=epoch, reset=True)
        self._source.client.send(call)


def cursor_of(into: str) -> str:
    """What a follower is called in its source when nobody says."""
    return f"kv-follow-{into}"[:255]
