"""Feeds: the topics that somebody watches, and who is at which place in each.

A feed's readers are idle (at the end of what they may see) or queued. When the end moves, all idle
ones are queued at once; serving takes them in turn, one read each, as far as its budget goes. So a
reader waits at most one round, and what is written meanwhile joins its next frame.

Nothing is held for a reader that takes nothing: it stays where it is until its sink is writable.
A strong reader sees a record once it is durable, any other once it is published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from topics.engine.commit.core import Core
from topics.engine.reading import priority, watch
from topics.engine.reading.scheduler import Scheduler, Served
from topics.engine.reading.watch import Sink, Subscription, WatchCursor
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import CorruptData
from topics.storage.frames import Mark

# Reads of one topic that are kept for readers at the same place.
SHARED_MAX = 256
# Readers that one call looks at, also when none of them has anything to be told.
LOOKS_MAX = 2000
# Classes whose records are readable before they are durable.
EARLY = frozenset({"disk", "memory"})

Fetch = Callable[[ColdMiss, Callable[[BaseException | None], None]], None]


class Feed:
    """One watched topic."""

    __slots__ = (
        "caught_up", "durable", "feeds", "fetching", "idle", "marks", "queue", "reached", "readers",
        "shared", "stamp", "strong", "topic",
    )  # fmt: skip

    def __init__(self, feeds: Feeds, topic: Topic) -> None:
        self.feeds = feeds
        self.topic = topic
        self.idle: dict[WatchCursor, None] = {}
        self.queue: deque[WatchCursor] | None = None
        # Where the ends were when the idle ones were last queued: (head, durable).
        self.reached = (-1, -1)
        # Reads that others may share, as long as the topic looks like `stamp`.
        self.shared: dict[tuple[int, int, watch.WatchOptions], watch.Step | None] | None = None
        self.caught_up: watch.StreamFrame | None = None
        self.stamp: tuple[int, ...] = ()
        # How many readers there are, and how many strong ones; for those, what is durable and when
        # more will be.
        self.readers = 0
        self.strong = 0
        self.durable = -1
        self.marks: deque[tuple[Mark, int]] | None = None
        # Readers that wait for blocks of the cold store.
        self.fetching: dict[int, list[WatchCursor]] | None = None

    # -- for the scheduler -------------------------------------------------------------------

    def priority(self, wall_ms: int, waited_ms: int) -> int:
        topic = self.topic
        return priority.effective(
            topic.config, consumed_ms=topic.last_read_ts, now_ms=wall_ms, waited_ms=waited_ms
        )  # fmt: skip

    def serve(self, frames_max: int, bytes_max: int) -> Served:
        """Lets readers take one read each, until the budget is spent or nobody is behind."""
        topic = self.topic
        if topic.dropped:
            return self._end(frames_max)
        core = self.feeds.core
        if topic.config.ttl_ms or topic.holds:
            core.expire(topic)
            core.committer.flush()
        self._look_again()
        count = size = 0
        for _ in range(LOOKS_MAX):
            if count >= frames_max or size >= bytes_max:
                break
            cursor = self._next()
            if cursor is None:
                self.shared = self.caught_up = None
                break
            sent = self._serve(cursor)
            if sent is not None:
                count += 1
                size += sent
        if count:
            topic.note_read(core.clock.wall_ms())
        return Served(count, size, self._has_work())

    def paced(self, retry_after_ms: int) -> None:
        for cursor in [*self.idle, *(self.queue or ())]:
            sink = cursor.subscription.sink
            if cursor.feed is self and sink is not None:
                sink.paced(cursor.name, retry_after_ms)

    # -- serving -----------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Forgets shared reads when anything was published, deleted, lost or made durable."""
        topic = self.topic
        stamp = (topic.head, topic.floor, topic.live_count, self.durable, topic.config_version)
        if stamp != self.stamp:
            self.stamp = stamp
            self.shared = self.caught_up = None

    def _next(self) -> WatchCursor | None:
        while True:
            if not self.queue:
                self.queue = None
                if not self._has_work():
                    return None
                self.reached = (self.topic.head, self.durable)
                self.queue = deque(self.idle)
                self.idle = {}
            cursor = self.queue.popleft()
            # One that has left, or left and come back, may still be here.
            if cursor.feed is self:
                return cursor

    def _has_work(self) -> bool:
        if self.queue:
            return True
        return bool(self.idle) and self.reached != (self.topic.head, self.durable)

    def _serve(self, cursor: WatchCursor) -> int | None:
        """One read for one reader; the bytes it was sent, None where there was nothing to do."""
        topic, subscription = self.topic, cursor.subscription
        options, sink = subscription.options, subscription.sink
        assert sink is not None
        bound = self._bound() if options.is_strong else topic.head
        is_same = cursor.epoch == topic.epoch
        if cursor.seq == bound and is_same and cursor.is_live:
            self.idle[cursor] = None
            return None
        if not sink.is_writable:
            subscription.blocked = subscription.blocked or {}
            subscription.blocked[cursor] = None
            return None
        key = (cursor.seq, cursor.told, options) if is_same else (-1, -1, options)
        shared = self.shared
        if shared is None or len(shared) >= SHARED_MAX:
            shared = self.shared = {}
        if key in shared:
            step = shared[key]
        else:
            try:
                step = watch.advance(
                    topic, cursor.seq, cursor.told, cursor.epoch, options, bound,
                    self.feeds.load_now,
                )  # fmt: skip
            except ColdMiss as miss:
                self._fetch(cursor, miss)
                return None
            except Exception as error:
                # Whatever it is, this reader is told, and the others go on.
                self.feeds.detach_one(cursor)
                sink.fail(cursor, error, is_final=True)
                return None
            shared[key] = step
        if step is None:
            self.idle[cursor] = None
            return None
        return self._deliver(cursor, subscription, sink, step, bound)

    def _deliver(
        self, cursor: WatchCursor, subscription: Subscription, sink: Sink, step: watch.Step,
        bound: int,
    ) -> int:  # fmt: skip
        is_fresh = cursor.is_fresh and subscription.tells_too_old
        frames = step.too_old if is_fresh else step.frames
        subscription.move(cursor, step.seq, self.topic.epoch)
        cursor.is_fresh = False
        if not step.is_drained:
            cursor.is_live = False
            self.queue = self.queue if self.queue is not None else deque()
            self.queue.append(cursor)
        else:
            self.idle[cursor] = None
            if not cursor.is_live:
                cursor.is_live = True
                frames = (*frames, self._caught_up(step.seq, bound))
        if not frames:
            return 0
        cursor.told = step.seq
        subscription.has_told = True
        self.feeds.core.tally.read += step.count
        return sink.deliver(cursor, frames)

    def _caught_up(self, seq: int, bound: int) -> watch.StreamFrame:
        told = self.caught_up
        if told is None or told.seq != seq:
            told = self.caught_up = watch.caught_up(self.topic, seq, bound)
        return told

    def _end(self, frames_max: int) -> Served:
        """The topic is gone: every reader is told, and leaves."""
        topic, queue = self.topic, self.queue or deque()
        queue.extend(self.idle)
        self.idle = {}
        self.queue = queue
        count = size = 0
        while queue and count < frames_max:
            cursor = queue.popleft()
            sink = cursor.subscription.sink
            if cursor.feed is not self or sink is None:
                continue
            if not sink.is_writable:
                cursor.subscription.blocked = cursor.subscription.blocked or {}
                cursor.subscription.blocked[cursor] = None
                continue
            self.feeds.detach_one(cursor)
            told = watch.deleted(topic.name, cursor.seq, topic.head, cursor.epoch)
            cursor.subscription.has_told = True
            size += sink.deliver(cursor, (told,))
            count += 1
        return Served(count, size, bool(queue))

    # -- the cold store ----------------------------------------------------------------------

    def _fetch(self, cursor: WatchCursor, miss: ColdMiss) -> None:
        self.fetching = self.fetching or {}
        block = id(miss.ahead[0])
        waiting = self.fetching.get(block)
        if waiting is not None:
            waiting.append(cursor)
            return
        self.fetching[block] = [cursor]
        self.feeds.fetch(miss, lambda error: self._fetched(block, error))

    def _fetched(self, block: int, error: BaseException | None) -> None:
        waiting = (self.fetching or {}).pop(block, [])
        for cursor in waiting:
            sink = cursor.subscription.sink
            if cursor.feed is not self or sink is None:
                continue
            if isinstance(error, CorruptData):
                self.feeds.detach_one(cursor)
                sink.fail(cursor, error, is_final=True)
            elif isinstance(error, Exception):
                sink.fail(cursor, error, is_final=False)
                self.feeds.retry(cursor)
            else:
                self.requeue(cursor)

    def requeue(self, cursor: WatchCursor) -> None:
        """A reader that can go on."""
        if cursor.feed is self:
            self.queue = self.queue if self.queue is not None else deque()
            self.queue.append(cursor)
            self.feeds.scheduler.mark(self)

    def detach(self, cursor: WatchCursor) -> None:
        """A reader that does not go on; the last one takes the feed along."""
        self.idle.pop(cursor, None)
        self.readers -= 1
        if cursor.subscription.options.is_strong:
            self.strong -= 1
        if not self.readers:
            self.feeds.forget(self)

    # -- what is durable ---------------------------------------------------------------------

    def _bound(self) -> int:
        topic = self.topic
        return topic.head if topic.durability not in EARLY else min(self.durable, topic.head)

    def note_published(self) -> None:
        """Something was published that strong readers may only see when it is durable."""
        topic, committer = self.topic, self.feeds.core.committer
        mark = committer.position(topic)
        if topic.durability not in EARLY or committer.is_durable(topic):
            self.durable, self.marks = topic.head, None
        elif self.marks and self.marks[-1][0] == mark:
            self.marks[-1] = (mark, topic.head)
        else:
            self.marks = self.marks if self.marks is not None else deque()
            self.marks.append((mark, topic.head))
            # They wait for it, which what was written last perhaps does not.
            committer.after_sync(topic, self._synced)

    def _synced(self) -> None:
        marks, committer = self.marks, self.feeds.core.committer
        while marks and committer.is_durable(self.topic, marks[0][0]):
            self.durable = marks.popleft()[1]
        if self.strong:
            self.feeds.scheduler.mark(self)


class Feeds:
    """All feeds of an engine. Drives nothing by itself: `scheduler.turn` does, when it is called.

    `fetch` gets what a read missed in the cold store; without threads it waits for it.
    """

    def __init__(self, core: Core, scheduler: Scheduler, fetch: Fetch | None = None) -> None:
        self.core = core
        self.scheduler = scheduler
        self.load_now = core.segments.columns
        self.fetch = fetch or self._fetch_waiting
        self._by_id: dict[int, Feed] = {}
        self._retries: list[WatchCursor] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._by_id.values())

    def published(self, topic: Topic) -> None:
        """The engine's hook: a topic's head moved, or the topic is gone."""
        feed = self._by_id.get(topic.id)
        if feed is not None:
            if feed.strong and not topic.dropped:
                feed.note_published()
            self.scheduler.mark(feed)

    def attach(self, subscription: Subscription, sink: Sink) -> None:
        """Begins or resumes: from here on frames go to `sink`, from where the cursors are."""
        assert subscription.sink is None
        subscription.sink = sink
        for cursor in subscription.cursors:
            self._attach(cursor)

    def _attach(self, cursor: WatchCursor) -> None:
        core = self.core
        if cursor.name not in core.by_name:
            sink = cursor.subscription.sink
            assert sink is not None
            cursor.subscription.has_told = True
            told = watch.deleted(cursor.name, cursor.seq, cursor.seq, cursor.epoch)
            sink.deliver(cursor, (told,))
            return
        # Attaching consumes; the call also brings back a topic that recovery left for later.
        self.core.topic(cursor.name)
        topic = core.by_name[cursor.name]
        feed = self._by_id.get(topic.id)
        if feed is None:
            feed = self._by_id[topic.id] = Feed(self, topic)
        cursor.feed = feed
        cursor.told = cursor.seq
        feed.readers += 1
        cursor.is_live = False
        cursor.is_fresh = True
        if cursor.subscription.options.is_strong:
            feed.strong += 1
            if feed.strong == 1:
                feed.durable = -1
                feed.marks = None
                feed.note_published()
        feed.requeue(cursor)

    def detach(self, subscription: Subscription) -> None:
        """Ends, or pauses: the cursors stay where they are."""
        subscription.sink = None
        subscription.blocked = None
        for cursor in subscription.cursors:
            self.detach_one(cursor)

    def detach_one(self, cursor: WatchCursor) -> None:
        feed, cursor.feed = cursor.feed, None
        if feed is not None:
            feed.detach(cursor)

    def forget(self, feed: Feed) -> None:
        """It has no readers any more."""
        self._by_id.pop(feed.topic.id, None)
        self.scheduler.forget(feed)

    def resume(self, subscription: Subscription) -> None:
        """The sink takes frames again."""
        blocked, subscription.blocked = subscription.blocked, None
        for cursor in blocked or ():
            if cursor.feed is not None:
                cursor.feed.requeue(cursor)

    def retry(self, cursor: WatchCursor) -> None:
        """Tries a reader again at the next `tick`."""
        self._retries.append(cursor)

    def tick(self) -> None:
        retries, self._retries = self._retries, []
        for cursor in retries:
            if cursor.feed is not None:
                cursor.feed.requeue(cursor)

    def _fetch_waiting(self, miss: ColdMiss, done: Callable[[BaseException | None], None]) -> None:
        segments = self.core.segments
        segments.admit_all(miss.ahead, segments.ask(miss.ahead).read())
        done(None)
