"""How a delete comes to be: what exists when it is asked for is looked up, then it is one frame.

The look-up is done in pieces that are short for everybody else, however much matches. What happens
to the topic meanwhile comes before the delete, which nobody was told of yet, and none of it is
among what it removes. What will be needed of the records is read now: nothing has happened if that
fails. With its frame the delete stands, whole, whatever becomes of the process.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.ops.deletes import DeleteFrame, DeleteOp, extend_runs, packed
from topics.engine.state.block import Block
from topics.engine.state.lacking import Lacking
from topics.engine.state.segments import ColdMiss
from topics.engine.state.tags import Match
from topics.engine.state.topic import Topic
from topics.errors import StorageError
from topics.storage.segment import DEAD
from topics.types import Deleted

# Pieces that are done where a delete is asked for: most have no more.
AT_ONCE_PIECES = 4
# Listed seqs that are looked at in one piece.
LISTED_PIECE = 2048

# The frame, and its runs as they are.
Found = tuple[DeleteFrame, "array[int]"]


def delete(
    core: Core, topic: Topic, before: int | None, predicate: Match | None, ticket: Ticket[Deleted]
) -> None:
    """Begins a delete of what exists now; the ticket ends in a Deleted. Raises StorageError."""
    core.expire(topic)
    bound = topic.head + 1 if before is None else min(before, topic.head + 1)
    _begin(core, Deletion(core, topic, bound, predicate, ticket))


def remove(core: Core, topic: Topic, listed: Listed, ticket: Ticket[Deleted]) -> None:
    """Begins a delete of certain records, most of which exist; as `delete` otherwise."""
    _begin(core, Deletion(core, topic, 0, listed, ticket))


def _begin(core: Core, work: Deletion) -> None:
    for _ in range(AT_ONCE_PIECES):
        if work.step():
            return
    core.preparing.deletions.append(work)


@dataclass(frozen=True, slots=True)
class Listed:
    """Seqs in order, and what a bucket's past lacks without them."""

    seqs: list[int]
    lacking: Lacking


class Deletion:
    """A delete that is being prepared."""

    def __init__(
        self,
        core: Core,
        topic: Topic,
        bound: int,
        what: Match | Listed | None,
        ticket: Ticket[Deleted],
    ) -> None:
        self.ticket = ticket
        self._core = core
        self.topic = topic
        self._match = None if isinstance(what, Listed) else what
        if isinstance(what, Listed):
            self._steps = self._listed(what)
        else:
            self._steps = self._below(bound) if what is None else self._matching(what, bound)

    def step(self) -> bool:
        """Does a piece; True when the delete is staged. Raises StorageError."""
        try:
            next(self._steps)
        except StopIteration as found:
            frame, runs = found.value
            DeleteOp(self._core, self.topic, frame, runs, self._match, self.ticket).stage()
            return True
        return False

    def finish(self) -> None:
        """Prepares to the end, at once."""
        try:
            while not self.step():
                if self._core.background.is_waiting:
                    self._core.background.jobs.pause()
        except StorageError as error:
            self.ticket.fail(error)

    def _below(self, bound: int) -> Generator[None, None, Found]:
        topic = self.topic
        position = topic.block_at(bound)
        is_cut = position < len(topic.blocks) and topic.blocks[position].first < bound
        if is_cut and bound > topic.floor:
            self._read(topic.blocks[position])
        yield
        return DeleteFrame(bound, b""), array("Q")

    def _matching(self, match: Match, bound: int) -> Generator[None, None, Found]:
        topic = self.topic
        while topic.untagged and not topic.dropped:
            yield from self._core.index_more_tags(topic)
        found = {} if topic.tags is None else (yield from topic.tags.gather(match, 0, bound))
        runs: array[int] = array("Q")
        hits: dict[Block, int] = defaultdict(int)
        for stretch in sorted(found):
            # A tag may be found twice, while it is sorted in.
            extend_runs(runs, _live(topic, sorted(set(found.pop(stretch))), hits))
            yield
        yield from self._read_cut(hits)
        return (yield from packed(runs)), runs

    def _listed(self, listed: Listed) -> Generator[None, None, Found]:
        runs: array[int] = array("Q")
        hits: dict[Block, int] = defaultdict(int)
        for at in range(0, len(listed.seqs), LISTED_PIECE):
            extend_runs(runs, _live(self.topic, listed.seqs[at : at + LISTED_PIECE], hits))
            yield
        yield from self._read_cut(hits)
        frame = yield from packed(runs)
        frame.lacking = listed.lacking
        return frame, runs

    def _read_cut(self, hits: dict[Block, int]) -> Iterator[None]:
        for block, count in hits.items():
            if count < block.count - block.dead_count and block.columns is None:
                self._read(block)
                yield

    def _read(self, block: Block) -> None:
        """Sees that a block of which a part goes can be read: the bytes of that are counted."""
        if block.is_ghost:
            return
        try:
            self._core.segments.columns(block)
        except ColdMiss:
            # Not worth the time: those are counted by share.
            return


def advance(core: Core) -> bool:
    """A piece of every delete that is being prepared; True when there is more to do."""
    deletions = core.preparing.deletions
    for work in list(deletions):
        try:
            if not work.step():
                continue
        except StorageError as error:
            work.ticket.fail(error)
        deletions.remove(work)
        core.committer.flush()
    return bool(deletions)


def _live(topic: Topic, seqs: list[int], hits: dict[Block, int]) -> list[int]:
    """Those of ascending seqs that are live, counted by block."""
    live: list[int] = []
    first = stop = 0
    dead: bytearray | None = None
    for seq in seqs:
        if seq >= stop:
            position = topic.block_at(seq)
            if position >= len(topic.blocks):
                break
            block = topic.blocks[position]
            first, stop, dead = max(block.first, topic.floor), block.stop, block.dead
        if seq >= first and (dead is None or dead[seq - block.first] != DEAD):
            live.append(seq)
            hits[block] += 1
    return live
