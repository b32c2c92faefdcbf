"""A bucket of an engine in this process: plain calls that wait until they are done.

    kv = open_bucket(engine, "profiles")
    kv.put("ada", {"born": 1815})
    kv.get("ada")

Filling and compacting are done beside the calls, a little with each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.state.write_request import json_of
from topics.errors import BucketNotFound, KeyNotFound
from topics.kv import reading
from topics.kv.bucket import Bucket
from topics.kv.buckets import Buckets, Unfilled, check_key
from topics.kv.compaction import Compacted
from topics.kv.snapshots import TTL_MS
from topics.types import Appended, value_of

SLICE_S = 0.002
PAGE = 1000

T = TypeVar("T")
_OPEN: WeakKeyDictionary[Engine, Buckets] = WeakKeyDictionary()


def buckets_of(engine: Engine) -> Buckets:
    """The buckets of an engine; there is one such object for each."""
    found = _OPEN.get(engine)
    if found is None:
        found = _OPEN[engine] = Buckets(engine)
    return found


def open_bucket(engine: Engine, name: str) -> KeyValue:
    """A bucket, which the first put makes where it is missing."""
    return KeyValue(buckets_of(engine), name)


class EntryOf(NamedTuple):
    """A key's live version."""

    key: str
    value: Any
    seq: int
    ts: int


class VersionOf(NamedTuple):
    """A version of a key's past, or the marker that ended one."""

    key: str
    seq: int
    ts: int
    value: Any
    deleted: bool


class Reads:
    """What can be read of a bucket, at a snapshot or now."""

    def __init__(self, buckets: Buckets, name: str, snapshot: str | None = None) -> None:
        self._buckets = buckets
        self._engine = buckets.engine
        self.name = name
        self._snapshot = snapshot
        # The bucket once it was read as it is: until it is dropped that is the one.
        self._bucket: Bucket | None = None

    def get(self, key: str, default: Any = None, *, at_seq: int | None = None) -> Any:
        """The value of a key; `default` when it is not there."""
        bucket = self._bucket
        if at_seq is None and bucket is not None and not bucket.topic.dropped:
            # The short way of most reads: a bucket that is known, a record that is in memory.
            seq = bucket.index.live_seq(key)
            data = self._engine.data_at_hand(bucket.topic, seq) if seq else None
            if data is not None:
                return value_of(data)
        found = self.entry(key, at_seq=at_seq)
        return default if found is None else found.value

    def entry(self, key: str, *, at_seq: int | None = None) -> EntryOf | None:
        """Value, seq and time of a key; None when it is not there. Raises Compacted."""
        check_key(key)
        snapshot = self._snapshot

        def read(bucket: Bucket) -> EntryOf:
            found = reading.get(self._engine, bucket, key, at=at_seq, snapshot=snapshot)
            return EntryOf(key, _value(found.value), found.seq, found.ts)

        try:
            return self._read(read)
        except (KeyNotFound, BucketNotFound):
            return None

    def keys(self, prefix: str = "", *, at_seq: int | None = None) -> Iterator[str]:
        """Live keys in byte order."""
        return (entry.key for entry in self._entries(prefix, at_seq, with_values=False))

    def scan(self, prefix: str = "", *, at_seq: int | None = None) -> Iterator[tuple[str, Any]]:
        """Live keys with their values, in byte order."""
        entries = self._entries(prefix, at_seq, with_values=True)
        return ((entry.key, _value(entry.value)) for entry in entries)

    def _entries(
        self, prefix: str, at_seq: int | None, *, with_values: bool
    ) -> Iterator[reading.Entry]:
        after: str | None = ""
        while after is not None:
            start = after

            def read(bucket: Bucket, start: str = start) -> reading.Page:
                return reading.page(
                    self._engine, bucket, prefix=prefix, after=start, limit=PAGE,
                    with_values=with_values, at=at_seq, snapshot=self._snapshot,
                )  # fmt: skip

            try:
                page = self._read(read)
            except BucketNotFound:
                return
            yield from page.entries
            after = page.after

    def _read(self, read: Callable[[Bucket], T]) -> T:
        bucket = self._retrying(lambda: self._buckets.get(self.name))
        if self._snapshot is None:
            self._bucket = bucket
        return self._retrying(lambda: read(bucket))

    def _retrying(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return self._engine.fetching(call)
            except Unfilled as wanted:
                self._buckets.fill(wanted.bucket)


class KeyValue(Reads):
    """One bucket, now."""

    def put(
        self,
        key: str,
        value: Any,
        *,
        if_seq: int | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Sets a key; its seq. Durable on return as the bucket's class promises.

        Raises Conflicting when the live version is another than `if_seq` (0: there is none).
        """
        raw = json_of(value)
        put = self._retrying(
            lambda: self._buckets.put(
                self.name, key, raw, if_seq=if_seq, idempotency_key=idempotency_key
            )
        )
        seq = self._engine.wait(put.ticket).first_seq
        self._work()
        return seq

    def delete(
        self, key: str, *, if_seq: int | None = None, idempotency_key: str | None = None
    ) -> bool:
        """Deletes a key; False when it was not live. Raises Conflicting."""
        try:
            ticket = self._retrying(
                lambda: self._buckets.delete(
                    self.name, key, if_seq=if_seq, idempotency_key=idempotency_key
                )
            )
        except BucketNotFound:
            return False
        self._finish(ticket)
        return ticket is not None

    def delete_range(self, prefix: str) -> int:
        """Deletes all keys that begin with a prefix; how many."""
        try:
            hidden, ticket = self._retrying(lambda: self._buckets.delete_prefix(self.name, prefix))
        except BucketNotFound:
            return 0
        self._finish(ticket)
        return hidden

    def history(self, key: str) -> list[VersionOf]:
        """What is left of a key's past, oldest first; empty when nothing is."""
        try:
            found = self._read(lambda bucket: reading.history(self._engine, bucket, check_key(key)))
        except (KeyNotFound, BucketNotFound):
            return []
        return [
            VersionOf(key, each.seq, each.ts, _value(each.value), each.value is None)
            for each in found
        ]

    @property
    def size(self) -> int:
        """How many keys are live."""
        return self._read(lambda bucket: len(bucket.index.keys))

    @property
    def pending_tombstones(self) -> int:
        """How many markers were not removed yet."""
        return self._read(lambda bucket: len(bucket.index.markers))

    def compact(self, max_age_ms: int | None = None, *, prefix: str = "") -> int:
        """Removes what nobody needs any more; how many markers."""
        return self.compaction(max_age_ms, prefix=prefix).removed_tombstones

    def compaction(self, max_age_ms: int | None = None, *, prefix: str = "") -> Compacted:
        """As `compact`, with all that is to say of it."""
        compactor = self._buckets.compactor

        def ask(bucket: Bucket) -> Compacted:
            age_ms = bucket.grace_ms if max_age_ms is None else max_age_ms
            return compactor.finish(compactor.ask(bucket, age_ms, prefix))

        return self._read(ask)

    def snapshot(self, ttl_ms: int = TTL_MS) -> View:
        """The bucket as it is now, until it is closed."""
        made = self._read(lambda bucket: bucket.snapshots.open(bucket.topic.head, ttl_ms))
        return View(self._buckets, self.name, made.id)

    def _finish(self, ticket: Ticket[Appended] | None) -> None:
        """Waits for a marker, or for what the answer goes by where there is none."""
        ended: Ticket[Any] = self._buckets.in_turn(self.name) if ticket is None else ticket
        self._engine.wait(ended)
        self._work()

    def _work(self) -> None:
        self._buckets.work_if_due(SLICE_S)


class View(Reads):
    """A snapshot of a bucket. Closed at the end of a `with`."""

    def close(self) -> None:
        snapshot = self._snapshot or ""
        self._read(lambda bucket: bucket.snapshots.close(snapshot))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _value(raw: bytes | None) -> Any:
    return None if raw is None else value_of(raw)
