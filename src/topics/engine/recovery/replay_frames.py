"""What frames that bring no seqs do to their topic, when the log is replayed."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from topics.engine.commit.core import Core
from topics.engine.ops import cursors, lease_frames
from topics.engine.ops.catalog import decode_configure
from topics.engine.ops.deletes import DeleteFrame, apply_delete
from topics.engine.state import retention
from topics.engine.state.topic import Topic
from topics.storage import frames
from topics.storage.frames import Groups
from topics.types import RESTART

_DELETE = msgspec.msgpack.Decoder(DeleteFrame)


def _configure(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    frame = decode_configure(groups.payload(index))
    if frame.version <= topic.config_version:
        return
    before = topic.config
    topic.configure(frame.config, frame.version)
    topic.count_bytes(int(groups.frames["floor"][index]))
    if before.durability == topic.durability == "ephemeral":
        # The log does not know what is there: what becomes of it will be written down.
        return
    # Everything before this frame was durable when it was acknowledged.
    topic.ceiling.end(topic.head)
    if not lease_frames.are_kept(frame.config):
        lease_frames.forget(topic)
    now_ms = int(groups.frames["ts"][index])
    retention.reconfigure(topic, before, now_ms, core.segments.spans)
    core.recount(topic)


def _drop(core: Core, topic: Topic, _groups: Groups, _index: int) -> None:
    core.leave(topic)


def _delete(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    apply_delete(core, topic, _DELETE.decode(groups.payload(index)))
    if topic.queue is not None:
        dead_lettered = int(groups.frames["floor"][index])
        topic.queue.dead_lettered = max(topic.queue.dead_lettered, dead_lettered)


def _floor(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    row = groups.frames[index]
    if int(row["flags"]) == RESTART:
        core.forget_keys(topic)
    topic.raise_floor(int(row["floor"]), int(row["flags"]), core.segments.spans)
    runs = array("Q", bytes(groups.payload(index)))
    for first, last in zip(runs[0::2], runs[1::2], strict=True):
        topic.recall(first, last, int(row["flags"]))


def _ceiling(_core: Core, topic: Topic, groups: Groups, index: int) -> None:
    replay_ceiling(topic, int(groups.frames["first"][index]))


def replay_ceiling(topic: Topic, seq: int) -> None:
    # An ephemeral topic has none: this one is from before it became so, which the snapshot knows.
    # What it has as a ceiling there is its head.
    if topic.config.durability != "ephemeral":
        topic.ceiling.replay(seq)


def _epoch(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    epoch = int(groups.frames["first"][index])
    topic.renew(epoch)
    core.numbers.pass_epoch(epoch)


def _cursor(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    cursors.replay(core, topic, groups.payload(index), int(groups.frames["ts"][index]))


def _lease(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    lease_frames.replay(core, topic, groups.payload(index))


def _repeat(core: Core, topic: Topic, groups: Groups, index: int) -> None:
    row = groups.frames[index]
    first, count = int(row["first"]), int(row["count"])
    core.remember_key(topic, bytes(groups.payload(index)), first, count, int(row["ts"]))


HANDLERS: dict[int, Callable[[Core, Topic, Groups, int], None]] = {
    frames.CONFIGURE: _configure,
    frames.DROP: _drop,
    frames.DELETE: _delete,
    frames.FLOOR: _floor,
    frames.CEILING: _ceiling,
    frames.EPOCH: _epoch,
    frames.CURSOR: _cursor,
    frames.LEASE: _lease,
    frames.REPEAT: _repeat,
}
