"""Who compacts: a pass over one bucket at a time, in slices, asked for or by itself.

By itself it takes the buckets that carry most markers first. One that had nothing to give is left
alone for a while, longer each time: what holds markers is a reader, a snapshot or their age, and
none of them changes in a hurry.

A pass begins by waiting until everything is durable that it will go by: the bucket's own records,
and the places of its readers. What it removes is removed by the log's own permanent delete, a batch
at a time, and forgotten by the index when that has been applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from topics.engine.commit.ticket import Ticket
from topics.engine.engine import Engine
from topics.engine.ops.deleting import Listed
from topics.errors import BucketNotFound, TopicsError
from topics.kv.bucket import Bucket
from topics.kv.compaction import Batch, Compacted, Compaction

# How often buckets are looked at, and how long one is left alone that had nothing to give.
LOOK_S = 0.25
REST_S_MIN, REST_S_MAX = 0.5, 15.0
# Superseded versions are worth a pass when they are this part of a bucket's records.
EXCESS_PART = 8


@dataclass(slots=True)
class Pass:
    """One pass over a bucket; `older_than_ts` None means its own grace."""

    bucket: Bucket
    max_age_ms: int
    prefix: str
    ticket: Ticket[Compacted]
    steps: Iterator[None] | None = None


class Compactor:
    def __init__(self, engine: Engine, buckets: Callable[[], Iterator[Bucket]]) -> None:
        self._engine = engine
        self._buckets = buckets
        self._passes: deque[Pass] = deque()
        self._looked_s = 0.0
        # When a bucket is looked at again, and how long it rests after that, by topic id.
        self._rests: dict[int, tuple[float, float]] = {}

    def ask(self, bucket: Bucket, max_age_ms: int, prefix: str) -> Ticket[Compacted]:
        """Compacts a bucket before others; the ticket ends with what became of it."""
        ticket: Ticket[Compacted] = Ticket()
        place = 1 if self._passes and self._passes[0].steps is not None else 0
        self._passes.insert(place, Pass(bucket, max_age_ms, prefix, ticket))
        return ticket

    def step(self) -> bool:
        """A slice of what is under way; True when there is more to do at once."""
        if not self._passes:
            self._look()
            return bool(self._passes)
        run = self._passes[0]
        if run.steps is None:
            run.steps = self._compact(run)
        try:
            next(run.steps)
        except StopIteration:
            self._passes.popleft()
        except TopicsError as error:
            self._passes.popleft()
            run.ticket.fail(error)
        except BaseException:
            self._passes.popleft()
            raise
        return bool(self._passes)

    def finish(self, ticket: Ticket[Compacted]) -> Compacted:
        """Takes what somebody waits for to its end, at once."""
        while not ticket.done:
            self.step()
            self._engine.maintain()
            self._engine.poll()
            if not ticket.done:
                self._engine.pause()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    # -- a pass ------------------------------------------------------------------------------

    def _compact(self, run: Pass) -> Iterator[None]:
        engine, bucket = self._engine, run.bucket
        topic = bucket.topic
        engine.flush()
        upto = topic.head
        passed = {(each.kind, each.name): each.seq for each in engine.readers(topic)}
        yield from engine.until_durable()
        yield from bucket.reconfigure()
        older_than_ts = engine.core.clock.wall_ms() - run.max_age_ms
        done, is_whole = Compacted(), False
        while not is_whole:
            places = [
                min(each.seq, passed.get((each.kind, each.name), each.seq))
                for each in engine.readers(topic)
            ]
            compaction = Compaction(
                bucket.index, older_than_ts=older_than_ts, prefix=run.prefix, upto=upto,
                readers_seq=min(places, default=upto), snapshots=bucket.snapshots.seqs,
                done=Compacted(done.removed_tombstones, done.removed_versions),
            )  # fmt: skip
            is_whole = yield from self._run(bucket, compaction)
            done = compaction.done
        self._rest(bucket, done)
        run.ticket.resolve(done)

    def _run(self, bucket: Bucket, compaction: Compaction) -> Generator[None, None, bool]:
        """Removes what may go; False when a reader came meanwhile who has not seen some of it."""
        topic = bucket.topic
        for batch in compaction.steps():
            if topic.dropped:
                raise BucketNotFound("the bucket was deleted meanwhile", topic=topic.name)
            if batch is None:
                yield
            elif any(each.seq < batch.unmarked_seq for each in self._engine.readers(topic)):
                return False
            else:
                yield from self._remove(bucket, batch)
        if topic.dropped:
            raise BucketNotFound("the bucket was deleted meanwhile", topic=topic.name)
        return True

    def _remove(self, bucket: Bucket, batch: Batch) -> Iterator[None]:
        listed = Listed(batch.seqs(), batch.lacking)
        ticket = self._engine.submit_removal(bucket.topic, listed)
        if not ticket.done:
            self._engine.flush()
        while not ticket.done:
            yield from self._engine.core.background.wait()
        if ticket.error is not None:
            raise ticket.error
        bucket.past.note(listed.seqs[0], listed.seqs[-1], listed.lacking)
        batch.forget(bucket.index)

    # -- by itself ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Finds buckets that are worth a pass, those with most markers first."""
        now_s = self._engine.core.clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        found = [bucket for bucket in self._buckets() if self._is_due(bucket, now_s)]
        found.sort(key=lambda bucket: len(bucket.index.markers), reverse=True)
        for bucket in found:
            self._passes.append(Pass(bucket, bucket.grace_ms, "", Ticket()))

    def _is_due(self, bucket: Bucket, now_s: float) -> bool:
        index, topic = bucket.index, bucket.topic
        if not bucket.is_ready or topic.dropped:
            return False
        if index.history != topic.config.history:
            return True
        at_s, _ = self._rests.get(topic.id, (0.0, 0.0))
        if now_s < at_s:
            return False
        oldest_ts = index.oldest_marker_ts()
        old_ts = self._engine.core.clock.wall_ms() - bucket.grace_ms
        if oldest_ts is not None and oldest_ts < old_ts:
            return True
        excess = topic.live_count - len(index.keys) - len(index.markers)
        return bool(index.crowded) and excess * EXCESS_PART >= topic.live_count

    def _rest(self, bucket: Bucket, done: Compacted) -> None:
        now_s, key = self._engine.core.clock.monotonic_s(), bucket.topic.id
        rest_s = REST_S_MIN
        if not done.removed_tombstones and not done.removed_versions:
            _, before_s = self._rests.get(key, (0.0, 0.0))
            rest_s = min(max(before_s * 2, REST_S_MIN), REST_S_MAX)
        self._rests[key] = (now_s + rest_s, rest_s)
