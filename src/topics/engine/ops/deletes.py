"""Voluntary removal: what a DELETE frame says, and what it does to memory.

It is applied in pieces that are short for everybody else, however much it removes, from the oldest
record on. Later operations of the topic wait for its end. A reader may find some of the records
gone and others still there, as long as nobody was told that they are: each goes once, and silently.
How a delete comes to be is in deleting.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from topics.engine.commit.core import Core
from topics.engine.commit.frame import UNFINISHED, Frame
from topics.engine.commit.ticket import Ticket
from topics.engine.state.block import Block
from topics.engine.state.lacking import Lacking
from topics.engine.state.tags import Match
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest
from topics.storage import frames
from topics.types import DELETED, U64_MAX, Deleted, convert

# From how many numbers on a frame has its runs packed, and how many are in one piece.
PACKED_MIN, PACKED_PIECE = 2048, 16384
# What a piece of applying may cost, in about two microseconds, and what makes up most of that.
PIECE_COST = 400
LOAD_COST = 200
RECORDS_PER_COST, JOBS_PER_COST = 64, 4

encode = msgspec.msgpack.Encoder().encode


class DeleteFrame(msgspec.Struct, array_like=True):
    """What a DELETE frame says: everything below a seq, and these runs of (first, last).

    Many runs are packed: `step_bytes` for each of how far first and last are after the number in
    front of them, and that is `base` for the first one.
    """

    before_seq: int
    runs: bytes
    step_bytes: int = 0
    base: int = 0
    # What a bucket's past lacks from then on.
    lacking: Lacking = Lacking()

    def unpacked(self) -> array[int]:
        if not self.step_bytes:
            return array("Q", self.runs)
        steps = np.frombuffer(self.runs, dtype=f"<u{self.step_bytes}")
        return array("Q", (np.cumsum(steps, dtype=np.uint64) + np.uint64(self.base)).tobytes())


def packed(runs: array[int]) -> Generator[None, None, DeleteFrame]:
    """The frame of these runs, as small as they can be had cheaply, in pieces."""
    if len(runs) < PACKED_MIN:
        return DeleteFrame(0, runs.tobytes())
    numbers = np.frombuffer(runs, dtype=np.uint64)
    longest = 0
    for at in range(0, len(numbers), PACKED_PIECE):
        longest = max(longest, int(_steps(numbers, at).max()))
        yield
    step_bytes = next(size for size in (1, 2, 4, 8) if longest < 1 << 8 * size)
    parts = []
    for at in range(0, len(numbers), PACKED_PIECE):
        parts.append(_steps(numbers, at).astype(f"<u{step_bytes}").tobytes())
        yield
    return DeleteFrame(0, b"".join(parts), step_bytes, runs[0])


def _steps(numbers: npt.NDArray[np.uint64], at: int) -> npt.NDArray[np.uint64]:
    return np.diff(numbers[at : at + PACKED_PIECE], prepend=numbers[max(at - 1, 0)])


def parse_before(before_seq: object) -> int | None:
    if before_seq is None:
        return None
    value: int = convert(before_seq, int, "before_seq")
    if not 0 <= value <= U64_MAX:
        raise InvalidRequest("before_seq must be from 0 to 2^64 - 1")
    return value


def is_live(topic: Topic, seq: int) -> bool:
    if seq < topic.floor:
        return False
    position = topic.block_at(seq)
    if position >= len(topic.blocks):
        return False
    block = topic.blocks[position]
    return block.first <= seq and not block.is_dead(seq - block.first)


def runs_of(seqs: Sequence[int]) -> bytes:
    """Ascending seqs, each once, as runs of (first, last)."""
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1:
        return array("Q", (seqs[0], seqs[-1])).tobytes()
    runs: array[int] = array("Q")
    extend_runs(runs, seqs)
    return runs.tobytes()


def extend_runs(runs: array[int], seqs: Sequence[int]) -> None:
    for seq in seqs:
        if runs and runs[-1] == seq - 1:
            runs[-1] = seq
        else:
            runs.extend((seq, seq))


class DeleteOp(Frame):
    """A delete on its way."""

    __slots__ = ("_core", "_lacking", "_match", "_removal")

    def __init__(
        self,
        core: Core,
        topic: Topic,
        frame: DeleteFrame,
        runs: array[int],
        match: Match | None,
        ticket: Ticket[Deleted],
    ) -> None:
        # Gated in every class that promises anything: an acknowledged delete does not come back.
        super().__init__(topic, frames.DELETE, topic.durability != "memory", ticket)
        self.first = topic.head
        self.payload = encode(frame)
        self._core = core
        self._lacking = frame.lacking
        self._match = match
        self._removal = Removal(core, topic, frame.before_seq, runs)

    def stage(self) -> None:
        if self.topic.durability == "ephemeral" or self.topic.dropped:
            self._core.committer.apply_resident(self)
        else:
            self._core.committer.stage(self)

    def apply(self) -> Deleted | object:
        core, topic = self._core, self.topic
        # From its first piece on: some of what the past needs is gone then.
        topic.note_compacted(self._lacking)
        if not self._removal.step():
            return UNFINISHED
        if self._match is not None and topic.tags is not None:
            # So that the next delete does not look at what is gone again.
            core.tidy(prune(topic, self._match))
        return Deleted(
            topic=topic.name, deleted=self._removal.deleted, earliest_seq=topic.floor,
            head_seq=topic.head, count=topic.live_count, bytes=topic.live_bytes,
        )  # fmt: skip


def apply_delete(core: Core, topic: Topic, frame: DeleteFrame) -> int:
    """Removes the records for good, at once; returns how many were live. Idempotent."""
    topic.note_compacted(frame.lacking)
    removal = Removal(core, topic, frame.before_seq, frame.unpacked())
    while not removal.step():
        pass
    return removal.deleted


class Removal:
    """What a DELETE frame does to memory, a piece at a time. Reads nothing that it has to have."""

    __slots__ = ("_at", "_before", "_core", "_left", "_runs", "_seq", "_topic", "deleted")

    def __init__(self, core: Core, topic: Topic, before_seq: int, runs: array[int]) -> None:
        self._core = core
        self._topic = topic
        self._before = before_seq
        self._runs = runs
        # Where the next piece begins: the place of its run, and the seq in it.
        self._at = self._seq = 0
        self._left = 0
        self.deleted = 0

    def step(self) -> bool:
        """Removes some; True when all of it is gone."""
        topic = self._topic
        if topic.dropped:
            # It was on its way while the topic went, with all of its records.
            return True
        before = topic.live_count
        self._left = PIECE_COST
        is_over = (self._before <= topic.floor or self._lift()) and self._kill()
        topic.pass_gone()
        self._core.recount(topic)
        self.deleted += before - topic.live_count
        return is_over

    def _lift(self) -> bool:
        """Raises the floor, block by block; True when it is where it has to be."""
        topic, load = self._topic, self._core.segments.spans
        target = min(self._before, topic.head + 1)
        while topic.floor < target:
            if self._left <= 0:
                return False
            stop = target
            if topic.blocks:
                block = topic.blocks[0]
                stop = min(max(block.stop, topic.floor + 1), target)
                runs = min(block.dead_count, block.count - block.dead_count) + 1
                self._pay(block, runs, block.count, is_whole=stop == block.stop)
            topic.raise_floor(stop, DELETED, load)
        return True

    def _kill(self) -> bool:
        """Marks runs of records; True when they all are."""
        topic, runs = self._topic, self._runs
        while self._at < len(runs):
            seq = max(runs[self._at], topic.floor, self._seq)
            last = min(runs[self._at + 1], topic.head)
            while seq <= last:
                position = topic.block_at(seq)
                if position >= len(topic.blocks):
                    break
                if self._left <= 0:
                    self._seq = seq
                    return False
                block = topic.blocks[position]
                stop = min(last + 1, block.stop)
                self._kill_in(block, max(seq - block.first, 0), stop - block.first)
                seq = stop
            self._at += 2
        return True

    def _kill_in(self, block: Block, first: int, stop: int) -> None:
        topic, load = self._topic, self._core.segments.spans
        # All of them first: the runs are found in the flags that the marking changes.
        runs = list(block.live_runs(first, stop))
        is_whole = stop - first == block.count
        self._pay(block, len(runs) + 1, stop - first, is_whole=is_whole or not runs)
        for start, end in runs:
            topic.kill(block, start, end, load)
        if block.dead_count == block.count:
            topic.release(block)
            block.ghost()

    def _pay(self, block: Block, runs: int, records: int, *, is_whole: bool) -> None:
        records_per_cost = RECORDS_PER_COST if self._topic.queue is None else JOBS_PER_COST
        self._left -= runs + records // records_per_cost
        if block.columns is None and not is_whole:
            self._left -= LOAD_COST


def prune(topic: Topic, match: Match) -> Iterator[None]:
    """Takes what is gone out of the index, a piece at a time."""
    index = topic.tags
    if index is None:
        return
    for tags in index.under(match):
        yield from index.weed(tags, partial(is_live, topic))
