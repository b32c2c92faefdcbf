"""Writes of one record with nothing but data: most of them, so they share what can be shared.

Those of one topic that are staged in the same turn and the same millisecond go into one frame.
Each keeps its own owner and its own seq; the frame is written whole or not at all, and so is each
of them. Nothing else of the topic may be staged in between, or the log would have another order
than the calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Owner, Ticket
from topics.engine.ops import ceilings
from topics.engine.ops.append import appended
from topics.engine.ops.growth import Growth, arrive, assign, check_room, publish, published
from topics.engine.state.topic import Topic
from topics.engine.state.write_request import check_record_bytes
from topics.errors import TopicsError
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns, single_time
from topics.types import Appended

# As many as a batch may have.
SHARED_MAX = 1000
_RECORD = b'{"$seq":%d,"$ts":%d,"data":%b},'


# Told of the records of one frame, with the first of their seqs, when they are readable.
Together = Callable[[Topic, int, list[Any]], None]


def append(
    core: Core, topic: Topic, data: bytes, owner: Owner, together: Together | None = None
) -> None:
    """Stages a record. Without `together` its owner is a ticket, which ends in an Appended."""
    now_ms = core.clock.wall_ms()
    frame = topic.joining
    seq = topic.next_seq
    if (
        frame is None
        or now_ms > frame.ts
        or seq > frame.seq_max
        or frame.together is not together
        or len(data) > core.settings.max_record_bytes
    ):
        _append(core, topic, data, owner, together, now_ms)
        return
    record = _RECORD % (seq, frame.ts, data)
    size = len(record)
    # What `assign` does, for one more: most singles come this way.
    topic.next_seq = seq + 1
    topic.pending_bytes += size
    core.pending_bytes += size
    frame.records.append(record)
    frame.owners.append(owner)


def _append(
    core: Core, topic: Topic, data: bytes, owner: Owner, together: Together | None, now_ms: int
) -> None:
    """The long way, with every check."""
    settings, config = core.settings, topic.config
    if config.ttl_ms or topic.holds:
        core.expire(topic)
    if len(data) > settings.max_record_bytes:
        check_record_bytes([len(data)], settings.max_record_bytes)
    seq, ts = topic.next_seq, max(topic.last_ts, now_ms)
    record = _RECORD % (seq, ts, data)
    size = len(record)
    is_bounded = bool(settings.max_total_bytes) or config.discard == "reject"
    if is_bounded:
        check_room(core, topic, 1, size)
    if topic.durability == "ephemeral":
        assert isinstance(owner, Ticket)
        assign(core, topic, 1, size, ts)
        apply = partial(_publish_resident, core, topic, record, seq, ts)
        core.committer.apply_resident(topic, apply, owner)
        return
    frame = topic.joining
    if (
        frame is None
        or frame.ts != ts
        or len(frame.records) >= SHARED_MAX
        or frame.together is not together
        or not (frame.gated or ceilings.is_below(topic, seq))
    ):
        frame = SinglesFrame(core, topic, ts, together)
        frame.assign(1, size)
        core.committer.stage(frame)
        topic.joining = frame
    else:
        frame.assign(1, size)
    frame.records.append(record)
    frame.owners.append(owner)
    if not is_bounded:
        frame.open_up()


class SinglesFrame(Growth):
    """Open for more, as its topic's `joining`, until something else is staged or it is written.

    `seq_max` is the last seq that may join it without another look at the topic.
    """

    __slots__ = ("columns", "owners", "records", "seq_max", "together")

    def __init__(self, core: Core, topic: Topic, ts: int, together: Together | None) -> None:
        super().__init__(core, topic, frames.APPEND, ts)
        self.together = together
        self.seq_max = 0
        # There once the frame is closed, when it has more than one record.
        self.columns: Columns
        self.records: list[bytes] = []
        self.owners: list[Any] = []

    def open_up(self) -> None:
        """Lets records in by the short way, as many as the topic's ceiling has room for."""
        topic = self.topic
        self.seq_max = self.first + SHARED_MAX - 1
        if topic.durability == "disk":
            self.seq_max = min(self.seq_max, topic.ceiling.ask_seq)
            if not self.gated:
                self.seq_max = min(self.seq_max, topic.ceiling.seq)

    def entry(self) -> bytes:
        self.topic.joining = None
        self.count = len(self.records)
        self.payload = b"".join(self.records)
        self.size = len(self.payload)
        if self.count > 1:
            ends = array("I", accumulate(map(len, self.records)))
            self.columns = Columns(
                self.payload, ends, array("I", [0]), array("q", [self.ts]), None, None, None
            )
            self.flags, self.cols = columns_codec.encode(self.columns, times=False)
        return super().entry()

    def apply(self) -> None:
        topic, core, payload = self.topic, self.core, self.payload
        self.arrive()
        if self.count == 1:
            publish_one(core, topic, self.first, payload, self.ts)
        else:
            publish(core, topic, self.first, self.columns)

    def tell(self, _result: None) -> None:
        topic = self.topic
        if self.together is not None:
            self.together(topic, self.first, self.owners)
            return
        name, epoch, ts = topic.name, topic.epoch, self.ts
        for seq, ticket in enumerate(self.owners, self.first):
            ticket.resolve(Appended(name, epoch, seq, seq, seq, 1, ts, False, False))

    def undo(self) -> None:
        # It may have failed before its payload was put together, open for more.
        self.size = sum(map(len, self.records))
        self.topic.joining = None
        super().undo()

    def fail(self, error: TopicsError) -> None:
        for owner in self.owners:
            owner.fail(error)


def _publish_resident(core: Core, topic: Topic, record: bytes, seq: int, ts: int) -> Appended:
    arrive(core, topic, len(record))
    publish_one(core, topic, seq, record, ts)
    return appended(topic, seq, 1, ts, created=False, deduped=False)


def publish_one(core: Core, topic: Topic, seq: int, record: bytes, ts: int) -> None:
    """Like `publish` for one record of nothing but data, which mostly just joins its block."""
    if topic.publish_one(seq, record, ts):
        published(core, topic, 1, len(record))
    else:
        publish(core, topic, seq, single_time(record, ts))
