"""The key-value store beside the loop: who waits for a bucket, and when buckets are worked on.

A bucket's index is filled after a start, a slice at a time. A call that needs one before that waits
for it, and nobody else does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from topics.engine.engine import Engine
from topics.engine.state.segments import ColdMiss
from topics.errors import StorageError, TopicsError
from topics.kv.bucket import Bucket
from topics.kv.buckets import Buckets, Unfilled
from topics.server.api.call import Call
from topics.server.http.message import PENDING, Answer
from topics.types import bucket_of

LOG = logging.getLogger("topics.server")

Resume = Callable[[], Answer]
# How a call that was put off goes on, and how one that missed records does.
GoOn = Callable[[Call, Resume], None]
Fetch = Callable[[Call, ColdMiss, Resume], Answer]
WARN_S = 1.0


class BucketDesk:
    """`buckets` is there once the engine is open."""

    def __init__(self, go_on: GoOn, fetch: Fetch, *, tombstones_warn: int) -> None:
        self.buckets: Buckets
        self._go_on = go_on
        self._fetch = fetch
        self._tombstones_warn = tombstones_warn
        self._warned: set[int] = set()
        self._looked_s = 0.0
        self._waiting: list[tuple[Bucket, Call, Resume]] = []

    def open(self, engine: Engine) -> None:
        self.buckets = Buckets(engine)

    def answer(self, call: Call, read: Resume) -> Answer:
        """Answers with `read`, again when the bucket is filled, or the cold store has answered."""
        try:
            return read()
        except Unfilled as wanted:
            self.buckets.fill_soon(wanted.bucket)
            self._waiting.append((wanted.bucket, call, partial(self.answer, call, read)))
            call.mind_leaving()
            return PENDING
        except ColdMiss as miss:
            return self._fetch(call, miss, partial(self.answer, call, read))

    def work(self, budget_s: float) -> bool:
        """A slice of filling and compacting; True when there is more to do at once."""
        more = True
        try:
            more = self.buckets.work(budget_s)
        except StorageError as error:
            self._fail(error)
            raise
        finally:
            if self._waiting:
                self._wake()
            self._warn()
        return more

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for bucket, call, resume in waiting:
            if call.is_gone:
                continue
            if bucket.is_ready or bucket.topic.dropped:
                self._go_on(call, resume)
            else:
                self._waiting.append((bucket, call, resume))

    def _fail(self, error: TopicsError) -> None:
        """What can not be filled now is told to whoever waits; the next one tries again."""
        waiting, self._waiting = self._waiting, []
        for bucket, call, resume in waiting:
            if bucket.is_ready:
                self._waiting.append((bucket, call, resume))
            elif not call.is_gone:
                call.fail(error)

    # -- an alarm ----------------------------------------------------------------------------

    def is_over(self, bucket: Bucket) -> bool:
        """Whether a bucket carries more markers than it should."""
        return 0 < self._tombstones_warn <= len(bucket.index.markers)

    def _warn(self) -> None:
        engine = self.buckets.engine
        now_s = engine.core.clock.monotonic_s()
        if not self._tombstones_warn or now_s - self._looked_s < WARN_S:
            return
        self._looked_s = now_s
        for bucket in self.buckets:
            topic = bucket.topic
            if not self.is_over(bucket):
                self._warned.discard(topic.id)
            elif topic.id not in self._warned:
                self._warned.add(topic.id)
                LOG.warning(
                    "bucket %s has %d markers that were not removed; held by %s",
                    bucket_of(topic.name), len(bucket.index.markers),
                    _held_by(self.buckets, bucket),
                )  # fmt: skip


def _held_by(buckets: Buckets, bucket: Bucket) -> str:
    """What keeps the oldest marker, in words."""
    oldest = next(iter(bucket.index.markers), 0)
    late = [each.name for each in buckets.engine.readers(bucket.topic) if each.seq < oldest]
    held = [f"{len(bucket.snapshots)} open snapshots"] if len(bucket.snapshots) else []
    held += [f"readers {', '.join(late[:5])}"] if late else []
    return " and ".join(held) or "nothing but their age"
