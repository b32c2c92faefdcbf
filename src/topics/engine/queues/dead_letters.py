"""Dead letters: a job that was delivered too often moves to another topic, in one step.

The two topics may be in different shards of the log. The move stands with one frame: an APPEND of
the destination that says which jobs its records were. It is synced before anything is seen; then,
in one step, the records are published there and the jobs deleted here. Recovery that finds the
frame deletes the jobs if they still stand. A snapshot is taken with both done or with neither, and
a frame that it does not cover is not trimmed, so the two can not come apart.

The source's own DELETE frame follows at once: later frames of the source are then folded in the
order in which they happened. So that this order is the one in memory, nothing of the source may be
on its way while a move begins, and a move waits for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topics.configs import resolve_config
from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import catalog
from topics.engine.ops.growth import Growth, check_room, publish
from topics.engine.queues import origins
from topics.engine.state.copies import Copying, copies
from topics.engine.state.queue import Queue
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import RecordTooLarge, Throttled, TopicFull
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns

# A destination that takes nothing is tried again after this long.
RETRY_MS = 1000
BYTES_MAX = 8 * 1024 * 1024


def deliveries_max(core: Core, topic: Topic) -> int:
    """After how many deliveries a job of this queue is moved; 0 for never."""
    config = topic.config
    if config.dead_letter is None or not config.max_deliveries:
        return 0
    has_place = config.auto_create or config.dead_letter in core.by_name
    return config.max_deliveries if has_place else 0


@dataclass(frozen=True, slots=True)
class LetterStamp:
    """Where a dead letter is from."""

    source: str
    queue: Queue

    def meta(self, seq: int) -> dict[str, Any]:
        return {
            "$dead_letter_from": self.source,
            "$dead_letter_deliveries": str(self.queue.deliveries(seq)),
            "$dead_letter_src_seq": str(seq),
        }


def move(core: Core, source: Topic, seqs: list[int]) -> None:
    """Moves free jobs, as many as fit one frame; those that are refused wait for a while.

    Raises ColdMiss with nothing moved, Poisoned.
    """
    queue, name = source.queue, source.config.dead_letter
    assert queue is not None
    assert name is not None
    dest = core.by_name.get(name)
    core.committer.flush()
    if source.gated or (dest is not None and dest.gated):
        core.committer.sync()
        dest = core.by_name.get(name)
    # What was on its way may have taken some of them along.
    jobs = _within_reach(core, source, [seq for seq in seqs if seq in queue.free])
    try:
        if dest is None:
            config = resolve_config(None, topic=name, type_now=None)
            dest = catalog.create(core, name, config, None, is_open=False)[0]
    except Throttled:
        _put_back(core, queue, list(jobs))
        return
    letter = _addressed(core, source, queue, dest, jobs)
    _put_back(core, queue, sorted(jobs.keys() - set(letter.seqs)))
    if letter.seqs:
        letter.send(queue)
        core.committer.sync()


def _within_reach(core: Core, source: Topic, seqs: list[int]) -> dict[int, tuple[Columns, int]]:
    """Where the bytes of each job are, ascending by seq."""
    found: dict[int, tuple[Columns, int]] = {}
    size = 0
    for seq in sorted(seqs):
        block = source.blocks[source.block_at(seq)]
        try:
            found[seq] = core.segments.columns(block), block.first
        except ColdMiss:
            if not found:
                raise
            break
        size += found[seq][0].span(seq - block.first, seq - block.first + 1)
        if size > BYTES_MAX:
            break
    return found


def _put_back(core: Core, queue: Queue, seqs: list[int]) -> None:
    queue.reclaim(seqs)
    queue.delay(seqs, core.monotonic_ms() + RETRY_MS)


def _addressed(
    core: Core, source: Topic, queue: Queue, dest: Topic, jobs: dict[int, tuple[Columns, int]]
) -> Letter:
    """The jobs that the destination has room for, rendered for it."""
    letter = Letter(core, source, dest)
    copying = Copying(stamp=LetterStamp(source.name, queue))
    for seq, (columns, first) in jobs.items():
        at = dest.next_seq + len(letter.seqs)
        made = copies(columns, [seq - first], first, copying, at, letter.ts)
        held = letter.columns
        try:
            check_room(core, dest, len(held) + 1, len(held.payload) + len(made.payload))
        except (Throttled, TopicFull, RecordTooLarge):
            continue
        held.extend(made)
        letter.seqs.append(seq)
    return letter


class Letter(Growth):
    """Jobs on their way from one topic to another."""

    __slots__ = ("_source", "columns", "seqs")

    def __init__(self, core: Core, source: Topic, dest: Topic) -> None:
        ts = max(core.clock.wall_ms(), dest.last_ts)
        super().__init__(core, dest, frames.APPEND, ts, Ticket())
        self._source = source
        self.columns = columns_codec.empty()
        self.seqs: list[int] = []

    def send(self, queue: Queue) -> None:
        """Hands the frame to the log. It is synced before anybody sees a thing of it."""
        source = self._source
        queue.reclaim(self.seqs)
        queue.moving.update(self.seqs)
        self.count = len(self.seqs)
        self.payload = bytes(self.columns.payload)
        key = origins.encode(source.id, source.epoch, self.seqs)
        flags, self.cols = columns_codec.encode(self.columns, times=False, key=key)
        self.flags = flags | columns_codec.MOVED
        self.assign(self.count, len(self.payload))
        self.gated = True
        self.hand_over()

    def apply(self) -> None:
        core, source, dest = self.core, self._source, self.topic
        self.arrive()
        publish(core, dest, self.first, self.columns)
        core.tally.dead_lettered += len(self.seqs)
        origins.delete_moved(core, source, self.seqs)
        origins.log_moved(core, source, self.seqs)

    def undo(self) -> None:
        super().undo()
        queue = self._source.queue
        assert queue is not None
        queue.moving.difference_update(self.seqs)
        queue.delay(self.seqs, self.core.monotonic_ms() + RETRY_MS)
