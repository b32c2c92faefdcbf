"""Segments: sealed, immutable runs of records, of one topic or packed for many small ones.

Layout: header sector; blocks (columns, then payload, at most about 256 KiB each); the table of
blocks; and behind it the flag area, one byte for each record in table order.

What must be true on disk:

- Everything in front of the flag area is written once, synced, then renamed into place.
- Each block has an XXH3-64 of its own, checked on every read: corrupt bytes are never served.
- Liveness is an exact sentinel outside every checksum: a record is deleted only when its byte is
  0xD5. A torn one-byte write leaves 0x00 or 0xD5, so a flip can neither damage framing nor bring
  a deleted record back; one that did not land is covered by the log's DELETE frame, which is not
  trimmed before the flips were synced.
- A record that was gone when its block was written has an empty span there, and the time of a
  neighbour. Without a flag it was below its topic's floor.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from topics.errors import CorruptData, Poisoned
from topics.storage import columns as columns_codec
from topics.storage.columns import Columns
from topics.storage.frames import SECTOR, checksum, checksum_of
from topics.storage.fs import File, Fs, join, opened

DEAD = 0xD5
SEGMENT_MAGIC = b"TOPSEG\x00\x01"
VERSION = 1
BUFFER_BYTES = 256 * 1024
# Flags that are no farther apart are written by one call.
FLAGS_APART_MAX = 512
# magic, checksum of the rest and the table, version, rows, number, table offset, flag bytes
HEADER = struct.Struct("<8sQIIQQQ")
# topic id, flags, epoch, first seq, count, offset, columns bytes, payload bytes, first time,
# last time, checksum
ROW = struct.Struct("<IIQQIQIIqqQ")


@dataclass(frozen=True, slots=True)
class Row:
    """One block of a segment."""

    topic_id: int
    flags: int
    epoch: int
    first: int
    count: int
    offset: int
    cols_bytes: int
    payload_bytes: int
    first_ts: int
    last_ts: int
    checksum: int
    flag_at: int

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def end(self) -> int:
        """The byte behind the block."""
        return self.offset + self.cols_bytes + self.payload_bytes


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    number: int
    rows: tuple[Row, ...]
    flags_at: int
    flag_count: int

    @property
    def size(self) -> int:
        return self.flags_at + self.flag_count

    @property
    def payload_bytes(self) -> int:
        return sum(row.payload_bytes for row in self.rows)


def encode_rows(rows: Sequence[Row]) -> bytes:
    return b"".join(
        ROW.pack(
            r.topic_id, r.flags, r.epoch, r.first, r.count, r.offset, r.cols_bytes,
            r.payload_bytes, r.first_ts, r.last_ts, r.checksum,
        )
        for r in rows
    )  # fmt: skip


def decode_rows(table: bytes) -> tuple[Row, ...]:
    rows, flag_at = [], 0
    for fields in ROW.iter_unpack(table):
        named: tuple[int, int, int, int, int, int, int, int, int, int, int] = fields
        rows.append(Row(*named, flag_at))
        flag_at += named[4]
    return tuple(rows)


def file_name(number: int) -> str:
    return f"{number:012d}.seg"


def parse_file_name(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "seg" and stem.isdigit() else None


class SegmentWriter:
    """Writes one segment block by block, so that a caller can slice the work.

    `add` keeps so many bytes, and writes them when there are more.
    """

    def __init__(
        self, fs: Fs, directory: str, number: int, *, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._fs = fs
        self._directory = directory
        self.number = number
        self._temporary = join(directory, file_name(number) + ".tmp")
        self._file: File = fs.open(self._temporary, create=True)
        try:
            self._file.truncate(0)
        except BaseException:
            with contextlib.suppress(OSError):
                self.abandon()
            raise
        self._offset = SECTOR
        # Blocks of many small topics go out together.
        self._buffer = bytearray()
        self._buffer_bytes = buffer_bytes
        self._rows: list[Row] = []
        self._flags = bytearray()
        # How far the file was synced while it is written.
        self._synced = SECTOR

    @property
    def size(self) -> int:
        return self._offset

    @property
    def flags(self) -> bytes:
        return bytes(self._flags)

    def add(
        self, columns: Columns, *, topic_id: int, epoch: int, first: int, dead: bytes | None
    ) -> Row:
        flags, raw = columns_codec.encode(columns, times=True)
        row = Row(
            topic_id, flags, epoch, first, len(columns), self._offset, len(raw),
            len(columns.payload), columns.times[0], columns.times[-1],
            checksum_of(raw, columns.payload), len(self._flags),
        )  # fmt: skip
        self._buffer += raw
        self._buffer += columns.payload
        self._offset += len(raw) + len(columns.payload)
        if len(self._buffer) >= self._buffer_bytes:
            self._flush()
        self._rows.append(row)
        self._flags += bytes(len(columns)) if dead is None else dead
        return row

    def _flush(self) -> None:
        self._file.pwrite(self._buffer, self._offset - len(self._buffer))
        self._buffer = bytearray()

    def sync_after(self, size: int) -> None:
        """Syncs what was written so far if that is at least so many bytes more than last time."""
        if self._offset - self._synced >= size:
            self._flush()
            self._file.sync()
            self._synced = self._offset

    def finish(self) -> SegmentInfo:
        """Makes the segment durable under its name."""
        self._flush()
        table = encode_rows(self._rows)
        flags_at = self._offset + len(table)
        info = SegmentInfo(self.number, tuple(self._rows), flags_at, len(self._flags))
        self._file.pwrite(table + bytes(self._flags), self._offset)
        self._file.pwrite(_header(info, table).ljust(SECTOR, b"\0"), 0)
        self._file.sync()
        self._file.close()
        self._fs.rename(self._temporary, join(self._directory, file_name(self.number)))
        self._fs.sync_dir(self._directory)
        return info

    def abandon(self) -> None:
        """Drops a segment that nobody uses: all of its records are still where they were.

        It may have its name already, where only the sync of the directory failed.
        """
        self._file.close()
        for path in (self._temporary, join(self._directory, file_name(self.number))):
            if self._fs.exists(path):
                self._fs.unlink(path)


def _header(info: SegmentInfo, table: bytes) -> bytes:
    table_at = info.flags_at - len(table)
    header = HEADER.pack(
        SEGMENT_MAGIC, 0, VERSION, len(info.rows), info.number, table_at, info.flag_count
    )
    return header[:8] + struct.pack("<Q", checksum(header[16:] + table)) + header[16:]


def stamp_of(info: SegmentInfo) -> int:
    """The checksum in its header: of everything in front of the flags, by the blocks' own."""
    (stamp,) = struct.unpack_from("<Q", _header(info, encode_rows(info.rows)), 8)
    return int(stamp)


def checked_parts(source: Bytes, info: SegmentInfo, stop: int) -> Iterator[bytes]:
    """A segment's bytes up to `stop`, each block checked as it is handed out.

    Raises OSError for a block that was not read as it is.
    """
    at = 0
    for row in info.rows:
        if row.offset > at:
            yield source.read(row.offset - at, at)
        raw = source.read(row.end - row.offset, row.offset)
        if checksum(raw) != row.checksum:
            raise OSError(errno.EIO, "a block was not read as it is", file_name(info.number))
        yield raw
        at = row.end
    yield source.read(stop - at, at)


class Bytes(Protocol):
    """Random access to a segment's bytes, wherever it lives."""

    def read(self, length: int, offset: int) -> bytes: ...

    def size(self) -> int: ...


class FileBytes:
    def __init__(self, file: File) -> None:
        self._file = file

    def read(self, length: int, offset: int) -> bytes:
        return self._file.pread(length, offset)

    def size(self) -> int:
        return self._file.size()


def read_info(source: Bytes, number: int) -> SegmentInfo:
    """The table of blocks. Raises CorruptData when any of it fails its checksum."""
    header = source.read(HEADER.size, 0)
    damaged = CorruptData(f"segment {number}: header or table is damaged", segment=number)
    if len(header) < HEADER.size:
        raise damaged
    magic, stored, version, count, named, table_at, flag_count = HEADER.unpack(header)
    if magic != SEGMENT_MAGIC or version != VERSION or named != number:
        raise damaged
    flags_at = table_at + count * ROW.size
    if flags_at + flag_count > source.size():
        raise damaged
    table = source.read(count * ROW.size, table_at)
    if checksum(header[16:] + table) != stored:
        raise damaged
    return SegmentInfo(number, decode_rows(table), flags_at, flag_count)


def read_block(source: Bytes, row: Row, number: int) -> Columns:
    """One block, verified. Raises CorruptData rather than serve a wrong byte."""
    raw = source.read(row.cols_bytes + row.payload_bytes, row.offset)
    if len(raw) != row.cols_bytes + row.payload_bytes or checksum(raw) != row.checksum:
        raise CorruptData(
            f"segment {number}: block of seqs {row.first} to {row.stop - 1} fails its checksum; "
            "other records can be read. Stop the server, see topics check and topics repair",
            segment=number, topic_id=row.topic_id, first=row.first, last=row.stop - 1,
        )  # fmt: skip
    payload = memoryview(raw)[row.cols_bytes :]
    columns, _ = columns_codec.decode(
        row.flags, row.count, raw[: row.cols_bytes], payload, row.first_ts
    )
    return columns


def write_flags(fs: Fs, directory: str, info: SegmentInfo, indexes: array[int]) -> bytes:
    """Marks records dead in place and makes the marks durable; all flags as they are then."""
    with opened(fs, join(directory, file_name(info.number))) as file:
        for start, marked in _marked(file, info, indexes):
            file.pwrite(marked, info.flags_at + start)
        try:
            file.sync()
        except OSError as error:
            # The file stays in use, so that a second sync could succeed without these bytes.
            raise Poisoned(f"sync of segment {info.number} failed: {error}") from error
        return file.pread(info.flag_count, info.flags_at)


def _marked(file: File, info: SegmentInfo, indexes: array[int]) -> Iterator[tuple[int, bytes]]:
    """The flags to write: a run that is set, or one with others between that stay what they are.

    Records die scattered, and a call for each would take longer than all else. What stands between
    is written as it was read, if it was read so twice: a read that went wrong is no reason to
    change a flag that nobody meant.
    """
    places = np.unique(np.frombuffer(indexes, np.uint32)).astype(np.int64)
    flags = np.full(info.flag_count, DEAD, np.uint8)
    before = file.pread(info.flag_count, info.flags_at)
    apart = 1
    if file.pread(info.flag_count, info.flags_at) == before:
        flags, apart = np.frombuffer(before, np.uint8).copy(), FLAGS_APART_MAX
        flags[places] = DEAD
    for run in np.split(places, np.flatnonzero(np.diff(places) > apart) + 1):
        start, stop = int(run[0]), int(run[-1]) + 1
        yield start, flags[start:stop].tobytes()
