"""Writes of one record: most of them, so they share what can be shared.

Those of one topic that are staged in the same turn and the same millisecond go into one frame,
whatever they have besides their data: node, tag, meta, an idempotency key. Each keeps its own owner
and its own seq; the frame is written whole or not at all, and so is each of them. Nothing else of
the topic may be staged in between, or the log would have another order than the calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from msgspec import Raw

from topics.engine.commit.core import Core
from topics.engine.commit.ticket import unknown
from topics.engine.ops import ceilings, repeats
from topics.engine.ops.growth import Brought, check_room, publish, published
from topics.engine.ops.told import Teller, ToldFrame
from topics.engine.state.batch import check_record_bytes, check_text_bytes, encode_meta
from topics.engine.state.kinds import is_marker, kind_of
from topics.engine.state.record import RECORD, meta_part, node_part, plain_form
from topics.engine.state.topic import Topic
from topics.engine.state.write_request import Request
from topics.errors import Poisoned, TopicsError
from topics.settings import Settings
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import KEY_BYTES, Columns, single_time

Texts = list[str | None] | None
# Records that one frame takes: as many as a batch may have.
SHARED_MAX = 1000


class More:
    """What a record has besides its data."""

    __slots__ = ("digest", "kind", "meta", "node", "tag")

    def __init__(self, request: Request, settings: Settings) -> None:
        record = request.records[0]
        self.tag = record.tag
        if self.tag is not None:
            check_text_bytes("tag", self.tag, settings.max_tag_bytes)
        self.node = request.node if record.node is None else record.node
        if self.node is not None:
            check_text_bytes("node", self.node, settings.max_node_bytes)
        self.meta = b""
        self.kind: str | None = None
        if record.meta is not None:
            self.meta = encode_meta(record.meta, 0, settings)
            self.kind = kind_of(record.meta, record.data)
        # The digest of its idempotency key.
        self.digest = b""

    @property
    def is_key(self) -> bool:
        """Whether it is a key and nothing that the record shows."""
        return self.tag is None and self.node is None and not self.meta


def append(core: Core, topic: Topic, request: Request, owner: Any, teller: Teller) -> None:
    """Stages a record."""
    now_ms = core.clock.wall_ms()
    record = request.records[0]
    data, more, node, meta = record.data, None, b"", b""
    if (
        record.tag is not None
        or record.node is not None
        or record.meta is not None
        or request.node is not None
        or request.idempotency_key is not None
    ):
        more = More(request, core.settings)
        if request.idempotency_key is not None:
            more.digest = repeats.digest(core, request.idempotency_key)
            if repeats.is_repeated(core, topic, more.digest, now_ms, owner, teller):
                return
        node, meta = node_part(more.node), meta_part(more.meta)
    frame, seq = topic.joining, topic.next_seq
    if (
        frame is None
        or now_ms > frame.ts
        or seq > frame.seq_max
        or frame.teller is not teller
        or len(data) + len(meta) > core.settings.max_record_bytes
    ):
        _append(core, topic, (node, data, meta), more, owner, teller, now_ms)
        return
    if more is None:
        wire = frame.form % (seq, data)
    else:
        wire = RECORD % (seq, frame.ts, node, data, meta)
        if more.digest:
            repeats.remember(core, topic, more.digest, seq, 1, frame.ts)
        frame.more[len(frame.records)] = more
    # What `assign` does, for one more: most singles come this way.
    size = len(wire)
    topic.next_seq = seq + 1
    topic.pending_bytes += size
    core.pending_bytes += size
    frame.records.append(wire)
    frame.owners.append(owner)


def _append(
    core: Core,
    topic: Topic,
    parts: tuple[bytes, Raw, bytes],
    more: More | None,
    owner: Any,
    teller: Teller,
    now_ms: int,
) -> None:
    """The long way, with every check."""
    settings, config = core.settings, topic.config
    if config.ttl_ms or topic.holds:
        core.expire(topic)
    if len(parts[1]) + len(parts[2]) > settings.max_record_bytes:
        size = len(parts[1]) + (0 if more is None else len(more.meta))
        check_record_bytes([size], settings.max_record_bytes)
    seq, ts = topic.next_seq, max(topic.last_ts, now_ms)
    wire = RECORD % (seq, ts, *parts)
    size = len(wire)
    is_bounded = bool(settings.max_total_bytes) or config.discard == "reject"
    if is_bounded and not (config.is_bucket and more is not None and is_marker(more.kind)):
        check_room(core, topic, 1, size)
    is_resident = topic.durability == "ephemeral"
    if is_resident and more is None and not topic.gated and topic.refusal is None:
        _append_resident(core, topic, wire, ts, owner, teller)
        return
    frame = topic.joining
    is_new = (
        frame is None
        or frame.ts != ts
        or len(frame.records) >= SHARED_MAX
        or frame.teller is not teller
        or not (frame.gated or ceilings.is_below(topic, seq))
    )
    # What can fail comes before the first trace of the write: its key, its seq.
    if frame is None or is_new:
        frame = SinglesFrame(core, topic, ts, teller, wire, more, owner)
        if is_resident:
            frame.put_together()
    if more is not None and more.digest:
        repeats.remember(core, topic, more.digest, seq, 1, ts)
    frame.assign(1, size)
    if is_resident:
        core.committer.apply_resident(frame)
        return
    if is_new:
        core.committer.stage(frame)
        topic.joining = frame
    else:
        frame.add(wire, more, owner)
    if not is_bounded:
        frame.open_up()


def _append_resident(
    core: Core, topic: Topic, wire: bytes, ts: int, owner: Any, teller: Teller
) -> None:
    """A record of nothing but data that nothing stands in front of: it needs no frame."""
    seq, committer = topic.next_seq, core.committer
    committer.write_s = committer.sync_s = 0.0
    try:
        topic.assign(1, 0, ts)
        publish_one(core, topic, seq, wire, ts)
    except Exception as error:
        # As with a frame: what is in memory is no longer what was told.
        poisoned = Poisoned(f"an operation could not be applied: {error!r}")
        committer.fail(poisoned)
        owner.fail(unknown(poisoned))
        raise poisoned from error
    teller.together(topic, seq, ts, [owner])


class SinglesFrame(ToldFrame):
    """Open for more, as its topic's `joining`, until something else is staged or it is written.

    `seq_max` is the last seq that may join it without another look at the topic, `form` what is
    made of one that does. `more` has what records have besides their data, by their place.
    """

    __slots__ = ("columns", "form", "keys", "more", "owners", "records", "seq_max")

    def __init__(
        self,
        core: Core,
        topic: Topic,
        ts: int,
        teller: Teller,
        wire: bytes,
        more: More | None,
        owner: Any,
    ) -> None:
        # As in Growth, all fields in one place.
        self.topic = topic
        self.kind = frames.APPEND
        self.gated = self.aside = False
        self.ticket = None
        self.first = self.count = self.floor = self.flags = self.size = self.seq_max = 0
        self.ts = ts
        self.cols = self.payload = self.keys = b""
        self.core = core
        self.teller = teller
        # The columns, once the frame is closed, unless it has one record that shows only its data.
        self.columns: Columns | None = None
        self.records = [wire]
        self.more = {} if more is None else {0: more}
        self.owners = [owner]

    def add(self, wire: bytes, more: More | None, owner: Any) -> None:
        if more is not None:
            self.more[len(self.records)] = more
        self.records.append(wire)
        self.owners.append(owner)

    def open_up(self) -> None:
        """Lets records in by the short way, as many as the topic's ceiling has room for."""
        self.form = plain_form(self.ts)
        topic, self.seq_max = self.topic, self.first + SHARED_MAX - 1
        if topic.durability == "disk":
            ceiling = topic.ceiling
            upto = ceiling.ask_seq if self.gated else ceiling.free_seq
            if upto < self.seq_max:
                self.seq_max = upto

    def entry(self) -> bytes:
        self.topic.joining = None
        self.put_together()
        self.size = len(self.payload)
        if self.columns is not None:
            self.flags, self.cols = columns_codec.encode(self.columns, times=False, key=self.keys)
        elif self.keys:
            self.flags, self.cols = columns_codec.KEY, columns_codec.encode_key(self.keys)
        return super().entry()

    def put_together(self) -> None:
        """Closes it: no more records, and their columns."""
        self.count = len(self.records)
        if self.count == 1 and (not self.more or self.more[0].is_key):
            self.payload = self.records[0]
            self.keys = self.more[0].digest if self.more else b""
            return
        self.payload = b"".join(self.records)
        nodes, tags, metas, kinds, self.keys = self._columns_of_more()
        ends = array("I", accumulate(map(len, self.records)))
        times_at, times = array("I", (0,)), array("q", (self.ts,))
        self.columns = Columns(self.payload, ends, times_at, times, nodes, tags, metas, kinds)

    def _columns_of_more(self) -> tuple[Texts, Texts, bytearray | None, Texts, bytes]:
        if not self.more:
            return None, None, None, None, b""
        count = self.count
        nodes: list[str | None] = [None] * count
        tags: list[str | None] = [None] * count
        kinds: list[str | None] = [None] * count
        metas, keys = bytearray(count), bytearray(KEY_BYTES * count)
        for place, more in self.more.items():
            nodes[place], tags[place] = more.node, more.tag
            if more.meta:
                metas[place], kinds[place] = 1, more.kind
            if more.digest:
                keys[KEY_BYTES * place : KEY_BYTES * (place + 1)] = more.digest
        return (
            None if nodes.count(None) == count else nodes,
            None if tags.count(None) == count else tags,
            metas if any(metas) else None,
            kinds if any(kinds) else None,
            bytes(keys) if any(keys) else b"",
        )

    def brings(self) -> Iterator[Brought]:
        for place in range(len(self.records)):
            more = self.more.get(place)
            kind, tag = (None, None) if more is None else (more.kind, more.tag)
            yield self.first + place, tag, kind

    def apply(self) -> None:
        self.arrive()
        if self.columns is None:
            publish_one(self.core, self.topic, self.first, self.payload, self.ts)
        else:
            publish(self.core, self.topic, self.first, self.columns)
        if self.keys:
            repeats.expire(self.core, self.topic, self.count)

    def tell(self, _result: None) -> None:
        self.teller.together(self.topic, self.first, self.ts, self.owners)

    def undo(self) -> None:
        # It may have failed before its payload was put together, open for more.
        self.size = sum(map(len, self.records))
        self.topic.joining = None
        for more in self.more.values():
            if more.digest:
                repeats.forget(self.core, self.topic, more.digest)
        super().undo()

    def fail(self, error: TopicsError) -> None:
        for owner in self.owners:
            owner.fail(error)


def publish_one(core: Core, topic: Topic, seq: int, record: bytes, ts: int) -> None:
    """Like `publish` for one record of nothing but data, which mostly just joins its block."""
    if topic.publish_one(seq, record, ts):
        published(core, topic, 1, len(record))
    else:
        publish(core, topic, seq, single_time(record, ts))
