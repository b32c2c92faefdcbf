"""Readers that are told: what each wants to see, how far it has come, and what it is told next.

`advance` is one read of one topic for one cursor. It calls `tombstones.decide`, so a gap is told,
or passed over in silence, exactly as in every other read. What it returns depends on nothing but
the place and the options of the reader: readers at the same place with the same options share it,
rendered once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import msgspec

from topics.engine.reading.pages import LoadNow, Slices, View, collect
from topics.engine.reading.tombstones import Decision, decide
from topics.engine.state.topic import Topic
from topics.types import Tombstone

RECORD, TOMBSTONE, CAUGHT_UP, DELETED = "record", "tombstone", "caught-up", "topic-deleted"
# The word for involuntary loss that a reader meets when it connects.
TOO_OLD = "from_seq_too_old"
EVICTED = frozenset({"cap", "ttl", "mixed"})
# No topic was ever of this epoch: a cursor that has it belongs to an instance that is gone.
NO_EPOCH = 0

_RECORDS_HEAD = b'"topic":"%b","records":['
_RECORDS_TAIL = b'],"from_seq":%d,"to_seq":%d,"head_seq":%d,"epoch":"%d"}'
_TOMBSTONE = (
    b'"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"missed_estimate":%d,'
    b'"earliest_seq":%d,"head_seq":%d,"epoch":"%d"}'
)
_CAUGHT_UP = b'"topic":"%b","head_seq":%d,"epoch":"%d"}'
_DELETED = b'"topic":"%b","head_seq":%d,"reason":"deleted","epoch":"%d"}'


class StreamFrame:
    """One thing to tell a reader of a topic.

    `body` is a JSON object without its opening brace; `seq` and `epoch` are the reader's place
    after it. `sse`, `chunk`, `placed` and `text` are for whoever sends it: what receivers share.
    """

    __slots__ = ("body", "chunk", "epoch", "event", "placed", "seq", "sse", "text")

    def __init__(self, event: str, seq: int, epoch: int, body: bytes) -> None:
        self.event = event
        self.seq = seq
        self.epoch = epoch
        self.body = body
        self.sse: bytes | None = None
        self.chunk: bytes | None = None
        self.placed: bytes | None = None
        self.text: bytes | None = None


class Sink(Protocol):
    """Where a subscription's frames go. Called from within a turn of the scheduler."""

    @property
    def is_writable(self) -> bool:
        """Whether more may be delivered now. When it is again, the owner calls Feeds.resume."""
        ...

    def deliver(self, cursor: WatchCursor, frames: Sequence[StreamFrame]) -> int:
        """Takes frames of one topic; the cursor stands after the last. Returns their bytes."""
        ...

    def paced(self, name: str, retry_after_ms: int) -> None:
        """Under pressure this topic is delivered less often for now."""
        ...

    def fail(self, cursor: WatchCursor, error: Exception, *, is_final: bool) -> None:
        """The topic can not be read: for now, or not at all."""
        ...


class Server(Protocol):
    """Who reads for a cursor that is attached."""

    def requeue(self, cursor: WatchCursor) -> None:
        """The cursor can go on."""
        ...

    def detach(self, cursor: WatchCursor) -> None:
        """Nobody reads on from there."""
        ...


@dataclass(frozen=True, eq=False)
class WatchOptions:
    """How a reader sees records. Readers who see alike have the same: compared by identity."""

    view: View
    limit: int
    bytes_max: int
    is_strong: bool
    # The view for a topic that does not filter nodes.
    unfiltered: View

    _known: ClassVar = weakref.WeakValueDictionary[tuple[View, int, int, bool], "WatchOptions"]()

    @classmethod
    def of(cls, view: View, *, limit: int, bytes_max: int, is_strong: bool) -> WatchOptions:
        key = (view, limit, bytes_max, is_strong)
        options: WatchOptions | None = cls._known.get(key)
        if options is None:
            unfiltered = View(frozenset(), view.include_tags, view.include_meta, view.include_data)
            options = cls(view, limit, bytes_max, is_strong, unfiltered)
            cls._known[key] = options
        return options


class WatchCursor:
    """A reader's place in one topic.

    `told` is the place after the last frame; records that are left out in silence may lie between
    it and `seq`. The next frame begins there, so a reader can see that it missed none.
    `is_live`: it was told that it is caught up, and nothing since that it is not. `is_fresh`:
    nothing has been read since it connected, so a gap it meets is one that it brought along.
    """

    __slots__ = ("epoch", "feed", "is_fresh", "is_live", "name", "seq", "subscription", "told")

    def __init__(self, subscription: Subscription, name: str, seq: int, epoch: int) -> None:
        self.subscription = subscription
        self.name = name
        self.seq = self.told = seq
        self.epoch = epoch
        self.feed: Server | None = None
        self.is_live = False
        self.is_fresh = True


class Subscription:
    """One reader of one or many topics. Its cursors are where the last delivered frame left them.

    `first_epochs` has the epoch that a cursor had in what was told earlier, where it has changed.
    """

    __slots__ = (
        "blocked", "cursors", "first_epochs", "has_told", "on_new_epoch", "options",
        "says_epochs", "sink", "tells_too_old",
    )  # fmt: skip

    def __init__(
        self, options: WatchOptions, *, tells_too_old: bool, says_epochs: bool = False
    ) -> None:
        self.options = options
        # Whether every place that it is told has the epoch in it.
        self.says_epochs = says_epochs
        self.tells_too_old = tells_too_old
        # Cursors in byte order of their names.
        self.cursors: tuple[WatchCursor, ...] = ()
        self.sink: Sink | None = None
        # Cursors that have something to read while the sink takes nothing.
        self.blocked: dict[WatchCursor, None] | None = None
        self.has_told = False
        self.first_epochs: dict[str, int] | None = None
        # Called when the epoch that an id stands for without saying so is another one.
        self.on_new_epoch: Callable[[], None] | None = None

    def add(self, places: dict[str, tuple[int, int]]) -> None:
        """Sets the topics, once, each with its (seq, epoch)."""
        assert not self.cursors
        self.cursors = tuple(WatchCursor(self, name, *places[name]) for name in sorted(places))

    def end(self) -> None:
        """Nobody will read on: lets go of the cursors and of whoever listens, who know it."""
        self.cursors = ()
        self.on_new_epoch = None

    def move(self, cursor: WatchCursor, seq: int, epoch: int) -> None:
        if epoch != cursor.epoch:
            if self.has_told:
                self.first_epochs = self.first_epochs or {}
                self.first_epochs.setdefault(cursor.name, cursor.epoch)
            cursor.epoch = epoch
            if not self.has_told and self.on_new_epoch is not None:
                self.on_new_epoch()
        cursor.seq = seq


class Step:
    """What one read tells: frames, the place after them, and whether that is the end for now.

    `too_old` are the same frames for a reader who has just connected; `count` records are in them.
    """

    __slots__ = ("count", "frames", "is_drained", "seq", "too_old")

    def __init__(
        self,
        frames: tuple[StreamFrame, ...],
        too_old: tuple[StreamFrame, ...],
        seq: int,
        is_drained: bool,
        count: int,
    ) -> None:
        self.frames = frames
        self.too_old = too_old
        self.seq = seq
        self.is_drained = is_drained
        self.count = count


def advance(
    topic: Topic,
    seq: int,
    told: int,
    epoch: int,
    options: WatchOptions,
    bound: int,
    load_now: LoadNow,
) -> Step | None:
    """The next read for a reader at `seq`, up to `bound`; None when it has to wait for that.

    The caller has expired the topic before. May raise ColdMiss.
    """
    decision = decide(topic, seq, epoch=epoch)
    if decision.cursor > bound:
        return None
    if decision.upto > bound:
        decision = Decision(decision.tombstone, decision.cursor, bound)
    view = options.view if topic.config.dedupe_node else options.unfiltered
    found = collect(
        topic, decision, view, limit=options.limit, bytes_max=options.bytes_max, load_now=load_now
    )
    frames: list[StreamFrame] = []
    if found.count:
        from_seq = told if decision.tombstone is None else decision.cursor
        frames.append(_records(topic, from_seq, found, bound))
    too_old = frames
    gap = decision.tombstone
    if gap is not None:
        frames.insert(0, _tombstone(topic, gap, decision.cursor))
        if gap.reason in EVICTED:
            renamed = msgspec.structs.replace(gap, reason=TOO_OLD)
            too_old = [_tombstone(topic, renamed, decision.cursor), *frames[1:]]
    is_drained = found.cursor >= bound
    return Step(tuple(frames), tuple(too_old), found.cursor, is_drained, found.count)


def _records(topic: Topic, from_seq: int, found: Slices, head: int) -> StreamFrame:
    *pieces, last = found.pieces
    name = topic.name.encode()
    body = b"".join(
        (
            _RECORDS_HEAD % name,
            *pieces,
            last[:-1],
            _RECORDS_TAIL % (from_seq, found.cursor, head, topic.epoch),
        )
    )
    return StreamFrame(RECORD, found.cursor, topic.epoch, body)


def _tombstone(topic: Topic, gap: Tombstone, cursor: int) -> StreamFrame:
    body = _TOMBSTONE % (
        topic.name.encode(), gap.reason.encode(), gap.gap_from, gap.gap_to,
        gap.missed_estimate, gap.earliest_seq, gap.head_seq, topic.epoch,
    )  # fmt: skip
    return StreamFrame(TOMBSTONE, cursor, topic.epoch, body)


def caught_up(topic: Topic, seq: int, head: int) -> StreamFrame:
    return StreamFrame(
        CAUGHT_UP, seq, topic.epoch, _CAUGHT_UP % (topic.name.encode(), head, topic.epoch)
    )


def deleted(name: str, seq: int, head: int, epoch: int) -> StreamFrame:
    """The topic is gone; the reader's place stays what it was."""
    return StreamFrame(DELETED, seq, epoch, _DELETED % (name.encode(), head, epoch))
