"""The local side of a cold segment, in one file: its table of blocks, delete flags and spans.

It is written and synced before the hot file goes, and replaced as a whole when flags change, so a
delete of a record in the cold store is durable here without touching the store. The spans of a
block say where each of its records ends, how much of it is neither data nor meta, and when it was
committed: caps, TTL, deletes and ranges count exactly what they count of a hot block, whether or
not the store can be reached. Those of a bucket say its keys as well, and what each record is to it:
its index is made of them, and so a bucket can be used while the store is away.

Layout: header, table, flags, a length and a checksum for the spans of each block, the spans. The
header's checksum covers everything in front of the spans, which are read one block at a time.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from topics.errors import CorruptData
from topics.storage.columns import KINDS, TAGS, Spans, decode_texts, encode_texts
from topics.storage.frames import checksum
from topics.storage.fs import File, Fs, join, opened, write_atomically
from topics.storage.segment import DEAD, ROW, Row, SegmentInfo, decode_rows, encode_rows

MAGIC = b"TOPCOL\x00\x01"
# magic, checksum of the rest up to the spans, number, rows, flags offset in the object, flag bytes
HEADER = struct.Struct("<8sQQQQQ")
# The spans of one block: their bytes and checksum.
ENTRY = struct.Struct("<IQ")
COUNT = struct.Struct("<I")
_FLAG_AT = attrgetter("flag_at")


def file_name(number: int) -> str:
    return f"{number:012d}.cold"


def parse_file_name(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "cold" and stem.isdigit() else None


def write(fs: Fs, directory: str, info: SegmentInfo, flags: bytes, spans: Sequence[bytes]) -> None:
    """Makes the local side durable; `spans` are those of each row, encoded."""
    entries = b"".join(ENTRY.pack(len(each), checksum(each)) for each in spans)
    head = _head(info, flags, entries)
    write_atomically(fs, directory, file_name(info.number), head + b"".join(spans))


def _head(info: SegmentInfo, flags: bytes, entries: bytes) -> bytes:
    header = HEADER.pack(MAGIC, 0, info.number, len(info.rows), info.flags_at, len(flags))
    rest = header[16:] + encode_rows(info.rows) + flags + entries
    return header[:8] + struct.pack("<Q", checksum(rest)) + rest


def read(fs: Fs, directory: str, number: int) -> tuple[SegmentInfo, bytes]:
    """The table and the flags. Raises CorruptData."""
    with opened(fs, join(directory, file_name(number)), writable=False) as file:
        info, flags, _ = _read(file, number)
    return info, flags


def _read(file: File, number: int) -> tuple[SegmentInfo, bytes, bytes]:
    """Everything in front of the spans: table, flags, what vouches for the spans."""
    damaged = CorruptData(f"cold table of segment {number} is damaged", segment=number)
    raw = file.pread(HEADER.size, 0)
    if len(raw) < HEADER.size:
        raise damaged
    magic, stored, named, count, flags_at, flag_count = HEADER.unpack(raw)
    table_end = count * ROW.size
    flags_end = table_end + flag_count
    size = flags_end + count * ENTRY.size
    if magic != MAGIC or named != number or HEADER.size + size > file.size():
        raise damaged
    rest = file.pread(size, HEADER.size)
    if checksum(raw[16:] + rest) != stored:
        raise damaged
    entries = rest[flags_end:]
    if HEADER.size + size + sum(length for length, _ in ENTRY.iter_unpack(entries)) != file.size():
        raise damaged
    info = SegmentInfo(number, decode_rows(rest[:table_end]), flags_at, flag_count)
    return info, rest[table_end:flags_end], entries


def add_flags(fs: Fs, directory: str, info: SegmentInfo, indexes: array[int]) -> bytes:
    with opened(fs, join(directory, file_name(info.number)), writable=False) as file:
        _, flags, entries = _read(file, info.number)
        spans = file.pread(file.size() - _spans_at(info), _spans_at(info))
    marked = np.frombuffer(flags, dtype=np.uint8).copy()
    marked[indexes] = DEAD
    head = _head(info, marked.tobytes(), entries)
    write_atomically(fs, directory, file_name(info.number), head + spans)
    return marked.tobytes()


# -- spans ---------------------------------------------------------------------------------------


def encode_spans(spans: Spans, beside: npt.NDArray[np.int64], *, with_keys: bool) -> bytes:
    """As differences, which are small and alike. `beside` is what spans keep under that name."""
    sizes = np.diff(np.array(spans.ends, dtype="<u4"), prepend=np.uint32(0)).astype("<u4")
    times = np.diff(np.array(spans.times, dtype="<i8"), prepend=np.int64(0))
    raw = COUNT.pack(len(spans.times)) + sizes.tobytes() + beside.astype("<u4").tobytes()
    raw += np.array(spans.times_at, dtype="<u4").tobytes() + times.tobytes()
    kept = ((TAGS, spans.tags), (KINDS, spans.kinds)) if with_keys else ()
    texts = [(flag, encode_texts(each)) for flag, each in kept if each is not None]
    raw += bytes([sum(flag for flag, _ in texts)]) + b"".join(each for _, each in texts)
    return zlib.compress(raw, 1)


def read_spans(fs: Fs, directory: str, info: SegmentInfo, row: Row) -> Spans:
    """Of one block. Raises CorruptData."""
    index = bisect_left(info.rows, row.flag_at, key=_FLAG_AT)
    damaged = CorruptData(
        f"segment {info.number}: the sizes of seqs {row.first} to {row.stop - 1} are damaged",
        segment=info.number, topic_id=row.topic_id, first=row.first, last=row.stop - 1,
    )  # fmt: skip
    with opened(fs, join(directory, file_name(info.number)), writable=False) as file:
        entries = file.pread((index + 1) * ENTRY.size, _entries_at(info))
        if len(entries) != (index + 1) * ENTRY.size:
            raise damaged
        lengths = [length for length, _ in ENTRY.iter_unpack(entries)]
        _, stored = ENTRY.unpack_from(entries, index * ENTRY.size)
        raw = file.pread(lengths[index], _spans_at(info) + sum(lengths[:index]))
    if len(raw) != lengths[index] or checksum(raw) != stored:
        raise damaged
    return _decode_spans(zlib.decompress(raw), row.count)


def _decode_spans(raw: bytes, count: int) -> Spans:
    (runs,) = COUNT.unpack_from(raw)
    sizes = np.frombuffer(raw, "<u4", count, COUNT.size)
    beside = np.frombuffer(raw, "<u4", count, COUNT.size + 4 * count)
    times_at = np.frombuffer(raw, "<u4", runs, COUNT.size + 8 * count)
    times = np.frombuffer(raw, "<i8", runs, COUNT.size + 8 * count + 4 * runs)
    at = COUNT.size + 8 * count + 12 * runs
    flags, at = raw[at], at + 1
    tags, at = decode_texts(raw, at, count) if flags & TAGS else (None, at)
    kinds, at = decode_texts(raw, at, count) if flags & KINDS else (None, at)
    return Spans(
        array("I", np.cumsum(sizes, dtype=np.uint32).tobytes()),
        array("I", times_at.tobytes()),
        array("q", np.cumsum(times, dtype=np.int64).tobytes()),
        array("I", beside.tobytes()),
        tags,
        kinds,
    )


def _entries_at(info: SegmentInfo) -> int:
    return HEADER.size + len(info.rows) * ROW.size + info.flag_count


def _spans_at(info: SegmentInfo) -> int:
    return _entries_at(info) + len(info.rows) * ENTRY.size
