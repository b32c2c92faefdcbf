"""Writes of one record with nothing but data: most of them, so they share what can be shared.

Those of one topic that are staged in the same turn and the same millisecond go into one frame.
Each keeps its own ticket and its own seq; the frame is written whole or not at all, and so is each
of them. Nothing else of the topic may be staged in between, or the log would have another order
than the calls.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import accumulate

from topics.engine import ceilings
from topics.engine.append import appended, check_room, publish, published
from topics.engine.commit import Frame, Ticket
from topics.engine.core import Core
from topics.engine.topic import Topic
from topics.engine.write import check_record_bytes
from topics.errors import TopicsError
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns, single_time
from topics.types import Appended

# As many as a batch may have.
SHARED_MAX = 1000


def append(core: Core, topic: Topic, data: bytes, ticket: Ticket) -> None:
    """Stages a record; the ticket ends in an Appended."""
    settings, config = core.settings, topic.config
    now_ms = core.clock.wall_ms()
    if config.ttl_ms or topic.holds:
        core.expire(topic)
    if len(data) > settings.max_record_bytes:
        check_record_bytes([len(data)], settings.max_record_bytes)
    ts = topic.last_ts if topic.last_ts > now_ms else now_ms
    seq = topic.next_seq
    record = b'{"$seq":%d,"$ts":%d,"data":%b},' % (seq, ts, data)
    size = len(record)
    if settings.max_total_bytes or config.discard == "reject":
        check_room(core, topic, 1, size)
    last_ts_before = topic.last_ts
    topic.next_seq = seq + 1
    topic.last_ts = ts
    topic.pending_bytes += size
    core.pending_bytes += size
    durability = topic.durability
    if durability == "disk":
        gated = ceilings.cover(core, topic, seq, topic.bytes_total + topic.pending_bytes)
    elif durability == "ephemeral":
        apply = partial(_publish_resident, core, topic, record, seq, ts)
        core.committer.apply_resident(topic, apply, ticket)
        return
    else:
        gated = durability == "fsync"
    frame = topic.joining
    if (
        frame is None
        or frame.ts != ts
        or len(frame.records) >= SHARED_MAX
        or frame.first + len(frame.records) != seq
        or (gated and not frame.gated)
    ):
        frame = SinglesFrame(core, topic, seq, ts, gated, last_ts_before)
        core.committer.stage(frame)
        topic.joining = frame
    frame.records.append(record)
    frame.tickets.append(ticket)


class SinglesFrame(Frame):
    """Open for more, as its topic's `joining`, until its entry is made."""

    __slots__ = ("columns", "core", "last_ts_before", "records", "tickets")

    def __init__(
        self, core: Core, topic: Topic, first: int, ts: int, gated: bool, last_ts_before: int
    ) -> None:
        super().__init__(topic, frames.APPEND, gated, None)
        self.core = core
        self.first = first
        self.ts = ts
        self.last_ts_before = last_ts_before
        # There once the frame is closed, when it has more than one record.
        self.columns: Columns
        self.records: list[bytes] = []
        self.tickets: list[Ticket] = []

    def entry(self) -> bytes:
        self.topic.joining = None
        self.count = len(self.records)
        self.payload = b"".join(self.records)
        if self.count > 1:
            ends = array("I", accumulate(map(len, self.records)))
            self.columns = Columns(
                self.payload, ends, array("I", [0]), array("q", [self.ts]), None, None, None
            )
            self.flags, self.cols = columns_codec.encode(self.columns, times=False)
        return super().entry()

    def apply(self) -> None:
        topic, core, payload = self.topic, self.core, self.payload
        topic.pending_bytes -= len(payload)
        core.pending_bytes -= len(payload)
        if self.count == 1:
            publish_one(core, topic, self.first, payload, self.ts)
        else:
            publish(core, topic, self.first, self.columns)
        name, epoch, ts = topic.name, topic.epoch, self.ts
        for seq, ticket in enumerate(self.tickets, self.first):
            ticket.resolve(Appended(name, epoch, seq, seq, seq, 1, ts, False, False))

    def undo(self) -> None:
        topic, size = self.topic, len(self.payload)
        topic.next_seq = self.first
        topic.last_ts = self.last_ts_before
        topic.pending_bytes -= size
        self.core.pending_bytes -= size

    def fail(self, error: TopicsError) -> None:
        for ticket in self.tickets:
            ticket.fail(error)


def _publish_resident(core: Core, topic: Topic, record: bytes, seq: int, ts: int) -> Appended:
    topic.pending_bytes -= len(record)
    core.pending_bytes -= len(record)
    publish_one(core, topic, seq, record, ts)
    return appended(topic, seq, 1, ts, created=False, deduped=False)


def publish_one(core: Core, topic: Topic, seq: int, record: bytes, ts: int) -> None:
    """Like `publish` for one record of nothing but data, which mostly just joins its block."""
    if topic.publish_one(record, ts):
        published(core, topic, 1, len(record))
    else:
        publish(core, topic, seq, single_time(record, ts))
