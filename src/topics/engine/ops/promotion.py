"""Promotion: an ephemeral topic becomes durable with everything it holds.

Nothing of it is in the log until then. So its live records are logged first, as appends with the
seqs and times they have, in their order with a HOLE frame for every range that is gone and why;
the CONFIGURE frame comes last, and only after it is anything promised. A crash in front of that
one finds an ephemeral topic, whose records go with the process whether the log has some or not.
Replay therefore lets no cap of an ephemeral topic evict: what went is written down.

The work is in proportion to what the topic holds. A few groups are written at once; of a larger
topic maintenance writes the rest in slices, while the topic goes on as an ephemeral one. What was
removed meanwhile is written down at the end, together with the change of class.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import msgspec

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.commit.ticket import Ticket
from topics.engine.ops.commit_frames import producers_frame
from topics.engine.ops.deletes import DeleteFrame
from topics.engine.ops.repeats import repeat_frames
from topics.engine.ops.resident import hole_frame
from topics.engine.state.block import Block
from topics.engine.state.explaining import explain
from topics.engine.state.lacking import NOTHING
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import Poisoned, StorageError, TopicsError
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns
from topics.types import DELETED, LIVE, SEQ_BASE, STATES

# Blocks of the largest size: about 1 MiB to a group, 8 MiB before the rest is left to slices.
GROUP_BLOCKS = 4
AT_ONCE_BLOCKS = 32


def begin(core: Core, topic: Topic, ticket: Ticket[None], change: Callable[[], None]) -> None:
    """Logs what the topic holds, then stages its new config with `change`.

    The ticket fails when the disk is too full, with the topic ephemeral as before.
    """
    work = Promotion(core, topic, ticket, change)
    try:
        for _ in range(AT_ONCE_BLOCKS // GROUP_BLOCKS):
            if work.step():
                return
    except ColdMiss:
        pass
    core.preparing.promotions[topic.id] = work


def slices(core: Core) -> Iterator[None]:
    """Takes the promotions under way to their ends, fetching cold blocks beside the caller."""
    promotions = core.preparing.promotions
    while promotions:
        work = next(iter(promotions.values()))
        try:
            try:
                is_over = work.step()
            except ColdMiss as miss:
                block = miss.ahead[0]
                work.keep(block, (yield from core.bring(block)))
                is_over = False
        except Poisoned:
            raise
        except StorageError as error:
            # A record of it can not be read: it stays as it is.
            work.ticket.fail(error)
            is_over = True
        if is_over:
            promotions.pop(work.topic.id, None)
        yield


class Promotion:
    def __init__(
        self, core: Core, topic: Topic, ticket: Ticket[None], change: Callable[[], None]
    ) -> None:
        self.topic = topic
        self._core = core
        self.ticket = ticket
        self._change = change
        self._begin()

    def _begin(self) -> None:
        self._checkpoints = self._core.checkpoints_begun
        # The first seq that was not logged yet, and when the one before it was committed.
        self._at = SEQ_BASE
        self._ts = 0
        # Writes with a key up to a seq: (first, count, digest). Nothing after it is logged yet.
        self._keys: list[tuple[int, int, bytes]] = []
        self._keys_upto = SEQ_BASE - 1
        # Those that logged records carry; and those of the group that is being put together.
        self._carried: set[bytes] = set()
        self._carrying: set[bytes] = set()
        # Cold blocks that were fetched for the next group: a write with a key may stand in more of
        # them than the cache holds, and readers have the cache too.
        self._fetched: dict[Block, Columns] = {}

    def keep(self, block: Block, columns: Columns) -> None:
        self._fetched[block] = columns

    def fail(self, error: TopicsError) -> None:
        if not self.ticket.done:
            self.ticket.fail(error)

    def finish(self) -> None:
        try:
            while not self._step_waiting():
                pass
        except Poisoned:
            raise
        except StorageError as error:
            self.fail(error)

    def _step_waiting(self) -> bool:
        """Like `step`, but waits for the cold store."""
        try:
            return self.step()
        except ColdMiss as miss:
            block = miss.ahead[0]
            self.keep(block, self._core.segments.columns_waiting(block))
            return False

    def step(self) -> bool:
        """Logs about one group; True when the class has changed, or can not. Raises ColdMiss."""
        try:
            return self._step()
        except Poisoned as error:
            self.fail(error)
            raise

    def _step(self) -> bool:
        core, topic = self._core, self.topic
        if topic.dropped:
            self.ticket.resolve(None)
            return True
        if core.checkpoints_begun != self._checkpoints:
            # It took the topic for an ephemeral one, and what was logged before is trimmed.
            self._begin()
        core.expire(topic)
        # A delete that leaves no frame is not left half way in front of what is logged now.
        core.committer.finish_held()
        self._look_up_keys()
        ops, last = self._group()
        is_last = last == topic.head
        if is_last and topic.gated:
            # Where an operation goes depends on the class: none may be on its way then.
            core.committer.sync()
            return self._step()
        self._carried |= self._carrying
        for op in [*ops, *(self._amendments() if is_last else ())]:
            core.committer.stage(op)
        if is_last:
            for op in [*producers_frame(core, topic), *repeat_frames(topic, self._carried)]:
                core.committer.stage(op)
            self._change()
            return True
        written = ops[-1].ticket = Ticket()
        core.committer.flush()
        if written.error is not None:
            self.fail(written.error)
        self._at = last + 1
        self._fetched.clear()
        return written.error is not None

    def _look_up_keys(self) -> None:
        if self._keys_upto < self._at:
            self._keys_upto = self.topic.head
            held = () if self.topic.keys is None else self.topic.keys.dump()
            self._keys = sorted((first, n, digest) for digest, first, n, _ in held if n)

    # -- frames ------------------------------------------------------------------------------

    def _group(self) -> tuple[list[Op], int]:
        """The frames of the next seqs, about as many as make a group, and the last seq of them."""
        bytes_max = GROUP_BLOCKS * self._core.settings.block_bytes
        ops: list[Op] = []
        self._carrying = set()
        last, size = self._at - 1, 0
        try:
            for op, stop in self._frames():
                ops.append(op)
                last = stop
                size += frames.ENTRY.size + len(op.cols) + len(op.payload)
                if size >= bytes_max:
                    break
        except ColdMiss:
            if not ops:
                raise
        return ops, last

    def _frames(self) -> Iterator[tuple[Op, int]]:
        topic = self.topic
        for part in explain(topic, self._at, self._keys_upto):
            if part.state == STATES[LIVE]:
                yield from self._appends(part.first, part.last)
                continue
            # In the middle as old as what is in front: nothing after it expires before it does.
            ts = topic.last_ts if part.last == topic.head else self._ts
            state = STATES.index(part.state)
            yield hole_frame(topic, part.first, part.last, state, ts), part.last

    def _appends(self, first: int, last: int) -> Iterator[tuple[Op, int]]:
        """Live records as appends; a write that had a key and is whole keeps it."""
        while first <= last:
            index = bisect_left(self._keys, (first,))
            digest, stop = b"", last + 1
            if index < len(self._keys) and self._keys[index][0] == first:
                _, count, digest = self._keys[index]
                stop, index = first + count, index + 1
            if not digest or stop > last + 1:
                following = [key[0] for key in self._keys[index : index + 1]]
                digest, stop = b"", self._stop(first, min([last + 1, *following]))
            columns = self._columns(first, stop)
            op = Op(self.topic, frames.APPEND, nothing, gated=False, first=first)
            op.count, op.ts, self._ts = stop - first, columns.times[0], columns.times[-1]
            many = len(columns.times) > 1
            op.flags, op.cols = columns_codec.encode(columns, times=many, key=digest)
            op.payload = bytes(columns.payload)
            if digest:
                self._carrying.add(digest)
            yield op, stop - 1
            first = stop

    def _stop(self, first: int, stop: int) -> int:
        """How far towards `stop` one frame goes: one block, and not too many records."""
        block, columns = self._block(first)
        low, high = first - block.first, min(stop, block.stop) - block.first
        bound = columns.start(low) + self._core.settings.block_bytes
        fits = max(bisect_right(columns.ends, bound, low, high), low + 1)
        return block.first + min(fits, low + frames.COUNT_MAX)

    def _columns(self, first: int, stop: int) -> Columns:
        block, columns = self._block(first)
        start = first - block.first
        if stop <= block.stop:
            return columns.cut(start, stop - block.first)
        gathered = columns_codec.empty()
        while first < stop:
            block, columns = self._block(first)
            upto = min(stop, block.stop)
            gathered.extend(columns.cut(first - block.first, upto - block.first))
            first = upto
        return gathered

    def _block(self, seq: int) -> tuple[Block, Columns]:
        block = self.topic.blocks[self.topic.block_at(seq)]
        fetched = self._fetched.get(block)
        return block, self._core.segments.columns(block) if fetched is None else fetched

    def _amendments(self) -> list[Op]:
        """What became of the seqs that earlier groups have, as of now.

        With it what no append says: what compaction left, and how many jobs became dead letters.
        """
        topic, runs = self.topic, array("Q")
        dead = 0 if topic.queue is None else topic.queue.dead_lettered
        if self._at == SEQ_BASE and topic.compacted == NOTHING and not dead:
            return []
        ops = []
        for part in explain(topic, SEQ_BASE, self._at - 1) if self._at > SEQ_BASE else ():
            state = STATES.index(part.state)
            if state == DELETED:
                runs.extend((part.first, part.last))
            elif state != LIVE:
                ops.append(hole_frame(topic, part.first, part.last, state, 0))
        payload = msgspec.msgpack.encode(DeleteFrame(0, runs.tobytes(), lacking=topic.compacted))
        delete = Op(
            topic, frames.DELETE, nothing, gated=False, first=self._at - 1, payload=payload,
            floor=dead,
        )  # fmt: skip
        # Deletes first: what an eviction passes over is told as evicted.
        return [delete, *ops]
