"""Snapshots: the state of every topic without its records, so that the log can be trimmed.

A snapshot is one file, checksummed as a whole, renamed into place. The two newest are kept, with
all of the log and the segments that the older one needs: one unreadable snapshot costs nothing.
"""

from __future__ import annotations

import struct

import msgspec

from topics.errors import CorruptData
from topics.storage.frames import FORMAT_VERSION, checksum
from topics.storage.fs import Fs, join, read_all, write_atomically
from topics.types import TopicConfig

MAGIC = b"TOPSNP\x00\x01"
# magic, checksum of the rest, version, length of the body
HEADER = struct.Struct("<8sQQQ")


class TopicRecord(msgspec.Struct, array_like=True):
    """One topic as it stood when its unsealed records were handed to a segment."""

    id: int
    name: str
    epoch: int
    config: TopicConfig
    config_version: int
    head: int
    floor: int
    last_ts: int
    last_write_ts: int | None
    bytes_total: int
    ceiling_seq: int
    ceiling_bytes: int
    lost: list[tuple[int, int]]
    holes: list[tuple[int, int, int]]
    # Runs above the floor whose records are all deleted and whose bytes are gone: (first, last, ts).
    ghosts: list[tuple[int, int, int]]
    account: tuple[int, bytes, bytes] | None
    keys: list[tuple[bytes, int, int, int]]


class Snapshot(msgspec.Struct, array_like=True):
    number: int
    generation: int
    # The first log file still needed of this generation, for each shard.
    positions: list[int]
    next_topic_id: int
    next_epoch: int
    next_segment: int
    segments: list[int]
    # Segments that nothing needed any more: they may be removed.
    garbage: list[int]
    topics: list[msgspec.Raw]


_ENCODER = msgspec.msgpack.Encoder()
_SNAPSHOT = msgspec.msgpack.Decoder(Snapshot)
_TOPIC = msgspec.msgpack.Decoder(TopicRecord)


def file_name(number: int) -> str:
    return f"{number:012d}.snap"


def parse_file_name(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "snap" and stem.isdigit() else None


def encode_topic(record: TopicRecord) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(record))


def decode_topic(raw: msgspec.Raw) -> TopicRecord:
    return _TOPIC.decode(raw)


def write(fs: Fs, directory: str, snapshot: Snapshot) -> None:
    body = _ENCODER.encode(snapshot)
    rest = struct.pack("<QQ", FORMAT_VERSION, len(body)) + body
    data = MAGIC + struct.pack("<Q", checksum(rest)) + rest
    write_atomically(fs, directory, file_name(snapshot.number), data)


def read(fs: Fs, directory: str, number: int) -> Snapshot:
    """Raises CorruptData when any byte is wrong."""
    raw = read_all(fs, join(directory, file_name(number)))
    if len(raw) >= HEADER.size:
        magic, stored, version, length = HEADER.unpack_from(raw)
        body = raw[HEADER.size :]
        intact = magic == MAGIC and version == FORMAT_VERSION and len(body) == length
        if intact and checksum(raw[16:]) == stored:
            try:
                return _SNAPSHOT.decode(body)
            except msgspec.DecodeError as error:
                raise CorruptData(f"snapshot {number} does not decode: {error}") from None
    raise CorruptData(f"snapshot {number} fails its checksum", snapshot=number)


def numbers(fs: Fs, directory: str) -> list[int]:
    """Numbers of the snapshots in the directory, newest first."""
    found = [parse_file_name(name) for name in fs.listdir(directory)]
    return sorted((number for number in found if number is not None), reverse=True)
