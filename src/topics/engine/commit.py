"""Commit: operations become bytes in the log, then state in memory, in one order for each topic.

An operation is staged, written with its neighbours as one group, and applied. It is *gated* when
its effect may only be seen once it is durable: then it is applied, and its ticket resolved, after
the sync. Later operations of the same topic wait behind it, so that state in memory is always the
fold of a prefix of the log.

A ticket ends in exactly one way: done, failed (nothing happened) or unknown (OutcomeUnknown).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from topics.engine.topic import Topic
from topics.errors import DiskFull, OutcomeUnknown, Poisoned, StorageError, TopicsError
from topics.storage import frames
from topics.storage.frames import Mark
from topics.storage.wal import Shard


class Ticket:
    """The outcome of one operation, now or later. `context` is its owner's, for the callback."""

    __slots__ = ("callback", "context", "done", "error", "result")

    def __init__(self) -> None:
        self.done = False
        self.error: TopicsError | None = None
        self.result: Any = None
        self.callback: Callable[[Ticket], None] | None = None
        self.context: Any = None

    def resolve(self, result: Any) -> None:
        assert not self.done
        self.result = result
        self.done = True
        if self.callback is not None:
            self.callback(self)

    def fail(self, error: TopicsError) -> None:
        self.error = error
        self.resolve(None)


class Owner(Protocol):
    """Who asked for an operation: a ticket, or somebody who is answered with others at once."""

    def fail(self, error: TopicsError) -> None: ...


class Frame:
    """One frame on its way: `apply` runs once, or `undo` does, or the outcome is unknown."""

    __slots__ = (
        "aside", "cols", "count", "first", "flags", "floor", "gated", "kind", "payload", "ticket",
        "topic", "ts",
    )  # fmt: skip

    def __init__(self, topic: Topic, kind: int, gated: bool, ticket: Ticket | None) -> None:
        self.topic = topic
        self.kind = kind
        self.gated = gated
        self.aside = False
        self.ticket = ticket
        self.first = self.count = self.ts = self.floor = self.flags = 0
        self.cols = self.payload = b""

    def entry(self) -> bytes:
        return frames.ENTRY.pack(
            self.topic.id, self.kind, self.flags, self.count, self.first, self.ts, self.floor,
            len(self.cols), len(self.payload),
        )  # fmt: skip

    def apply(self) -> Any:
        """Brings the effect into memory; returns the ticket's result."""

    def undo(self) -> None:
        """Takes back what staging did."""

    def fail(self, error: TopicsError) -> None:
        """Ends its ticket with an error."""
        if self.ticket is not None and not self.ticket.done:
            self.ticket.fail(error)


class Op(Frame):
    """A frame whose effect is a function."""

    __slots__ = ("_apply", "_undo")

    def __init__(
        self,
        topic: Topic,
        kind: int,
        apply: Callable[[], Any],
        *,
        gated: bool,
        ticket: Ticket | None = None,
        undo: Callable[[], None] | None = None,
        first: int = 0,
        floor: int = 0,
        flags: int = 0,
        payload: bytes = b"",
    ) -> None:
        super().__init__(topic, kind, gated, ticket)
        self._apply = apply
        self._undo = undo
        self.first = first
        self.floor = floor
        self.flags = flags
        self.payload = payload

    def apply(self) -> Any:
        return self._apply()

    def undo(self) -> None:
        if self._undo is not None:
            self._undo()


class Lane:
    """One shard with what is staged for it and what waits for its sync."""

    __slots__ = ("shard", "staged", "waiting")

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.staged: list[Frame] = []
        self.waiting: deque[tuple[Mark, Frame]] = deque()


class Committer:
    def __init__(self, shards: list[Shard], syncer: Syncer) -> None:
        self.lanes = [Lane(shard) for shard in shards]
        self._syncer = syncer
        self.poison: BaseException | None = None
        # How long the log took for what is being applied now: its write, and its sync if it waited.
        self.write_s = 0.0
        self.sync_s = 0.0

    def lane_of(self, topic: Topic) -> Lane:
        return self.lanes[topic.id % len(self.lanes)]

    def stage(self, op: Frame) -> None:
        topic = op.topic
        topic.joining = None
        if topic.gated:
            op.gated = True
        if op.gated:
            topic.gated += 1
        self.lane_of(topic).staged.append(op)

    def unstage(self, topic: Topic) -> None:
        """Forgets what is staged for a topic that nobody was told of."""
        lane = self.lane_of(topic)
        lane.staged = [op for op in lane.staged if op.topic is not topic]

    def stage_aside(self, op: Frame) -> None:
        """Stages a gated operation that nothing of its topic has to wait for."""
        op.aside = True
        self.lane_of(op.topic).staged.append(op)

    def apply_resident(self, topic: Topic, apply: Callable[[], Any], ticket: Ticket) -> None:
        """Applies an operation that leaves no bytes, in its turn."""
        if topic.gated:
            self.flush()
        if not topic.gated:
            self.write_s = self.sync_s = 0.0
            ticket.resolve(apply())
            return
        topic.gated += 1
        op = Op(topic, frames.MARK, apply, gated=True, ticket=ticket)
        lane = self.lane_of(topic)
        lane.waiting.append((lane.waiting[-1][0], op))

    def flush(self) -> None:
        """Writes what is staged. Afterwards every ungated operation is applied."""
        for lane in self.lanes:
            if lane.staged:
                ops, lane.staged = lane.staged, []
                self._write(lane, ops)

    def _write(self, lane: Lane, ops: list[Frame]) -> None:
        stats = lane.shard.stats
        stats.queue_depth_peak = max(stats.queue_depth_peak, len(ops) + len(lane.waiting))
        try:
            end = lane.shard.write(
                [op.entry() for op in ops],
                [op.cols for op in ops if op.cols],
                [op.payload for op in ops],
                may_use_reserve=not any(op.kind in (frames.APPEND, frames.MAP) for op in ops),
            )
        except DiskFull as full:
            self._reject(ops, full)
            return
        except MemoryError:
            # A group is put together in memory before its first byte is written.
            self._reject(ops, StorageError("no memory for the write; nothing was written"))
            return
        except Poisoned as error:
            self._unknown(ops, error)
            raise
        self.write_s, self.sync_s = lane.shard.write_s, 0.0
        waits = False
        for op in ops:
            if op.gated:
                lane.waiting.append((end, op))
                waits = True
            else:
                _apply(op)
        if waits:
            self._syncer.kick(lane.shard)
            self.poll()
        else:
            self._syncer.touch(lane.shard)

    def _reject(self, ops: list[Frame], error: TopicsError) -> None:
        for op in reversed(ops):
            if op.gated and not op.aside:
                op.topic.gated -= 1
            op.undo()
        for op in ops:
            op.fail(error)

    def fail(self, error: Poisoned) -> None:
        """Storage failed elsewhere: nothing more is written, what waits is unknown."""
        if self.poison is None:
            self._unknown([], error)

    def _unknown(self, ops: list[Frame], error: Poisoned) -> None:
        self.poison = error
        unknown = OutcomeUnknown(
            "the write may or may not be there: storage failed before it was known to be durable; "
            "retry with the same idempotency key after the server has restarted",
            cause=str(error),
        )
        pending = [op for lane in self.lanes for _, op in lane.waiting]
        for lane in self.lanes:
            lane.waiting.clear()
        for op in [*pending, *ops]:
            op.fail(unknown)

    def poll(self) -> None:
        """Applies what has become durable; raises Poisoned after a failed sync."""
        for lane in self.lanes:
            shard, waiting = lane.shard, lane.waiting
            if shard.poison is not None and self.poison is None:
                error = Poisoned(f"sync of the write-ahead log failed: {shard.poison}")
                self._unknown([], error)
                raise error
            self.write_s, self.sync_s = shard.write_s, shard.sync_s
            while waiting and not shard.synced < waiting[0][0]:
                _, op = waiting.popleft()
                if not op.aside:
                    op.topic.gated -= 1
                _apply(op)

    def sync(self) -> None:
        """Flushes and waits until everything written so far is durable."""
        self.flush()
        for lane in self.lanes:
            if lane.shard.is_dirty:
                self._syncer.wait(lane.shard, lane.shard.position)
        self.poll()

    def wait(self, ticket: Ticket) -> Any:
        """Blocks until the ticket ends; returns its result or raises its error."""
        self.flush()
        for lane in self.lanes:
            if ticket.done:
                break
            if lane.waiting:
                self._syncer.wait(lane.shard, lane.waiting[-1][0])
                self.poll()
        assert ticket.done
        if ticket.error is not None:
            raise ticket.error
        return ticket.result


def _apply(op: Frame) -> None:
    result = op.apply()
    if op.ticket is not None:
        op.ticket.resolve(result)


class Syncer:
    """Syncs when asked, in the calling thread: the deterministic one."""

    def kick(self, shard: Shard) -> None:
        """Something waits for this shard."""
        shard.sync()

    def touch(self, shard: Shard) -> None:
        """Something was written that nobody waits for."""

    def interval(self, shard: Shard) -> None:
        """The sync interval is over, and there is something to sync."""
        shard.sync()

    def wait(self, shard: Shard, upto: Mark) -> None:
        if shard.synced < upto:
            shard.sync()

    def close(self) -> None:
        pass


class ThreadSyncer(Syncer):
    """One thread for each shard. It syncs at once when somebody waits, else at an interval.

    While a sync runs, further groups gather behind it: that is the group commit, and its window is
    as long as the disk makes it.
    """

    def __init__(self, shards: list[Shard], interval_s: float, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._interval_s = interval_s
        self._stopping = False
        self._wake = {id(shard): threading.Event() for shard in shards}
        self._dirty = {id(shard): threading.Event() for shard in shards}
        self._asked = {id(shard): 0 for shard in shards}
        self._synced = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(shard,), name=f"topics-sync-{shard.index}")
            for shard in shards
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def kick(self, shard: Shard) -> None:
        # Counted before the event: one that is cleared unseen is still noticed behind the sync.
        self._asked[id(shard)] += 1
        self._wake[id(shard)].set()
        self._dirty[id(shard)].set()

    def touch(self, shard: Shard) -> None:
        dirty = self._dirty[id(shard)]
        if not dirty.is_set():
            dirty.set()

    def interval(self, shard: Shard) -> None:
        """Its thread keeps the interval itself."""

    def wait(self, shard: Shard, upto: Mark) -> None:
        with self._synced:
            while shard.synced < upto and shard.poison is None:
                self.kick(shard)
                self._synced.wait(1.0)

    def close(self) -> None:
        self._stopping = True
        for event in [*self._wake.values(), *self._dirty.values()]:
            event.set()
        for thread in self._threads:
            thread.join()

    def _run(self, shard: Shard) -> None:
        wake, dirty = self._wake[id(shard)], self._dirty[id(shard)]
        seen = 0
        while not self._stopping:
            dirty.wait()
            wake.wait(self._interval_s)
            wake.clear()
            dirty.clear()
            # Read in front of the sync: who asks later is not covered by it and asks again.
            asked = self._asked[id(shard)]
            try:
                shard.sync()
            except Exception as error:
                # Whatever it was: others wait for this thread, and for what they are not told.
                shard.poison = error
            if asked == seen and shard.poison is None:
                # Nobody waits: the interpreter is left to those who work.
                continue
            seen = asked
            with self._synced:
                self._synced.notify_all()
            self._notify()
