"""Commit: operations become bytes in the log, then state in memory, in one order for each topic.

An operation is staged, written with its neighbours as one group, and applied. It is *gated* when
its effect may only be seen once it is durable: then it is applied, and its ticket resolved, after
the sync. Later operations of the same topic wait behind it, so that state in memory is always the
fold of a prefix of the log. One that is too much for a turn is applied in pieces, in turns of
`work`; until it is done, what is behind it in its topic is *held*.

Everything that can fail comes before the first byte: whatever happens while a group is put
together undoes all of it. Applying may not fail. If it does, or if a sync or a write does, the log
is poisoned: nothing more is written or applied, and the process has to end and recover.

A ticket ends in exactly one way: done, failed (nothing happened) or unknown (OutcomeUnknown).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

from topics.engine.commit.frame import UNFINISHED, Frame, Op
from topics.engine.commit.lanes import Lane, Lanes
from topics.engine.commit.log import Log
from topics.engine.commit.ticket import T, Ticket, unknown, unwritten
from topics.engine.state.topic import Topic
from topics.errors import DiskFull, Poisoned, TopicsError
from topics.storage import frames

# So many records of an operation are to a poll as much as one more operation.
RECORDS_AS_ONE = 32


class Committer(Lanes):
    """The only writer of the log, and the only caller of what brings an operation into memory.

    It owns every operation from `stage` to the end of its ticket. Others ask it about topics,
    never about shards: what is durable, what is on its way, what may still be joined.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.poison: Poisoned | None = None
        # Nobody waits for what a start decides: until it is ready, a group without room raises.
        self.is_starting = True
        # Told once, before anybody else is: it leaves the note for the next start.
        self.on_poison: Callable[[Poisoned], None] = _unheard
        # Topics whose first operation here is applied in pieces, with what waits behind it.
        self._held: dict[Topic, deque[Frame]] = {}
        # What answering raised: the others are answered first.
        self._untold: list[Exception] = []
        # How long the log took for what is being applied now: its write, and its sync if it waited.
        self.write_s = self.sync_s = 0.0

    # -- staging -----------------------------------------------------------------------------

    def stage(self, op: Frame) -> None:
        topic = op.topic
        if topic.refusal is not None:
            self._refuse(op, topic.refusal)
            return
        topic.joining = None
        if topic.gated:
            op.gated = True
        if op.gated:
            topic.gated += 1
        self._lane_of(topic).staged.append(op)

    def open_frame(self, topic: Topic) -> Frame | None:
        """The frame staged last, if it is this topic's: one more call may join it."""
        staged = self._lane_of(topic).staged
        return staged[-1] if staged and staged[-1].topic is topic else None

    def unstage(self, topic: Topic) -> None:
        """Forgets what is staged for a topic that nobody was told of."""
        lane = self._lane_of(topic)
        lane.staged = [op for op in lane.staged if op.topic is not topic]

    def stage_aside(self, op: Frame) -> None:
        """Stages a gated operation that nothing of its topic has to wait for."""
        if op.topic.refusal is not None:
            self._refuse(op, op.topic.refusal)
            return
        op.aside = True
        self._lane_of(op.topic).staged.append(op)

    def _refuse(self, op: Frame, error: TopicsError) -> None:
        """Its topic's creation was refused while it was prepared: a frame of it would have none."""
        op.undo()
        self._fail([op], error)

    def apply_resident(self, op: Frame) -> None:
        """Applies an operation that leaves no bytes, in its turn."""
        try:
            if op.topic.gated:
                self.flush()
        finally:
            # Where that failed, it ends as well: refused.
            self._apply_resident(op)

    def _apply_resident(self, op: Frame) -> None:
        topic = op.topic
        if self.poison is not None or topic.refusal is not None:
            op.undo()
            op.fail(topic.refusal or self._refused())
            return
        is_first = not topic.gated
        if is_first:
            self.write_s = self.sync_s = 0.0
            try:
                result = op.apply()
            except Exception as error:
                self._broken(op, error)
            if result is not UNFINISHED:
                op.tell(result)
                return
        is_last_held = topic.gated == len(self._held.get(topic, ()))
        op.gated = True
        topic.gated += 1
        if is_last_held:
            self._hold(op)
        else:
            # Behind what waits for a sync, though others of its topic are held already.
            lane = self._lane_of(topic)
            lane.waiting.append((lane.waiting[-1][0], op))

    # -- writing -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes what is staged. Afterwards every ungated operation is applied, or held."""
        if self.poison is not None:
            self._refuse_staged()
            return
        for lane in self._lanes:
            if lane.staged:
                ops, lane.staged = lane.staged, []
                self._write(lane, ops)
        self._raise_untold()

    def _write(self, lane: Lane, ops: list[Frame]) -> None:
        stats = lane.shard.stats
        stats.queue_depth_peak = max(stats.queue_depth_peak, len(ops) + len(lane.waiting))
        try:
            end = lane.shard.write(
                [op.entry() for op in ops],
                [op.cols for op in ops if op.cols],
                [op.payload for op in ops],
                may_use_reserve=not any(op.kind in frames.BRINGING for op in ops),
            )
        except DiskFull as full:
            self._reject(ops, full)
            return
        except Poisoned as error:
            self._unknown(ops, error)
            raise
        except Exception as error:
            # A group is put together in memory before its first byte is written.
            self._reject(ops, unwritten(error))
            return
        self.write_s, self.sync_s = lane.shard.write_s, 0.0
        waits = False
        rest = iter(ops)
        try:
            for op in rest:
                if op.gated:
                    lane.waiting.append((end, op))
                    waits = True
                elif (self._held and op.topic in self._held) or not self._apply(op):
                    self._hold(op)
        except Poisoned as error:
            self._unknown([*rest], error)
            raise
        if waits:
            self._log.syncer.kick(lane.shard)
            self._poll()
        else:
            self._log.syncer.touch(lane.shard)

    def _reject(self, ops: list[Frame], error: TopicsError) -> None:
        for op in reversed(ops):
            if op.gated and not op.aside:
                op.topic.gated -= 1
            if op.kind == frames.CREATE:
                op.topic.refusal = error
            op.undo()
        self._fail(ops, error)
        if self.is_starting:
            raise error

    # -- applying ----------------------------------------------------------------------------

    def _apply(self, op: Frame) -> bool:
        """Brings an operation into memory and answers it; False when a piece of it is left."""
        try:
            result = op.apply()
        except Exception as error:
            self._broken(op, error)
        if result is UNFINISHED:
            return False
        try:
            op.tell(result)
        except Exception as error:
            self._untold.append(error)
        return True

    def _hold(self, op: Frame) -> None:
        if not op.gated:
            op.gated = True
            op.topic.gated += 1
        self._held.setdefault(op.topic, deque()).append(op)

    def poll(self) -> bool:
        """Applies what has become durable, as much as one call may; True when there is more.

        Raises Poisoned after a failed sync.
        """
        has_more = self._poll()
        self._raise_untold()
        return has_more

    def _poll(self) -> bool:
        left = self._log.syncer.applied_max
        for lane in self._lanes:
            shard, waiting = lane.shard, lane.waiting
            if shard.poison is not None and self.poison is None:
                error = Poisoned(f"sync of the write-ahead log failed: {shard.poison}")
                self._unknown([], error)
                raise error
            self.write_s, self.sync_s = shard.write_s, shard.sync_s
            while waiting and not shard.synced < waiting[0][0]:
                if left <= 0:
                    self._log.syncer.poll_again()
                    return True
                _, op = waiting.popleft()
                left -= 1 + op.count // RECORDS_AS_ONE
                if op.aside:
                    self._apply(op)
                elif self._held and op.topic in self._held:
                    self._hold(op)
                else:
                    self._apply_gated(op)
        return False

    def _apply_gated(self, op: Frame) -> None:
        """Applies the first of its topic."""
        op.topic.gated -= 1
        if not self._apply(op):
            op.topic.gated += 1
            self._held.setdefault(op.topic, deque()).appendleft(op)

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    @property
    def held(self) -> set[Frame]:
        """What is durable, or nobody waits for, and not applied to its end."""
        return {op for ops in self._held.values() for op in ops}

    def work(self) -> bool:
        """Applies a piece of each topic's held operations; True when there is more."""
        for topic, ops in list(self._held.items()):
            op = ops.popleft()
            if not ops:
                del self._held[topic]
            self._apply_gated(op)
        self._raise_untold()
        return bool(self._held)

    def finish_held(self) -> None:
        """Applies what is held to its end, at once."""
        while self.work():
            pass

    # -- failing -----------------------------------------------------------------------------

    def fail(self, error: Poisoned) -> None:
        """Storage failed elsewhere: nothing more is written, what waits is unknown."""
        if self.poison is None:
            self._unknown([], error)

    def _broken(self, op: Frame, error: Exception) -> NoReturn:
        """What is in memory is no longer what the log says: only a new process can tell."""
        poisoned = Poisoned(f"an operation could not be applied: {error!r}")
        self._unknown([op], poisoned)
        raise poisoned from error

    def _unknown(self, ops: list[Frame], error: Poisoned) -> None:
        if self.poison is None:
            self.poison = error
            self.on_poison(error)
        pending = [op for lane in self._lanes for _, op in lane.waiting]
        held = [op for ops in self._held.values() for op in ops]
        for lane in self._lanes:
            lane.waiting.clear()
        self._held.clear()
        self._fail([*held, *pending, *ops], unknown(error))
        self._refuse_staged()

    def _refuse_staged(self) -> None:
        for lane in self._lanes:
            ops, lane.staged = lane.staged, []
            self._fail(ops, self._refused())

    def _refused(self) -> Poisoned:
        return Poisoned(f"storage failed before this was written, and nothing is: {self.poison}")

    def _fail(self, ops: list[Frame], error: TopicsError) -> None:
        for op in ops:
            try:
                op.fail(error)
            except Exception as untold:
                self._untold.append(untold)

    def _raise_untold(self) -> None:
        if self._untold:
            untold, self._untold = self._untold, []
            raise untold[0]

    # -- what is durable, and what is not ----------------------------------------------------

    def on_their_way(self, topic: Topic) -> Iterator[Frame]:
        """The frames of a topic that are not applied yet, in their order."""
        yield from self._held.get(topic, ())
        lane = self._lane_of(topic)
        yield from (op for _, op in lane.waiting if op.topic is topic)
        yield from (op for op in lane.staged if op.topic is topic)

    def answer(self, topic: Topic, result: Callable[[], T], ticket: Ticket[T]) -> None:
        """Ends a ticket behind what its topic has on its way, for a call that changes nothing."""
        self.apply_resident(Op(topic, frames.MARK, result, gated=False, ticket=ticket))

    def after_sync(self, topic: Topic, call: Callable[[], None]) -> None:
        """Asks for a sync, and calls when what was written so far is durable; it may not fail."""
        lane = self._lane_of(topic)
        op = Op(topic, frames.MARK, call, gated=True)
        op.aside = True
        lane.waiting.append((lane.shard.position, op))
        self.ask_sync(topic)

    # -- waiting -----------------------------------------------------------------------------

    def sync(self) -> None:
        """Flushes and waits until everything written so far is durable and applied."""
        self.flush()
        self._log.wait()
        while self.poll():
            pass
        if self.poison is not None:
            raise self.poison
        self.finish_held()

    def wait(self, ticket: Ticket[T]) -> T:
        """Blocks until the ticket ends; returns its result or raises its error."""
        self.flush()
        for lane in self._lanes:
            if ticket.done:
                break
            if lane.waiting:
                self._log.syncer.wait(lane.shard, lane.waiting[-1][0])
                while self.poll():
                    pass
        if not ticket.done:
            self.finish_held()
        assert ticket.done
        if ticket.error is not None:
            raise ticket.error
        return ticket.result


def _unheard(_error: Poisoned) -> None:
    pass
