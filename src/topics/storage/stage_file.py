"""Stage files: records that a producer has handed in and nobody sees before they are committed.

One file is one call. A record in it is everything behind its seq and its time, which it gets with
the commit: then it is rendered, a block at a time. The commit is a frame in the log that names the
file, and replay renders the same again; so a file whose stage was committed is a part of the log,
and stays until the frame is trimmed.

What must be true on disk:

- A file is written and synced under another name and renamed: under its own name it is whole, or
  damaged. Its directory is synced before anybody hears of it.
- Header and blocks have an XXH3-64 each, checked before a byte is believed.
- An id is never given twice: it has the generation that made it and a number within that.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

import msgspec

from topics.errors import CorruptData
from topics.storage import columns as columns_codec
from topics.storage.columns import Columns
from topics.storage.frames import checksum
from topics.storage.fs import Fs, join, opened, read_all

MAGIC = b"TOPSTG\x00\x01"
# magic, checksum of what follows up to the end of the description, its bytes, bytes of the blocks,
# their checksum
HEADER = struct.Struct("<8sQIQQ")
SUFFIX = ".stage"
_NAME = re.compile(r"([0-9]{8,})-([0-9]{8,})")

# The generation that made a stage, and its number there.
StageId = tuple[int, int]


class StageInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a stage is, without its records."""

    id: StageId
    producer: str
    batch: int
    # Of whom the records are, for people: what counts is which stages a commit names.
    part: int | str
    attempt: int | str
    topic: str
    created_ms: int
    count: int
    # Bytes of the records without their seqs and times.
    rest_bytes: int
    # Flags, records, bytes of columns and of payload of each block.
    blocks: list[tuple[int, int, int, int]]


_ENCODER = msgspec.msgpack.Encoder()
_INFO = msgspec.msgpack.Decoder(StageInfo)


def id_text(stage: StageId) -> str:
    return f"{stage[0]:08d}-{stage[1]:08d}"


def parse_id(text: str) -> StageId | None:
    found = _NAME.fullmatch(text)
    parsed = None if found is None else (int(found[1]), int(found[2]))
    # One spelling only: names are compared as bytes.
    return parsed if parsed is not None and id_text(parsed) == text else None


def file_name(stage: StageId) -> str:
    return id_text(stage) + SUFFIX


def parse_file_name(name: str) -> StageId | None:
    return parse_id(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None


def encode(info: StageInfo, blocks: Sequence[Columns]) -> tuple[StageInfo, list[bytes]]:
    """The parts of a file, and what it is, with its blocks."""
    table, parts = [], []
    for block in blocks:
        flags, raw = columns_codec.encode(block, times=False)
        payload = bytes(block.payload)
        table.append((flags, len(block), len(raw), len(payload)))
        parts += [raw, payload]
    info = msgspec.structs.replace(info, blocks=table)
    body = b"".join(parts)
    described = _ENCODER.encode(info)
    rest = struct.pack("<IQQ", len(described), len(body), checksum(body)) + described
    return info, [MAGIC + struct.pack("<Q", checksum(rest)) + rest, body]


def read_info(fs: Fs, directory: str, stage: StageId) -> StageInfo:
    """What a stage is. Raises CorruptData, FileNotFoundError."""
    with opened(fs, join(directory, file_name(stage)), writable=False) as file:
        head = file.pread(HEADER.size, 0)
        if len(head) < HEADER.size:
            raise damaged(stage)
        described = file.pread(HEADER.unpack(head)[2], HEADER.size)
        return _info(head, described, file.size(), stage)


def _info(head: bytes, described: bytes, size: int, stage: StageId) -> StageInfo:
    magic, stored, length, body_bytes, _ = HEADER.unpack(head)
    is_whole = len(described) == length and HEADER.size + length + body_bytes == size
    if magic != MAGIC or not is_whole or checksum(head[16:] + described) != stored:
        raise damaged(stage)
    try:
        info = _INFO.decode(described)
    except msgspec.DecodeError as error:
        raise CorruptData(f"stage {id_text(stage)} does not decode: {error}") from None
    if info.id != stage:
        raise damaged(stage)
    return info


def read_body(fs: Fs, directory: str, stage: StageId) -> bytes:
    """The blocks of a stage, checked as a whole. Raises CorruptData, OSError."""
    raw = read_all(fs, join(directory, file_name(stage)))
    if len(raw) < HEADER.size:
        raise damaged(stage)
    length, body_bytes, stored = struct.unpack_from("<IQQ", raw, 16)
    at = HEADER.size + length
    _info(raw[: HEADER.size], raw[HEADER.size : at], len(raw), stage)
    body = raw[at:]
    if len(body) != body_bytes or checksum(body) != stored:
        raise damaged(stage)
    return body


def block(info: StageInfo, body: bytes, index: int, at: int) -> tuple[Columns, int]:
    """A block whose bytes begin at `at`, without seqs and times, and where the next one does."""
    flags, count, cols_bytes, payload_bytes = info.blocks[index]
    payload_at = at + cols_bytes
    end = payload_at + payload_bytes
    columns, _ = columns_codec.decode(flags, count, body[at:payload_at], body[payload_at:end], 0)
    return columns, end


def damaged(stage: StageId) -> CorruptData:
    return CorruptData(
        f"stage {id_text(stage)} is damaged or missing; nothing of it is used",
        stage=id_text(stage),
    )
