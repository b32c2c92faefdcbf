"""Snapshots: the state of every topic without its records, so that the log can be trimmed.

A snapshot is one file, checksummed as a whole, renamed into place. The two newest are kept, with
all of the log and the segments that the older one needs: one unreadable snapshot costs nothing.
It counts as unreadable when several reads of it, each from a newly opened file, all failed: what
goes wrong on the way from the disk once is no damage.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import xxhash

from topics.errors import CorruptData
from topics.storage import flags
from topics.storage.frames import FORMAT_VERSION, SECTOR, checksum
from topics.storage.fs import File, Fs, join, opened
from topics.types import Cursor, TopicConfig

MAGIC = b"TOPSNP\x00\x01"
# magic, checksum of the rest, version, bytes of topics, their checksum, bytes of the summary, its
# checksum
HEADER = struct.Struct("<8sQQQQQQ")
LENGTH = struct.Struct("<I")
# Set in the length of a part that has idempotency keys: of which topic, and (digest, first seq,
# count, time) of each.
KEYS_PART = 1 << 31
TOPIC_ID = struct.Struct("<Q")
KEY = struct.Struct("<16sQIq")
BUFFER_BYTES = 256 * 1024
# The most that is read of a snapshot whose header says nothing.
UNCHECKED_BYTES_MAX = 1 << 30
READS_MAX = 3

T = TypeVar("T")


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
    lost: list[tuple[int, int]]
    holes: list[tuple[int, int, int]]
    # Runs above the floor whose records are all deleted, bytes gone: (first, last, ts).
    ghosts: list[tuple[int, int, int]]
    account: tuple[int, bytes, bytes] | None
    # Keys, in parts of their own on the disk after the topics.
    keys: list[tuple[bytes, int, int, int]]
    # Frames of cursors up to this version are in them.
    cursors: list[Cursor] = []
    cursors_version: int = 0
    # The routers that feed it, each with how far it had come by then.
    routers: list[bytes] = []
    # A queue's leases as one frame, where they are durable, and how many jobs were moved.
    leases: bytes = b""
    dead_lettered: int = 0
    # Older segments may hold rows of it that are none of its any more.
    segments_from: int = 0
    # The last batches of its producers.
    producers: bytes = b""
    # What a bucket's past lacks.
    compacted: tuple[int, int, int] = (0, 0, 0)
    # What a bucket has of others from routers that ended.
    fed: list[bytes] = []


class Snapshot(msgspec.Struct, array_like=True):
    """Everything but the topics."""

    number: int
    generation: int
    # The first log file still needed of this generation, for each shard, and its first frame: of
    # that file nothing in front of it can tell whether it is whole.
    positions: list[int]
    first_lsns: list[int]
    next_topic_id: int
    next_epoch: int
    next_segment: int
    segments: list[int]
    # Segments that nothing needed any more: they may be removed.
    garbage: list[int]
    next_router_id: int = 1
    # Sums of the delete flags of each of the segments, in their order.
    flag_sums: list[list[flags.Sum]] = []
    # Stages that were committed, and up to which log file the frames of that stand: (stage,
    # generation, shard, number). Their files are a part of the log.
    spent_stages: list[tuple[tuple[int, int], int, int, int]] = []
    # Segments that hold bytes of what is gone, and since when.
    soiled_ms: list[tuple[int, int]] = []
    # When the last topic had been captured: it says nothing of what was written later.
    taken_ms: int = 0

    def sums(self) -> dict[int, list[flags.Sum]]:
        return dict(zip(self.segments, self.flag_sums, strict=True))


_ENCODER = msgspec.msgpack.Encoder()
_SNAPSHOT = msgspec.msgpack.Decoder(Snapshot)
_TOPIC = msgspec.msgpack.Decoder(TopicRecord)


def file_name(number: int) -> str:
    return f"{number:012d}.snap"


def parse_file_name(name: str) -> int | None:
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "snap" and stem.isdigit() else None


class SnapshotWriter:
    """Writes a snapshot topic by topic, so that a caller can slice the work.

    Layout: header sector, topics and their keys in parts (a length in front of each), summary.
    """

    def __init__(self, fs: Fs, directory: str, number: int) -> None:
        self._fs = fs
        self._directory = directory
        self._name = file_name(number)
        self._file: File = fs.open(join(directory, self._name + ".tmp"), create=True)
        self._file.truncate(0)
        self._buffer = bytearray()
        self._offset = SECTOR
        self._hash = xxhash.xxh3_64()

    def add(self, record: TopicRecord) -> None:
        self._add(_ENCODER.encode(record), 0)

    def add_keys(self, topic_id: int, keys: Sequence[tuple[bytes, int, int, int]]) -> None:
        """Some of the idempotency keys of a topic that was added before."""
        body = TOPIC_ID.pack(topic_id) + b"".join(KEY.pack(*key) for key in keys)
        self._add(body, KEYS_PART)

    def _add(self, body: bytes, kind: int) -> None:
        self._buffer += LENGTH.pack(len(body) | kind)
        self._buffer += body
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._hash.update(self._buffer)
        self._file.pwrite(self._buffer, self._offset)
        self._offset += len(self._buffer)
        self._buffer = bytearray()

    def finish(self, summary: Snapshot) -> None:
        """Makes the snapshot durable under its name."""
        self._flush()
        body = _ENCODER.encode(summary)
        rest = struct.pack(
            "<QQQQQ", FORMAT_VERSION, self._offset - SECTOR, self._hash.intdigest(), len(body),
            checksum(body),
        )  # fmt: skip
        header = MAGIC + struct.pack("<Q", checksum(rest)) + rest
        self._file.pwrite(body, self._offset)
        self._file.pwrite(header.ljust(SECTOR, b"\0"), 0)
        self._file.sync()
        self._file.close()
        self._fs.rename(
            join(self._directory, self._name + ".tmp"), join(self._directory, self._name)
        )
        self._fs.sync_dir(self._directory)

    def abandon(self) -> None:
        """Drops an unfinished snapshot: all of it is still in the write-ahead log."""
        self._file.close()
        temporary = join(self._directory, self._name + ".tmp")
        if self._fs.exists(temporary):
            self._fs.unlink(temporary)


def read(fs: Fs, directory: str, number: int) -> tuple[Snapshot, list[TopicRecord]]:
    """The summary and the topics. Raises CorruptData when any byte is wrong."""
    return _again(lambda: _read(fs, directory, number))


def verify(fs: Fs, directory: str, number: int) -> Snapshot:
    """The summary of a snapshot that is readable as a whole. Raises CorruptData."""
    return _again(lambda: _verify(fs, directory, number))


def _again(read: Callable[[], T]) -> T:
    for _ in range(READS_MAX - 1):
        with contextlib.suppress(CorruptData):
            return read()
    return read()


def _verify(fs: Fs, directory: str, number: int) -> Snapshot:
    with opened(fs, join(directory, file_name(number)), writable=False) as file:
        summary, topics_bytes, stored = _read_summary(file, number)
        seen = xxhash.xxh3_64()
        for at in range(0, topics_bytes, BUFFER_BYTES):
            seen.update(file.pread(min(BUFFER_BYTES, topics_bytes - at), SECTOR + at))
    if seen.intdigest() != stored:
        raise CorruptData(f"snapshot {number}: topics fail their checksum", snapshot=number)
    return summary


class _Raw:
    """The bytes of a snapshot that is in no file."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def pread(self, length: int, offset: int) -> bytes:
        return self._raw[offset : offset + length]


def decode(raw: bytes, number: int) -> tuple[Snapshot, list[TopicRecord]]:
    """A snapshot from its bytes. Raises CorruptData."""
    return _decode(_Raw(raw), number)


def _read(fs: Fs, directory: str, number: int) -> tuple[Snapshot, list[TopicRecord]]:
    with opened(fs, join(directory, file_name(number)), writable=False) as file:
        return _decode(file, number)


def _decode(file: File | _Raw, number: int) -> tuple[Snapshot, list[TopicRecord]]:
    summary, topics_bytes, stored = _read_summary(file, number)
    raw = file.pread(topics_bytes, SECTOR)
    if len(raw) != topics_bytes or checksum(raw) != stored:
        raise CorruptData(f"snapshot {number}: topics fail their checksum", snapshot=number)
    try:
        return summary, _topics(raw)
    except (msgspec.DecodeError, struct.error, KeyError) as error:
        raise CorruptData(f"snapshot {number} does not decode: {error}") from None


def read_summary(fs: Fs, directory: str, number: int) -> Snapshot:
    """Everything but the topics, which may be damaged. Raises CorruptData."""

    def once() -> Snapshot:
        with opened(fs, join(directory, file_name(number)), writable=False) as file:
            return _read_summary(file, number)[0]

    return _again(once)


def read_unchecked(fs: Fs, directory: str, number: int) -> list[TopicRecord]:
    """The topics of a damaged snapshot as far as they decode: not to be believed alone."""
    with opened(fs, join(directory, file_name(number)), writable=False) as file:
        raw = file.pread(min(max(file.size() - SECTOR, 0), UNCHECKED_BYTES_MAX), SECTOR)
    found = []
    for is_topic, body in _parts(raw):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            if is_topic:
                found.append(_TOPIC.decode(body))
    return found


def _read_summary(file: File | _Raw, number: int) -> tuple[Snapshot, int, int]:
    raw = file.pread(HEADER.size, 0)
    damaged = CorruptData(f"snapshot {number} fails its checksum", snapshot=number)
    if len(raw) < HEADER.size:
        raise damaged
    magic, stored, version, topics_bytes, topics_sum, length, body_sum = HEADER.unpack(raw)
    if magic != MAGIC or checksum(raw[16:]) != stored or version != FORMAT_VERSION:
        raise damaged
    body = file.pread(length, SECTOR + topics_bytes)
    if len(body) != length or checksum(body) != body_sum:
        raise damaged
    try:
        summary = _SNAPSHOT.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptData(f"snapshot {number} does not decode: {error}") from None
    if summary.number != number:
        raise damaged
    return summary, topics_bytes, topics_sum


def _topics(raw: bytes) -> list[TopicRecord]:
    found: dict[int, TopicRecord] = {}
    for is_topic, body in _parts(raw):
        if is_topic:
            record = _TOPIC.decode(body)
            found[record.id] = record
        else:
            (topic_id,) = TOPIC_ID.unpack_from(body)
            found[topic_id].keys.extend(KEY.iter_unpack(body[TOPIC_ID.size :]))
    return list(found.values())


def _parts(raw: bytes) -> Iterator[tuple[bool, bytes]]:
    """Whether a part is a topic, and its bytes."""
    at = 0
    while at + LENGTH.size <= len(raw):
        (length,) = LENGTH.unpack_from(raw, at)
        at += LENGTH.size
        size = length & ~KEYS_PART
        yield not length & KEYS_PART, raw[at : at + size]
        at += size


def numbers(fs: Fs, directory: str) -> list[int]:
    """Numbers of the snapshots in the directory, newest first."""
    found = [parse_file_name(name) for name in fs.listdir(directory)]
    return sorted((number for number in found if number is not None), reverse=True)
