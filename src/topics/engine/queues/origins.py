"""Which jobs the records of a dead-letter frame were, and their end where they came from."""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple, Protocol

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.ops import deletes
from topics.engine.ops.deletes import DeleteFrame
from topics.engine.state.topic import Topic
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.frames import Groups

# Id and epoch of the topic that the jobs are from; their seqs follow.
_ORIGIN = struct.Struct("<IQ")


class Origin(NamedTuple):
    source_id: int
    epoch: int
    seqs: array[int]


def encode(source_id: int, epoch: int, seqs: list[int]) -> bytes:
    return _ORIGIN.pack(source_id, epoch) + array("Q", seqs).tobytes()


def decode(raw: bytes) -> Origin:
    source_id, epoch = _ORIGIN.unpack_from(raw)
    return Origin(source_id, epoch, array("Q", raw[_ORIGIN.size :]))


def delete_moved(core: Core, source: Topic, seqs: list[int]) -> None:
    """Removes jobs that stand in their destination from where they were, and counts them."""
    if source.queue is not None:
        source.queue.dead_lettered += len(seqs)
    deletes.apply_delete(core, source, DeleteFrame(0, deletes.runs_of(seqs)))


def log_moved(core: Core, source: Topic, seqs: list[int]) -> None:
    """Stages the DELETE frame of jobs that are gone already, with how many moved altogether."""
    if source.durability == "ephemeral" or source.queue is None:
        return
    payload = deletes.encode(DeleteFrame(0, deletes.runs_of(seqs)))
    core.committer.stage(
        Op(
            source, frames.DELETE, nothing, gated=False, first=source.head, payload=payload,
            floor=source.queue.dead_lettered,
        )
    )  # fmt: skip


class Moves:
    """The moves that a log speaks of; the topics that they are from may be in other shards."""

    def __init__(self) -> None:
        self._found: list[Origin] = []

    def note(self, groups: Groups) -> None:
        table = groups.frames
        is_move = (table["kind"] == frames.APPEND) & (table["flags"] & columns_codec.MOVED != 0)
        for index in np.flatnonzero(is_move).tolist():
            self._found.append(decode(groups.columns(index)[1]))

    def finish(self, replay: Deferring) -> list[tuple[Topic, list[int]]]:
        """Deletes the jobs that still stand where they were; which these are.

        All of the log has been read.
        """
        late = []
        for source_id, epoch, seqs in self._found:
            replay.finish_deferred(source_id)
            source = replay.core.by_id.get(source_id)
            # In another epoch the same seqs are other jobs.
            if source is None or source.epoch != epoch:
                continue
            left = [seq for seq in seqs if deletes.is_live(source, seq)]
            if left:
                delete_moved(replay.core, source, left)
                late.append((source, left))
        self._found.clear()
        return late


class Deferring(Protocol):
    core: Core

    def finish_deferred(self, topic_id: int) -> None: ...
