"""What every write does: it takes seqs, arrives at its topic, or gives its seqs back.

Appends, singles, copies, maps and dead letters differ in what they put into the log and in who is
told. This they share: a cap that refuses does so before any seq is assigned; what is assigned is
counted as on its way until it is published; and what the log refuses leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Frame
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import ceilings
from topics.engine.state.kinds import is_marker
from topics.engine.state.topic import Topic
from topics.errors import RecordTooLarge, Throttled, TopicFull
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns

UNBOUNDED = 1 << 62
# A record on its way, as a bucket sees it: its seq, its tag, its kind.
Brought = tuple[int, str | None, str | None]


class Growth(Frame):
    """A frame that takes seqs of its topic; `size` is what it counts for until it arrives."""

    __slots__ = ("core", "last_ts_before", "size")

    def __init__(
        self, core: Core, topic: Topic, kind: int, ts: int, ticket: Ticket[Any] | None = None
    ) -> None:
        # All fields in one place: a second call would be felt with every write.
        self.topic = topic
        self.kind = kind
        self.gated = self.aside = False
        self.ticket = ticket
        self.first = self.count = self.floor = self.flags = self.size = 0
        self.ts = ts
        self.cols = self.payload = b""
        self.core = core

    def assign(self, count: int, size: int) -> None:
        """Takes the next seqs, after those it has; `gated` says when it must be durable first."""
        topic = self.topic
        if not self.first:
            self.first, self.last_ts_before = topic.next_seq, topic.last_ts
        self.size += size
        topic.assign(count, size, self.ts)
        self.core.pending_bytes += size
        if topic.durability == "disk":
            last = topic.next_seq - 1
            if last > topic.ceiling.free_seq and ceilings.cover(self.core, topic, last):
                self.gated = True
            return
        if topic.durability == "fsync":
            self.gated = True
        if topic.id in self.core.routers.sources:
            ceilings.open_routed(self.core, topic, count)

    def brings(self) -> Iterator[Brought]:
        """The records that it will publish, in order."""
        if self.kind == frames.APPEND:
            columns, _ = columns_codec.decode(
                self.flags, self.count, self.cols, self.payload, self.ts
            )
            yield from brought(self.first, columns)

    def hand_over(self) -> None:
        """Gives it to the log, or, in a topic that leaves nothing there, has it applied."""
        if self.topic.durability == "ephemeral":
            self.core.committer.apply_resident(self)
        else:
            self.core.committer.stage(self)

    def arrive(self) -> None:
        """It is on its way no longer."""
        self.topic.arrive(self.size)
        self.core.pending_bytes -= self.size

    def undo(self) -> None:
        self.arrive()
        self.topic.unassign(self.first, self.last_ts_before)


def brought(first: int, columns: Columns) -> Iterator[Brought]:
    """The records of a run from seq `first` on."""
    none = [None] * len(columns)
    seqs = range(first, first + len(columns))
    return zip(seqs, columns.tags or none, columns.kinds or none, strict=True)


def charge(topic: Topic, columns: Columns) -> tuple[int, int]:
    """The records and bytes of a run that need room: in a bucket, markers do not."""
    kinds = columns.kinds
    if kinds is None or not topic.config.is_bucket:
        return len(columns), len(columns.payload)
    puts = [place for place, kind in enumerate(kinds) if not is_marker(kind)]
    return len(puts), sum(columns.span(place, place + 1) for place in puts)


def check_room(core: Core, topic: Topic, count: int, size: int, *, counted: int = 0) -> None:
    """Raises Throttled, TopicFull or RecordTooLarge when so much can not be taken now.

    `counted` bytes of it are held already, in stages.
    """
    config = topic.config
    quota = core.settings.max_total_bytes
    if quota and core.taken_bytes + size - counted > quota:
        raise Throttled(
            f"the server holds {core.taken_bytes} bytes of at most {quota}; nothing was written",
            limit="max_total_bytes", max=quota,
        )  # fmt: skip
    if config.discard != "reject":
        return
    caps = {"cap_records": config.cap_records, "cap_bytes": config.cap_bytes}
    if (config.cap_records and count > config.cap_records) or (
        config.cap_bytes and size > config.cap_bytes
    ):
        raise RecordTooLarge(
            f'a write of {count} records and {size} bytes can never fit topic "{topic.name}"; '
            "nothing was written. Raise the cap or split the write.",
            **caps,
        )
    records_left, bytes_left = room(core, topic)
    if count > records_left or size > bytes_left:
        if config.ttl_ms or topic.holds:
            # The refusal tells the floor, like a read: where it has moved, that is written first.
            core.committer.flush()
        raise TopicFull(
            f'topic "{topic.name}" is full and refuses new records; nothing was written. '
            "Retry after consumers have deleted some.",
            **caps, head_seq=topic.head, earliest_seq=topic.floor,
        )  # fmt: skip


def room(core: Core, topic: Topic) -> tuple[int, int]:
    """How many records and bytes a topic takes before it is full, with what is on its way."""
    config, records, size = topic.config, UNBOUNDED, UNBOUNDED
    if core.settings.max_total_bytes:
        size = core.settings.max_total_bytes - core.taken_bytes
    if config.discard == "reject":
        if config.cap_records:
            records = config.cap_records - topic.live_count - (topic.next_seq - 1 - topic.head)
        if config.cap_bytes:
            size = min(size, config.cap_bytes - topic.live_bytes - topic.pending_bytes)
    return records, size


def publish(core: Core, topic: Topic, first: int, columns: Columns) -> None:
    """Makes records readable, then lets the caps evict."""
    topic.publish(first, columns, core.settings.block_bytes)
    if columns.tags is not None and not topic.config.is_bucket:
        topic.add_tags(columns.tags, first)
        core.unfolded.add(topic.id)
    published(core, topic, len(columns.ends), len(columns.payload))


def published(core: Core, topic: Topic, count: int, size: int) -> None:
    core.unsealed.add(count, size)
    core.tally.appended += count
    config = topic.config
    if config.cap_records or config.cap_bytes:
        core.evict(topic)
    else:
        core.recount(topic)
    if topic.id in core.routers.sources:
        core.routers.note(topic.id)
    core.published(topic)
