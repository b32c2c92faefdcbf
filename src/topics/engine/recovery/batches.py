"""Batches at a start: what commits in the log brought, and the stages that wait for one.

The records of a commit are in the files of its stages. They are rendered again, as frames that
stand in no file, and go the way of all frames: set aside, kept for routers, applied. A file that
can not be read is damage of the log, because that is what it is a part of.

A stage that no commit names is live, until its time is over. One that was committed by a frame that
was trimmed since may be among them: its batch is known to be there, so nothing comes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.ops.commit_frames import FORGOTTEN, CommitRecord, decode_commit, rendered
from topics.engine.recovery.rederive import SourceBytes
from topics.engine.state.producers import decode_dump
from topics.engine.state.stages import Place, Stage
from topics.engine.state.topic import Topic
from topics.errors import CorruptData
from topics.storage import columns as columns_codec
from topics.storage import frames, stage_file
from topics.storage.datadir import DataDir
from topics.storage.frames import Groups
from topics.storage.fs import join
from topics.storage.snapshot import Snapshot
from topics.storage.stage_file import StageId, StageInfo
from topics.types import CORRUPTION

LOG = logging.getLogger("topics.engine")


class Fold(Protocol):
    """What replaying a commit needs of the replay."""

    core: Core
    sources: SourceBytes | None
    spent: dict[StageId, int]

    def missing(self, topic_id: int) -> Topic | None: ...

    def same(
        self, topic_id: int, kind: int, groups: Groups, first: int, stop: int, generation: int
    ) -> None: ...

    def unread(self, topic: Topic, first: int, last: int, error: CorruptData, /) -> None: ...


def replay(
    fold: Fold, topic_id: int, kind: int, groups: Groups, index: int, generation: int
) -> None:
    """Folds a COMMIT or a PRODUCERS frame. Whose batches there are is known at once."""
    core, raw = fold.core, groups.payload(index)
    limit = core.settings.max_producers
    if kind == frames.COMMIT:
        record = decode_commit(raw)
        fold.spent.update({stage: topic_id for stage, _ in record.stages})
    topic = core.by_id.get(topic_id) or fold.missing(topic_id)
    if topic is None:
        return
    if kind == frames.PRODUCERS and int(groups.frames["flags"][index]) == FORGOTTEN:
        core.stages.forget(topic_id)
        return
    if kind == frames.PRODUCERS:
        core.stages.load(topic_id, decode_dump(raw), limit)
        return
    core.stages.note(topic_id, record.producer, record.done, limit)
    is_there = int(groups.frames["floor"][index]) <= topic.head
    if fold.sources is not None or not is_there:
        for made, same in _frames_of(fold, topic, record, groups, index):
            fold.same(topic_id, same, made, 0, len(made.frames), generation)


def committed_stages(groups: Groups) -> Iterator[StageId]:
    """The stages that the commits among some frames name."""
    for index in np.flatnonzero(groups.frames["kind"] == frames.COMMIT).tolist():
        yield from (stage for stage, _ in decode_commit(groups.payload(index)).stages)


def _frames_of(
    fold: Fold, topic: Topic, record: CommitRecord, groups: Groups, index: int
) -> Iterator[tuple[Groups, int]]:
    """The records of a commit as appends, stage by stage; a hole where one can not be read."""
    data, row = fold.core.data, groups.frames[index]
    first, ts = int(row["first"]), int(row["ts"])
    for stage, count in record.stages:
        last = first + count - 1
        try:
            info, body = _read(data, stage)
            if info.count != count:
                raise stage_file.damaged(stage)
        except CorruptData as error:
            fold.unread(topic, first, last, error)
            hole = frames.ENTRY.pack(topic.id, frames.HOLE, CORRUPTION, 0, first, ts, last, 0, 0)
            yield frames.in_memory([(hole, b"", b"")]), frames.HOLE
        else:
            yield frames.in_memory(list(_appends(topic, info, body, first, ts))), frames.APPEND
        first = last + 1


def _read(data: DataDir, stage: StageId) -> tuple[StageInfo, bytes]:
    try:
        info = stage_file.read_info(data.fs, data.stages, stage)
        return info, stage_file.read_body(data.fs, data.stages, stage)
    except FileNotFoundError:
        raise stage_file.damaged(stage) from None


def _appends(
    topic: Topic, info: StageInfo, body: bytes, first: int, ts: int
) -> Iterator[tuple[bytes, bytes, bytes]]:
    for seq, columns in rendered(info, body, first, ts):
        flags, cols = columns_codec.encode(columns, times=False)
        payload = bytes(columns.payload)
        entry = frames.ENTRY.pack(
            topic.id, frames.APPEND, flags, len(columns), seq, ts, 0, len(cols), len(payload)
        )
        yield entry, cols, payload


# -- the files -----------------------------------------------------------------------------------


def enter_stages(core: Core, taken: Snapshot | None, spent: dict[StageId, int]) -> None:
    """Enters the stages that there are; removes what was never finished.

    `spent` are those that commits in the log name: they stay as long as what is written now.
    """
    data, held = core.data, core.stages
    held.spent = {} if taken is None else {stage: Place(*at) for stage, *at in taken.spent_stages}
    for stage, topic_id in spent.items():
        shard = frames.shard_of(topic_id, len(core.log.shards))
        held.spent[stage] = Place(core.generation, shard, core.log.positions[shard].number)
    there = set()
    for name in data.fs.listdir(data.stages):
        found = stage_file.parse_file_name(name)
        if name.endswith(".tmp"):
            # Nobody was told of it.
            data.fs.unlink(join(data.stages, name))
        elif found is None or not (found in held.spent or _enter(core, found)):
            data.fs.rename(join(data.stages, name), join(data.quarantine, name))
            data.fs.sync_dir(data.quarantine)
        else:
            there.add(found)
    data.fs.sync_dir(data.stages)
    held.spent = {stage: place for stage, place in held.spent.items() if stage in there}


def _enter(core: Core, stage: StageId) -> bool:
    data, settings = core.data, core.settings
    try:
        info = stage_file.read_info(data.fs, data.stages, stage)
    except CorruptData as error:
        LOG.error("%s: it is set aside, and who commits it is told that it is gone", error)
        return False
    # As long as it was given, at most, whatever became of the clock.
    left_ms = info.created_ms + settings.stage_ttl_ms - core.clock.wall_ms()
    left_ms = min(max(left_ms, 0), settings.stage_ttl_ms)
    size = stage_file.HEADER.size + sum(cols + payload for _, _, cols, payload in info.blocks)
    core.stages.enter(Stage(info, size, core.clock.monotonic_s() + left_ms / 1000))
    return True
