"""A block: a run of seqs of one topic, in memory, in a segment, or both; and that segment."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from topics.storage import columns as columns_codec
from topics.storage import flags
from topics.storage.columns import Columns, Spans
from topics.storage.segment import DEAD, Row, SegmentInfo

if TYPE_CHECKING:
    from topics.engine.state.residents import Part

# An open block that reached this is ended by the next write.
JOINED_BYTES_MAX = 240 * 1024

_DEAD = bytes((DEAD,))

# The sizes and times of a block's records, which never wait for a remote store.
Loader = Callable[["Block"], Spans]


class Block:
    """Records `first` to `first + count - 1`.

    `columns` is None while the records are only in `segment`; a block with neither is a ghost: a
    run of deleted records whose bytes are gone. `dead` has DEAD for each deleted record, and is
    None while there are none.
    """

    __slots__ = (
        "columns", "count", "dead", "dead_count", "first", "first_ts", "last_ts",
        "live_bytes", "resident_in", "row", "segment", "size",
    )  # fmt: skip

    def __init__(self, first: int, columns: Columns) -> None:
        self.first = first
        self.count = len(columns.ends)
        self.size = len(columns.payload)
        self.live_bytes = self.size
        self.first_ts = columns.times[0] if columns.times else 0
        self.last_ts = columns.times[-1] if columns.times else 0
        self.columns: Columns | None = columns
        self.dead: bytearray | None = None
        self.dead_count = 0
        self.segment: Segment | None = None
        # Where those are that are in memory although a segment has them (`residents`).
        self.resident_in: Part | None = None
        self.row: Row | None = None

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def is_open(self) -> bool:
        """Whether later records may still be added."""
        columns = self.columns
        return self.segment is None and columns is not None and type(columns.payload) is bytearray

    @property
    def is_ghost(self) -> bool:
        return self.columns is None and self.segment is None

    def add(self, columns: Columns) -> None:
        """Appends a later run to an open block."""
        assert self.columns is not None
        self.columns.extend(columns)
        added = len(columns.ends)
        self.count += added
        self.size += len(columns.payload)
        self.live_bytes += len(columns.payload)
        self.last_ts = columns.times[-1]
        if self.dead is not None:
            self.dead += bytes(added)

    def add_one(self, payload: bytes, ts: int, seq: int) -> bool:
        """Appends one record of nothing but data; False where that is not so simple."""
        columns = self.columns
        if columns is None or self.first + self.count != seq or self.size >= JOINED_BYTES_MAX:
            return False
        held = columns.payload
        if type(held) is not bytearray or self.dead is not None or self.segment is not None:
            return False
        if columns.tags is not None or columns.nodes is not None or columns.metas is not None:
            return False
        held += payload
        columns.ends.append(len(held))
        if columns.times[-1] != ts:
            columns.times_at.append(self.count)
            columns.times.append(ts)
        self.count += 1
        self.size = len(held)
        self.live_bytes += len(payload)
        self.last_ts = ts
        return True

    def freeze(self) -> None:
        """Ends an open block: exact memory from now on."""
        if self.is_open:
            assert self.columns is not None
            self.columns.payload = bytes(self.columns.payload)

    def span(self, first: int, stop: int, load: Loader) -> int:
        """Bytes of the live records [first, stop)."""
        if stop - first == self.count - self.dead_count:
            return self.live_bytes
        # Never more than there is: sizes are estimates while a block can not be read.
        return min(load(self).span(first, stop), self.live_bytes)

    def mark_dead(self, index: int) -> bool:
        """True when the record was live until now."""
        if self.dead is None:
            self.dead = bytearray(self.count)
        if self.dead[index] == DEAD:
            return False
        self.dead[index] = DEAD
        self.dead_count += 1
        return True

    def mark_run_dead(self, first: int, stop: int) -> None:
        """Marks the records [first, stop), all of them live until now."""
        if self.dead is None:
            self.dead = bytearray(self.count)
        self.dead[first:stop] = _DEAD * (stop - first)
        self.dead_count += stop - first

    def is_dead(self, index: int) -> bool:
        return self.dead is not None and self.dead[index] == DEAD

    def has_live(self, first: int, stop: int) -> bool:
        """Whether any record within the indexes [first, stop) is live."""
        if not self.dead_count:
            return first < stop
        return self.dead_count < self.count and any(True for _ in self.live_runs(first, stop))

    def live_runs(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Runs [a, b) of live records within the indexes [first, stop)."""
        dead = self.dead
        if dead is None or not self.dead_count:
            if first < stop:
                yield first, stop
            return
        at = first
        while at < stop:
            edge = dead.find(DEAD, at, stop)
            if edge < 0:
                yield at, stop
                return
            if edge > at:
                yield at, edge
            at = dead.find(0, edge, stop)
            if at < 0:
                return

    def lose(self, size: int) -> None:
        """So many of its live bytes are gone."""
        self.live_bytes -= size
        if self.segment is not None:
            self.segment.lose(size)

    def ghost(self) -> None:
        """Forgets the bytes of a block whose records are all deleted."""
        self.columns = None
        self.segment = None
        self.row = None
        self.size = self.live_bytes = 0


def ghost_block(first: int, count: int, ts: int) -> Block:
    block = Block(first, columns_codec.empty())
    block.count = count
    block.dead = bytearray([DEAD]) * count
    block.dead_count = count
    block.first_ts = block.last_ts = ts
    block.ghost()
    return block


class Keeper(Protocol):
    """Who has the segments, and is told what nobody needs any more."""

    def forget(self, block: Block) -> None: ...

    def discard(self, segment: Segment) -> None: ...

    def soiled(self, segment: Segment) -> None:
        """It holds bytes that are gone, for the first time."""
        ...


@dataclass(slots=True)
class Segment:
    """`left` counts the blocks that still need it; at 0 it is garbage."""

    number: int
    info: SegmentInfo
    owner: Keeper
    is_cold: bool = False
    left: int = 0
    # Indexes into the flag area that are dead in memory but not yet on the disk.
    unflagged: array[int] = field(default_factory=lambda: array("I"))
    # Sums of the flags that are on the disk.
    flag_sums: list[flags.Sum] = field(default_factory=list)
    # Of the records: what its blocks have, and what of that is live (see `Segments.spans`).
    payload_bytes: int = 0
    live_bytes: int = 0
    # When its youngest record was committed.
    last_ts: int = 0

    @property
    def dead_bytes(self) -> int:
        """What it holds of records that are gone."""
        return self.payload_bytes - self.live_bytes

    def attach(self, block: Block) -> None:
        """A block of it is in use; its live bytes are known."""
        self.left += 1
        self.live_bytes += block.live_bytes

    def lose(self, size: int) -> None:
        """So many bytes of its blocks are not live any more."""
        if size and self.live_bytes == self.payload_bytes:
            self.owner.soiled(self)
        self.live_bytes -= size

    def release(self, block: Block) -> None:
        self.left -= 1
        self.lose(block.live_bytes)
        self.owner.forget(block)
        if self.left == 0:
            self.owner.discard(self)
