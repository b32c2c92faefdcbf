"""The frame of a commit: which seqs the records of its stages get, and whose batch that is.

    topic id, kind, first seq, time, floor = last seq; payload: CommitRecord

The records themselves are in the files of the stages, which the frame names and which stay for as
long as it does. Memory and replay render them alike. `PRODUCERS` has all last batches of a topic,
where no frames of its commits are in the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from topics.engine.commit.core import Core
from topics.engine.commit.frame import UNFINISHED, Op, nothing
from topics.engine.ops import ceilings, stages
from topics.engine.ops.growth import published
from topics.engine.ops.told import ToldFrame
from topics.engine.state.block import Block
from topics.engine.state.producers import LastBatch, encode_dump
from topics.engine.state.reblocking import reblock
from topics.engine.state.record import head_sizes, numbered
from topics.engine.state.stages import Place, Stage
from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.storage import frames, stage_file
from topics.storage.columns import Columns
from topics.storage.stage_file import StageId, StageInfo

# Blocks that are rendered in one piece, and records whose tags are entered at once.
PIECE_BLOCKS = 2
TAGGED_AT_ONCE = 2000


class CommitRecord(msgspec.Struct, array_like=True, frozen=True):
    producer: str
    done: LastBatch
    # The stages in order, each with how many records it has.
    stages: list[tuple[StageId, int]]


_ENCODER = msgspec.msgpack.Encoder()
decode_commit = msgspec.msgpack.Decoder(CommitRecord).decode


class Part:
    """A stage on its way into a topic, and its blocks."""

    __slots__ = ("body", "stage")

    def __init__(self, stage: Stage, body: bytes) -> None:
        self.stage = stage
        self.body = body


def rendered(info: StageInfo, body: bytes, first: int, ts: int) -> Iterator[tuple[int, Columns]]:
    """The records of a stage, a block at a time, with seqs from `first` on."""
    at = 0
    for index in range(len(info.blocks)):
        columns, at = stage_file.block(info, body, index, at)
        count, ends = len(columns), columns.ends
        # Not as views, each of which the garbage collector would have to look at.
        held = bytes(columns.payload)
        rests = [held[low:high] for low, high in zip([0, *ends[:-1]], ends, strict=True)]
        payload = numbered(rests, first, ts)
        sizes = np.diff(np.frombuffer(ends, np.uint32), prepend=np.uint32(0))
        sizes = sizes + head_sizes(first, count, ts)
        yield (
            first,
            Columns(
                payload, array("I", np.cumsum(sizes, dtype=np.uint32).tobytes()),
                array("I", (0,)), array("q", (ts,)), columns.nodes, columns.tags, columns.metas,
                columns.kinds,
            ),
        )  # fmt: skip
        first += count


# Told what became of the topic's part.
Ended = Callable[[Topic, LastBatch, TopicsError | None], None]


class CommitFrame(ToldFrame):
    """A topic's part of a commit."""

    __slots__ = ("_done", "_ended_with", "_parts", "_producer", "_runs", "_waiting")

    def __init__(
        self,
        core: Core,
        topic: Topic,
        producer: str,
        done: LastBatch,
        parts: list[Part],
        size: int,
        ts: int,
        ended: Ended,
    ) -> None:
        super().__init__(core, topic, frames.COMMIT, ts)
        self._producer = producer
        self._done = done
        self._parts = parts
        self._ended_with = ended
        self.size = size
        self.floor = done.first + done.count - 1
        named = [(part.stage.info.id, part.stage.info.count) for part in parts]
        self.payload = _ENCODER.encode(CommitRecord(producer, done, named))
        # What is rendered, and what is still to be.
        self._runs: list[tuple[int, Columns]] = []
        self._waiting = reblock(self._render(), core.settings.block_bytes)

    def go(self) -> None:
        """Takes its seqs and its place in the log."""
        topic = self.topic
        self.first, self.last_ts_before = topic.next_seq, topic.last_ts
        # Whatever the class: that a batch is there is said no earlier than a crash can change it.
        # So no ceiling is asked for, and a crash raises no alarm for a topic of batches.
        self.gated = True
        topic.assign(self._done.count, self.size, self.ts)
        self.core.pending_bytes += self.size
        ceilings.open_routed(self.core, topic, self._done.count)
        self.hand_over()

    def _render(self) -> Iterator[tuple[int, Columns]]:
        first = self._done.first
        for part in self._parts:
            info = part.stage.info
            yield from rendered(info, part.body, first, self.ts)
            first += info.count
            part.body = b""

    def apply(self) -> object:
        for _ in range(PIECE_BLOCKS):
            run = next(self._waiting, None)
            if run is None:
                self._publish()
                return self._done
            run[1].payload = bytes(run[1].payload)
            self._runs.append(run)
        return UNFINISHED

    def _publish(self) -> None:
        core, topic, size = self.core, self.topic, self.size
        self.arrive()
        tagged: list[Block] = []
        for first, columns in self._runs:
            topic.publish(first, columns, core.settings.block_bytes)
            if columns.tags is None or topic.config.is_bucket:
                continue
            if self._done.count <= TAGGED_AT_ONCE or topic.blocks[-1].first != first:
                topic.add_tags(columns.tags, first)
            else:
                topic.untagged = topic.untagged or []
                topic.untagged.append(topic.blocks[-1])
                tagged.append(topic.blocks[-1])
            core.unfolded.add(topic.id)
        self._runs = []
        if not topic.dropped:
            core.stages.note(topic.id, self._producer, self._done, core.settings.max_producers)
        self._spend()
        published(core, topic, self._done.count, size)
        if tagged:
            core.tidy(_enter_tags(core, topic, tagged))

    def _spend(self) -> None:
        """The records are the topic's. While the frame is in the log, so are the files."""
        core, topic = self.core, self.topic
        held = [part.stage for part in self._parts]
        if topic.durability == "ephemeral":
            stages.discard(core, held)
            return
        shard = core.log.shard_of(topic)
        place = Place(core.generation, shard.index, shard.position.number)
        for stage in held:
            core.stages.leave(stage)
            core.stages.spent[stage.info.id] = place

    def tell(self, _result: object) -> None:
        self._ended_with(self.topic, self._done, None)

    def fail(self, error: TopicsError) -> None:
        self._ended_with(self.topic, self._done, error)


def _enter_tags(core: Core, topic: Topic, blocks: list[Block]) -> Iterator[None]:
    """Enters the tags of blocks that a delete by tag has not asked for meanwhile."""
    for block in blocks:
        columns = block.columns
        if topic.untagged and block in topic.untagged and not topic.dropped:
            topic.untagged.remove(block)
            if columns is not None and columns.tags is not None:
                topic.add_tags(columns.tags, block.first)
                core.unfolded.add(topic.id)
        yield


def producers_of(core: Core, topic: Topic) -> bytes:
    """The last batches of a topic's producers, for a snapshot; empty where it has none."""
    held = core.stages.producers.get(topic.id)
    is_kept = held is not None and topic.config.durability != "ephemeral"
    return encode_dump(held.dump()) if held is not None and is_kept else b""


# The flag of a PRODUCERS frame in front of which all batches of the topic are forgotten.
FORGOTTEN = 1


def forget_producers(core: Core, topic: Topic) -> None:
    """Forgets a topic's batches with its records, over every start to come."""
    if topic.id in core.stages.producers:
        core.stages.forget(topic.id)
        core.committer.stage(Op(topic, frames.PRODUCERS, nothing, gated=False, flags=FORGOTTEN))


def producers_frame(core: Core, topic: Topic) -> list[Op]:
    """Says all last batches of a topic of which the log knows nothing."""
    held = core.stages.producers.get(topic.id)
    if held is None:
        return []
    payload = encode_dump(held.dump())
    return [Op(topic, frames.PRODUCERS, nothing, gated=False, payload=payload)]
