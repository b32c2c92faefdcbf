"""Sealed segments in use: where their bytes are, a bounded cache of blocks, and when they may go.

A segment is HOT (a file in the data directory) or COLD (an object in the cold store, with its
table and flags in a local `.cold` file). A read of a cold block that is not cached raises ColdMiss;
the caller fetches it where waiting is allowed and tries again.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topics.engine.state.block import Block, Segment
from topics.engine.state.residents import Residents
from topics.errors import CorruptData, Overloaded, StoreUnreachable, TopicsError, Unreadable
from topics.storage import cold as cold_codec
from topics.storage import flags
from topics.storage import segment as codec
from topics.storage.columns import Columns, Spans
from topics.storage.disk_errors import NO_FILES, typed
from topics.storage.fs import File, Fs, join, opened
from topics.storage.segment import FileBytes, Row, SegmentInfo
from topics.storage.tiers import Store

OPEN_FILES_MAX = 128
# Cold blocks whose spans are kept: a cap that evicts asks for those of one block again and again.
SPANS_MAX = 64


class ColdMiss(Exception):
    """A read needs a block that only the cold store has.

    `ahead` is that block and those after it that are worth fetching with it.
    """

    def __init__(self, block: Block) -> None:
        super().__init__("block is in the cold store")
        self.ahead = [block]


@dataclass(frozen=True, slots=True)
class Request:
    """Neighbouring cold blocks, with where they stood when they were asked for.

    A block may move to another segment, or lose its last record, while the store is waited for.
    """

    segments: Segments
    ahead: list[Block]
    segment: Segment
    rows: list[Row]

    def read(self) -> list[Columns]:
        """Waits for the store, in any thread: it touches nothing that others change."""
        return self.segments.read_rows(self.segment, self.rows, is_cold=True)

    @property
    def is_outdated(self) -> bool:
        """Whether they are not what or where they were: then a failure says nothing of them."""
        return any(block.row is not row for block, row in zip(self.ahead, self.rows, strict=True))


class HeldBytes:
    """A part of a segment that is in memory already."""

    def __init__(self, raw: bytes, start: int) -> None:
        self._raw = raw
        self._start = start

    def read(self, length: int, offset: int) -> bytes:
        return self._raw[offset - self._start : offset - self._start + length]

    def size(self) -> int:
        return self._start + len(self._raw)


class Segments:
    """Owns the sealed segments of one engine, their open files and the blocks that are cached.

    A segment is live while a block needs it, then garbage until two snapshots are without it. Both
    the cache and what is resident of sealed blocks have bounds; a read never waits for the store.
    """

    def __init__(self, fs: Fs, directory: str, store: Store | None, cache_bytes_max: int) -> None:
        self.fs = fs
        self.directory = directory
        self.store = store
        # Whether the bytes of every live record could be counted; else some of them are estimates.
        self.is_exact = True
        # Whether what is counted was counted before, and has to come to the same.
        self._is_replaying = True
        self.live: dict[int, Segment] = {}
        self.garbage: list[int] = []
        # The tables of those among the garbage that were in use since the start.
        self.leaving: dict[int, SegmentInfo] = {}
        # Since when live segments hold bytes of what is gone, in ms; 0 where nobody has said yet.
        self.soiled_ms: dict[int, int] = {}
        self.newly_soiled: list[int] = []
        # Bytes of what was gone that rewriting has left out so far.
        self.erased_bytes_total = 0
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[int, tuple[Block, Columns]] = OrderedDict()
        self._cache_bytes = 0
        self.residents = Residents()
        self._spans: OrderedDict[int, tuple[Block, Spans]] = OrderedDict()
        self._files: OrderedDict[int, File] = OrderedDict()

    # -- reading -----------------------------------------------------------------------------

    def columns(self, block: Block) -> Columns:
        """The columns of a block that has bytes; raises ColdMiss or CorruptData."""
        if block.columns is not None:
            return block.columns
        cached = self._cache.get(id(block))
        if cached is not None:
            self._cache.move_to_end(id(block))
            return cached[1]
        segment = block.segment
        assert segment is not None
        assert block.row is not None
        if segment.is_cold:
            raise ColdMiss(block)
        try:
            source = FileBytes(self._file(segment.number))
            columns = codec.read_block(source, block.row, segment.number)
        except OSError as error:
            raise _unreadable(segment, error) from error
        self.admit(block, columns)
        return columns

    def spans(self, block: Block) -> Spans:
        """Sizes and times of the records of a block that has bytes, in whatever tier they are.

        For counting, which goes on whatever happens: of a block that the disk can not read, asked
        twice, they are estimates, and `is_exact` says so from then on. A replay that lacks memory
        or descriptors fails, so that whoever tries again can count.
        """
        try:
            return self._spans_again(block)
        except (MemoryError, Overloaded):
            if self._is_replaying:
                raise
        except TopicsError:
            pass
        self.is_exact = False
        return estimated(block)

    def _spans_again(self, block: Block) -> Spans:
        """What was read wrongly once is no damage."""
        try:
            return self.exact_spans(block)
        except (CorruptData, Unreadable):
            return self.exact_spans(block)

    def started(self) -> None:
        """The log was replayed; what is counted from now on nobody has counted before."""
        self._is_replaying = False

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """While a part of the log is replayed that was left for after the start."""
        self._is_replaying = True
        try:
            yield
        finally:
            self._is_replaying = False

    def exact_spans(self, block: Block) -> Spans:
        """Like `spans`, but raises when they can not be read. They are kept beside the log."""
        try:
            return self.columns(block)
        except ColdMiss:
            pass
        known = self._spans.get(id(block))
        if known is not None:
            self._spans.move_to_end(id(block))
            return known[1]
        segment, row = block.segment, block.row
        assert segment is not None
        assert row is not None
        try:
            spans = cold_codec.read_spans(self.fs, self.directory, segment.info, row)
        except CorruptData:
            # The object has them too: rather wait for it than not know.
            return self.columns_waiting(block)
        except OSError as error:
            raise _unreadable(segment, error) from error
        self._spans[id(block)] = (block, spans)
        if len(self._spans) > SPANS_MAX:
            self._spans.popitem(last=False)
        return spans

    def holds(self, block: Block) -> bool:
        """Whether a block's columns can be had without waiting for the cold store."""
        is_cold = block.segment is not None and block.segment.is_cold
        return not is_cold or block.columns is not None or id(block) in self._cache

    def columns_waiting(self, block: Block) -> Columns:
        """Like `columns`, but waits for the cold store."""
        try:
            return self.columns(block)
        except ColdMiss as miss:
            columns = self.ask(miss.ahead).read()[0]
            self.admit(block, columns)
            return columns

    def ask(self, ahead: list[Block]) -> Request:
        """A request for neighbouring cold blocks that have just been missed."""
        segment = ahead[0].segment
        rows = [block.row for block in ahead if block.row is not None]
        assert segment is not None
        assert len(rows) == len(ahead)
        return Request(self, ahead, segment, rows)

    def read_rows(self, segment: Segment, rows: list[Row], *, is_cold: bool) -> list[Columns]:
        """Reads blocks that stand behind one another, at once. Safe in any thread.

        Raises CorruptData, StoreUnreachable, or OSError for a file here.
        """
        name = codec.file_name(segment.number)
        start = rows[0].offset
        if not is_cold:
            with opened(self.fs, join(self.directory, name), writable=False) as file:
                return [codec.read_block(FileBytes(file), row, segment.number) for row in rows]
        if self.store is None:
            raise CorruptData("block has no segment in the cold store")
        try:
            raw = self.store.get_range(name, start, rows[-1].end - start)
        except OSError as error:
            raise StoreUnreachable(
                f"segment {segment.number} is in the cold store, which can not be reached now; "
                "nothing is lost, try again later",
                segment=segment.number,
            ) from error
        held = HeldBytes(raw, start)
        return [codec.read_block(held, row, segment.number) for row in rows]

    def admit(self, block: Block, columns: Columns) -> None:
        self._uncache(block)
        self._cache[id(block)] = (block, columns)
        self._cache_bytes += block.size
        while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            _, (old, _) = self._cache.popitem(last=False)
            self._cache_bytes -= old.size

    def admit_all(self, ahead: list[Block], fetched: list[Columns]) -> None:
        """The first one last: it is needed next, and the cache may be small."""
        for block, columns in reversed(list(zip(ahead, fetched, strict=True))):
            self.admit(block, columns)

    def keep(self, block: Block, bytes_max: int) -> None:
        """A block that was just sealed stays in memory; the oldest of those go at the bound."""
        residents = self.residents
        residents.add(block)
        while residents.bytes > bytes_max and (oldest := residents.oldest()) is not None:
            residents.remove(oldest)
            oldest.columns = None

    def forget(self, block: Block) -> None:
        """Nobody will ask for this block any more, or not for these bytes of it."""
        self.residents.remove(block)
        self._uncache(block)

    def _uncache(self, block: Block) -> None:
        self._spans.pop(id(block), None)
        if self._cache.pop(id(block), None) is not None:
            self._cache_bytes -= block.size

    def _file(self, number: int) -> File:
        file = self._files.get(number)
        if file is None:
            path = join(self.directory, codec.file_name(number))
            file = self.fs.open(path, writable=False)
            self._files[number] = file
            if len(self._files) > OPEN_FILES_MAX:
                self._files.popitem(last=False)[1].close()
        return file

    def close_file(self, number: int) -> None:
        file = self._files.pop(number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for number in list(self._files):
            self.close_file(number)

    # -- life --------------------------------------------------------------------------------

    def adopt(
        self, info: SegmentInfo, flag_sums: list[flags.Sum], *, is_cold: bool = False
    ) -> Segment:
        segment = Segment(
            info.number, info, self, is_cold, flag_sums=flag_sums, payload_bytes=info.payload_bytes,
            last_ts=max((row.last_ts for row in info.rows), default=0),
        )  # fmt: skip
        self.live[info.number] = segment
        return segment

    def discard(self, segment: Segment) -> None:
        """No block needs it any more. Its file goes after a snapshot no longer names it."""
        if self.live.pop(segment.number, None) is not None:
            self.garbage.append(segment.number)
            self.leaving[segment.number] = segment.info
            self.soiled_ms.pop(segment.number, None)

    def soiled(self, segment: Segment) -> None:
        """A live segment holds bytes of what is gone; whoever knows the time says since when."""
        if segment.number in self.live and segment.number not in self.soiled_ms:
            self.soiled_ms[segment.number] = 0
            self.newly_soiled.append(segment.number)

    def attached(self, segment: Segment) -> None:
        """All blocks that need it have it; without any it is garbage."""
        if segment.left == 0:
            self.discard(segment)
        elif segment.dead_bytes > 0:
            self.soiled(segment)

    @property
    def disk_bytes(self) -> int:
        """What segments take in both tiers, those included that are about to go."""
        return sum(held.info.size for held in self.live.values()) + self.leaving_bytes

    @property
    def dead_bytes(self) -> int:
        """What live segments hold of records that are gone."""
        soiled = (self.live.get(number) for number in self.soiled_ms)
        return sum(held.dead_bytes for held in soiled if held is not None)

    @property
    def leaving_bytes(self) -> int:
        """What the files take that go as soon as no snapshot names them."""
        return sum(info.size for info in self.leaving.values())

    def unlink(self, number: int) -> None:
        """Removes the local files of a segment; idempotent. In any thread."""
        for name in (codec.file_name(number), cold_codec.file_name(number)):
            path = join(self.directory, name)
            if self.fs.exists(path):
                self.fs.unlink(path)

    def removed(self, number: int) -> None:
        """Its files are gone."""
        self.leaving.pop(number, None)
        self.garbage.remove(number)

    def write_flags(self, segment: Segment, indexes: array[int]) -> None:
        """Writes flags (see flagging.py) and syncs them; may run in another thread."""
        write = cold_codec.add_flags if segment.is_cold else codec.write_flags
        written = write(self.fs, self.directory, segment.info, indexes)
        segment.flag_sums = flags.renewed(segment.info.rows, written, segment.flag_sums)


def estimated(block: Block) -> Spans:
    """Every record of the same size, and as young as the youngest."""
    ends = np.arange(1, block.count + 1, dtype=np.uint64) * block.size // max(block.count, 1)
    return Spans(
        array("I", ends.astype(np.uint32).tobytes()), array("I", [0]), array("q", [block.last_ts])
    )


def _unreadable(segment: Segment, error: OSError) -> TopicsError:
    """A failed read: for want of descriptors it may be repeated at once, else it is the disk's."""
    if error.errno in NO_FILES:
        return typed(error, f"segment {segment.number} can not be read")
    return Unreadable(
        f"segment {segment.number} can not be read now: {error}", segment=segment.number
    )
