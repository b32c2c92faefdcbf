"""The local side of a cold segment: its table of blocks and its delete flags, in one small file.

It is written and synced before the hot file goes, and replaced as a whole when flags change, so a
delete of a record in the cold store is durable here without touching the store.
"""

from __future__ import annotations

import struct

import numpy as np

from topics.errors import CorruptData
from topics.storage.frames import checksum
from topics.storage.fs import Fs, join, opened, write_atomically
from topics.storage.segment import DEAD, ROW, SegmentInfo, decode_rows, encode_rows

MAGIC = b"TOPCOL\x00\x01"
# magic, checksum of the rest, number, rows, flags offset in the object, flag bytes
HEADER = struct.Struct("<8sQQQQQ")


def file_name(number: int) -> str:
    return f"{number:012d}.cold"


def parse_file_name(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "cold" and stem.isdigit() else None


def write(fs: Fs, directory: str, info: SegmentInfo, flags: bytes) -> None:
    table = encode_rows(info.rows)
    header = HEADER.pack(MAGIC, 0, info.number, len(info.rows), info.flags_at, len(flags))
    rest = header[16:] + table + flags
    data = header[:8] + struct.pack("<Q", checksum(rest)) + rest
    write_atomically(fs, directory, file_name(info.number), data)


def read(fs: Fs, directory: str, number: int) -> tuple[SegmentInfo, bytes]:
    """The table and the flags. Raises CorruptData."""
    damaged = CorruptData(f"cold table of segment {number} is damaged", segment=number)
    with opened(fs, join(directory, file_name(number)), writable=False) as file:
        header = file.pread(HEADER.size, 0)
        if len(header) < HEADER.size:
            raise damaged
        magic, stored, named, count, flags_at, flag_count = HEADER.unpack(header)
        table_end = HEADER.size + count * ROW.size
        # Judged before it is read: a header that is not ours could name any length.
        if magic != MAGIC or named != number or file.size() != table_end + flag_count:
            raise damaged
        raw = file.pread(file.size(), 0)
    if checksum(raw[16:]) != stored:
        raise damaged
    rows = decode_rows(raw[HEADER.size : table_end])
    return SegmentInfo(number, rows, flags_at, flag_count), raw[table_end:]


def add_flags(fs: Fs, directory: str, info: SegmentInfo, indexes: list[int]) -> bytes:
    _, flags = read(fs, directory, info.number)
    marked = np.frombuffer(flags, dtype=np.uint8).copy()
    marked[indexes] = DEAD
    write(fs, directory, info, marked.tobytes())
    return marked.tobytes()
