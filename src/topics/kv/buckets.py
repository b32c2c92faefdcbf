"""All buckets of an engine: which are open, what is asked of them, and who compacts them.

One for each engine, driven by the same thread. Calls that write return the engine's tickets; calls
that read answer at once, or raise ColdMiss for what only the cold store has. A bucket is filled
before its first use, and all of them a little at a time after a start (`work`), so that nobody
waits for what nobody asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Raw

from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.state.batch import utf8
from topics.engine.state.kinds import DELETE, DELETE_PREFIX, META
from topics.engine.state.topic import Topic
from topics.engine.state.write_request import request_of
from topics.errors import BucketNotFound, Conflicting, DiskFull, InvalidRequest, StorageError
from topics.kv.bucket import Bucket
from topics.kv.compactor import Compactor
from topics.types import BUCKET_CHARS_MAX, BUCKET_TOPIC, Appended, bucket_of, check_name

KEY_BYTES_MAX = 256
# How often a caller that drives the engine by its calls works beside them.
WORK_S = 0.05
Record = dict[str, object]


class Unfilled(Exception):
    """A bucket that can not be used before its index is filled; see `Buckets.fill`."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.topic.name)
        self.bucket = bucket


class Put(NamedTuple):
    """A put on its way; `created` says whether the key was not live."""

    ticket: Ticket[Appended]
    created: bool


def topic_of(bucket: str) -> str:
    """The topic of a bucket. Raises InvalidRequest for a name that no bucket has."""
    if len(bucket) > BUCKET_CHARS_MAX:
        raise InvalidRequest(f"bucket name has more than {BUCKET_CHARS_MAX} characters")
    return BUCKET_TOPIC + check_name(bucket, "bucket")


def check_key(key: str) -> str:
    if key in ("", ".", ".."):
        raise InvalidRequest('a key has at least one character, and is neither "." nor ".."')
    if len(utf8(key, "key")) > KEY_BYTES_MAX:
        raise InvalidRequest(f"a key has at most {KEY_BYTES_MAX} bytes", limit=KEY_BYTES_MAX)
    return key


class Buckets:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._buckets: dict[int, Bucket] = {}
        # Buckets that are to be filled, those that somebody waits for first.
        self._unfilled: dict[int, Bucket] = {}
        self._due_s = 0.0
        self.compactor = Compactor(engine, self.__iter__)
        engine.on_published(self._published)
        for topic in engine.buckets():
            self._enter(topic)

    def _enter(self, topic: Topic) -> Bucket:
        bucket = self._buckets[topic.id] = Bucket(self.engine, topic)
        if topic.head == 0 and self.engine.is_recovered(topic):
            bucket.is_ready = True
        else:
            self._unfilled[topic.id] = bucket
        return bucket

    def _published(self, topic: Topic) -> None:
        """Called by the engine in the middle of things: may neither call it nor fail."""
        if not topic.config.is_bucket:
            return
        bucket = self._buckets.get(topic.id)
        if topic.dropped:
            self._buckets.pop(topic.id, None)
            self._unfilled.pop(topic.id, None)
        elif bucket is None:
            # All there were at the start are entered: this one is new, with what is in memory.
            bucket = self._buckets[topic.id] = Bucket(self.engine, topic)
            bucket.is_ready = True
            bucket.follow()
        elif bucket.is_ready:
            bucket.follow()

    # -- which -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Bucket]:
        return iter(list(self._buckets.values()))

    def get(self, name: str) -> Bucket:
        """A bucket that can be used. Raises BucketNotFound, or Unfilled for one that can not."""
        found = self.find(name)
        if found is None:
            raise BucketNotFound(f'bucket "{name}" does not exist', bucket=name)
        return found

    def find(self, name: str) -> Bucket | None:
        topic = self.engine.find_bucket(topic_of(name))
        if topic is None:
            return None
        bucket = self._buckets.get(topic.id) or self._enter(topic)
        if not bucket.is_ready:
            raise Unfilled(bucket)
        return bucket

    def at_hand(self, name: str) -> Bucket | None:
        """A bucket if it can be used at once. Nothing is brought back or filled for that."""
        topic = self.engine.core.by_name.get(topic_of(name))
        if topic is None:
            return None
        bucket = self._buckets.get(topic.id) or self._enter(topic)
        return bucket if bucket.is_ready else None

    def names(self, prefixes: list[str], *, after: str, limit: int) -> list[str]:
        """Names of buckets whose topics begin with one of the prefixes, in byte order."""
        after = BUCKET_TOPIC + after if after else ""
        found: list[str] = []
        while len(found) < limit:
            page = self.engine.names(prefixes, after=after, limit=limit)
            found.extend(name for topic in page if (name := bucket_of(topic)) is not None)
            if len(page) < limit:
                break
            after = page[-1]
        return found[:limit]

    # -- filling -----------------------------------------------------------------------------

    def fill(self, bucket: Bucket) -> None:
        """Fills a bucket now, whatever it takes. Raises StorageError."""
        while not self._step(bucket):
            self.engine.pause()

    def fill_soon(self, bucket: Bucket) -> None:
        """Somebody waits for a bucket: it is filled before others."""
        if bucket.topic.id in self._unfilled:
            self._unfilled = {bucket.topic.id: bucket, **self._unfilled}

    def fill_some(self) -> bool:
        """A piece of filling; True when there is more to do. Raises StorageError."""
        for bucket in self._unfilled.values():
            self._step(bucket)
            break
        return bool(self._unfilled)

    def work(self, budget_s: float) -> bool:
        """Fills and compacts for about `budget_s`; True when there is more to do at once.

        Raises StorageError, and is to be called again.
        """
        clock = self.engine.core.clock
        stop_s = clock.monotonic_s() + budget_s
        while True:
            more = self.fill_some()
            more = self.compactor.step() or more
            if not more or self.engine.is_waiting or clock.monotonic_s() >= stop_s:
                return more

    def work_if_due(self, budget_s: float) -> None:
        """As `work`, now and then; what fails is told by whatever needs it."""
        now_s = self.engine.core.clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + WORK_S
            with contextlib.suppress(DiskFull, StorageError):
                self.work(budget_s)

    def _step(self, bucket: Bucket) -> bool:
        if bucket.is_ready or bucket.fill_some():
            self._unfilled.pop(bucket.topic.id, None)
            return True
        return False

    # -- writing -----------------------------------------------------------------------------

    def put(
        self,
        name: str,
        key: str,
        value: Raw,
        *,
        if_seq: int | None = None,
        idempotency_key: str | None = None,
    ) -> Put:
        """Stages a put; a missing bucket is made. Raises Conflicting with `seq` in its detail."""
        bucket, key = self.find(name), check_key(key)
        record: Record = {"data": value, "tag": key}
        again = self._again("put", key, idempotency_key)
        if bucket is None:
            _compare(key, if_seq, 0)
            return Put(self._submit(topic_of(name), record, again), True)
        if again is not None and self.engine.repeated(bucket.topic, again) is not None:
            return Put(self._submit(bucket.topic.name, record, again), False)
        ahead = bucket.look_ahead()
        live_seq = ahead.live_seq(key)
        _compare(key, if_seq, live_seq)
        seq = bucket.topic.next_seq
        ticket = self._submit(bucket.topic.name, record, again)
        ahead.note([(seq, key, None)])
        return Put(ticket, not live_seq)

    def delete(
        self,
        name: str,
        key: str,
        *,
        if_seq: int | None = None,
        idempotency_key: str | None = None,
    ) -> Ticket[Appended] | None:
        """Stages a marker; None when the key is not live, and there is none."""
        bucket, key = self.get(name), check_key(key)
        record: Record = {"data": None, "tag": key, "meta": {META: DELETE}}
        again = self._again("delete", key, idempotency_key)
        before = None if again is None else self.engine.repeated(bucket.topic, again)
        if before is not None:
            return self._submit(bucket.topic.name, record, again) if before else None
        ahead = bucket.look_ahead()
        live_seq = ahead.live_seq(key)
        _compare(key, if_seq, live_seq)
        if not live_seq:
            if again is not None:
                # The same call again has nothing to delete either, whatever was put since.
                self.engine.note_empty(bucket.topic, again)
            return None
        return self._submit(bucket.topic.name, record, again)

    def delete_prefix(self, name: str, prefix: str) -> tuple[int, Ticket[Appended] | None]:
        """Stages a range marker: (live keys that it hides, ticket); none where it hides nothing."""
        bucket = self.get(name)
        if len(utf8(prefix, "prefix")) > KEY_BYTES_MAX:
            # No key is that long.
            return 0, None
        hidden = bucket.look_ahead().count_under(prefix)
        if not hidden:
            return 0, None
        record: Record = {"data": {"prefix": prefix}, "meta": {META: DELETE_PREFIX}}
        return hidden, self._submit(bucket.topic.name, record, None)

    def in_turn(self, name: str) -> Ticket[None]:
        """Ends when all that an answer about a bucket was decided by is published."""
        ticket: Ticket[None] = Ticket()
        self.engine.in_turn(self.get(name).topic, ticket)
        return ticket

    def _submit(self, topic: str, record: Record, again: str | None) -> Ticket[Appended]:
        request = request_of([record], idempotency_key=again, create=True)
        return self.engine.submit_append(topic, request)

    def _again(self, what: str, key: str, given: str | None) -> str | None:
        """One key for one operation: another one with the same name is no repetition of it."""
        if given is None:
            return None
        text = "\0".join((what, key, given))
        return hashlib.blake2b(utf8(text, "idempotency key"), digest_size=16).hexdigest()


def _compare(key: str, if_seq: int | None, live_seq: int) -> None:
    if if_seq is not None and if_seq != live_seq:
        stands = f"stands at seq {live_seq}" if live_seq else "is not live"
        raise Conflicting(
            f"the key {stands}, not at {if_seq}; nothing was changed", key=key, seq=live_seq
        )
