"""Groups and frames: how the write-ahead log looks on disk, for its writer and its reader alike.

A file is one header sector, then groups. A **frame** is one operation (one write request, one
delete, …); a **group** is one commit: one header, the table of its frames, their columns, their
payloads, zeros up to the next 512-byte boundary. Keeping the payloads of a group together makes a
run of frames of one topic one slice.

What must be true on disk:

- A group is valid only with its magic, the random id of its own file and its XXH3-64 over all of
  it but the first 16 bytes. Stale bytes of another file can therefore never pass for a group, and
  clients, who do not know the id, can not forge one.
- `synced_file`/`synced_upto` name a place in this shard's files of which the writer knew, before
  it wrote the group, that everything in front of it was durable. Damage in front of the highest
  such mark is corruption; at or after it, it is a torn end.
- Groups are written in order and never overwritten once a later one stands.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from topics.storage import columns as columns_codec
from topics.storage.columns import Columns
from topics.types import Payload

FORMAT_VERSION = 2
SECTOR = 512
GROUP_MAGIC = b"TOPGRP\x00\x01"
FILE_MAGIC = b"TOPWAL\x00\x01"

# magic, checksum, file id, first lsn, frames, columns bytes, payload bytes, synced file,
# synced offset, wall time
GROUP = struct.Struct("<8sQQQIIIIQQ")
# topic id, kind, flags, count, first seq, time, floor, columns bytes, payload bytes
ENTRY = struct.Struct("<IBBHQQQII")
# Records that one frame may have at most.
COUNT_MAX = 0xFFFF
ENTRY_DTYPE = np.dtype(
    [("topic", "<u4"), ("kind", "u1"), ("flags", "u1"), ("count", "<u2"), ("first", "<u8"),
     ("ts", "<u8"), ("floor", "<u8"), ("cols", "<u4"), ("size", "<u4")]
)  # fmt: skip
# magic, checksum, version, file id, generation, shard, number, created ms, boot id, bytes that
# were allocated, whether routers were there
FILE = struct.Struct("<8sQIQIIIQ64sQ?")

# Kinds of frames. The numbers are on disk.
APPEND, CREATE, CONFIGURE, DROP, DELETE, FLOOR, CEILING, HOLE, EPOCH, RECOVERED, MARK = range(1, 12)
CURSOR, ROUTER, UNROUTE, MAP, LEASE, COMMIT, PRODUCERS, REPEAT = range(12, 20)
# Those that bring records: on a full disk they find no room in what is kept for the others.
BRINGING = frozenset((APPEND, MAP, COMMIT))

assert GROUP.size == 64
assert ENTRY.size == ENTRY_DTYPE.itemsize == 40

_ZEROS = bytes(SECTOR)
# Groups from this size on are written without being put together first.
SPLIT_BYTES = 64 * 1024

checksum = xxhash.xxh3_64_intdigest


def checksum_of(*parts: Payload) -> int:
    """The checksum of the parts behind each other, without putting them together."""
    running = xxhash.xxh3_64()
    for part in parts:
        running.update(part)
    return running.intdigest()


@dataclass(frozen=True, slots=True)
class FileHeader:
    file_id: int
    generation: int
    shard: int
    number: int
    created_ms: int
    boot_id: str
    # The file never gets longer; room that was not used may be given back.
    capacity: int
    # Copies in this file are made from records that stand elsewhere: replay keeps those at hand.
    is_routed: bool = False

    def encode(self) -> bytes:
        body = FILE.pack(
            FILE_MAGIC, 0, FORMAT_VERSION, self.file_id, self.generation, self.shard, self.number,
            self.created_ms, self.boot_id.encode()[:64], self.capacity, self.is_routed,
        )  # fmt: skip
        sector = bytearray(body.ljust(SECTOR, b"\0"))
        struct.pack_into("<Q", sector, 8, checksum(memoryview(sector)[16:]))
        return bytes(sector)


def decode_file_header(sector: bytes) -> FileHeader | None:
    """The header, or None when the sector is not an intact one."""
    if len(sector) < SECTOR:
        return None
    magic, stored, version, *rest = FILE.unpack_from(sector)
    if magic != FILE_MAGIC or stored != checksum(sector[16:SECTOR]) or version != FORMAT_VERSION:
        return None
    file_id, generation, shard, number, created, boot, capacity, is_routed = rest
    boot_id = boot.rstrip(b"\0").decode("utf-8", "replace")
    return FileHeader(file_id, generation, shard, number, created, boot_id, capacity, is_routed)


def shard_of(topic_id: int, shards: int) -> int:
    """Which of so many shards has a topic's frames: always the same one, so they have one order."""
    return topic_id % shards


def padded(length: int) -> int:
    return -(-length // SECTOR) * SECTOR


def encode_group(
    *,
    file_id: int,
    first_lsn: int,
    entries: list[bytes],
    columns: list[bytes],
    payloads: list[bytes],
    end: int,
    synced_file: int,
    synced_upto: int,
    now_ms: int,
) -> bytearray:
    """The bytes of one group, `end` of them without the padding.

    A large group comes without its payloads, which the caller writes behind it: copying them costs
    more than another call. What stands in the padding does not matter.
    """
    cols_bytes = sum(map(len, columns))
    payload_bytes = end - GROUP.size - ENTRY.size * len(entries) - cols_bytes
    head = GROUP.pack(
        GROUP_MAGIC, 0, file_id, first_lsn, len(entries), cols_bytes, payload_bytes, synced_file,
        synced_upto, now_ms,
    )  # fmt: skip
    if end < SPLIT_BYTES:
        body = bytearray().join([head, *entries, *columns, *payloads, _ZEROS[: -end % SECTOR]])
        with memoryview(body) as view:
            struct.pack_into("<Q", body, 8, checksum(view[16:end]))
        return body
    body = bytearray().join([head, *entries, *columns])
    with memoryview(body) as view:
        struct.pack_into("<Q", body, 8, checksum_of(view[16:], *payloads))
    return body


class Mark(NamedTuple):
    """A place in a shard, as file and offset; mostly, everything in front of it was durable."""

    number: int
    offset: int


@dataclass(slots=True)
class Groups:
    """The valid groups at the start of one file, as columns.

    `frames` is the table of all frames; `cols_at` and `payload_at` are byte offsets in `raw`.
    `end` is where the first invalid group starts; `mark` is the highest mark found in any valid
    group of the file, before or after the damage.
    """

    raw: bytes
    starts: npt.NDArray[np.int64]
    frames: npt.NDArray[np.void]
    frame_group: npt.NDArray[np.int64]
    cols_at: npt.NDArray[np.int64]
    payload_at: npt.NDArray[np.int64]
    end: int
    first_lsns: npt.NDArray[np.uint64]
    mark: Mark
    damaged: bool

    def payload(self, index: int) -> memoryview:
        at = int(self.payload_at[index])
        return memoryview(self.raw)[at : at + int(self.frames["size"][index])]

    def columns_raw(self, index: int) -> bytes:
        at = int(self.cols_at[index])
        return self.raw[at : at + int(self.frames["cols"][index])]

    def columns(self, index: int) -> tuple[Columns, bytes]:
        """The records of an APPEND frame and its key (empty when none). Raises CorruptData."""
        row = self.frames[index]
        return columns_codec.decode(
            int(row["flags"]), int(row["count"]), self.columns_raw(index), self.payload(index),
            int(row["ts"]),
        )  # fmt: skip

    def singles(self, first: int, stop: int) -> Columns:
        """Frames of one plain record each, with consecutive seqs, as one run."""
        table, at = self.frames[first:stop], self.payload_at[first:stop]
        sizes = table["size"].astype(np.int64)
        with memoryview(self.raw) as view:
            spans = zip(at.tolist(), (at + sizes).tolist(), strict=True)
            joined = b"".join([view[start:end] for start, end in spans])
        times = table["ts"].astype(np.int64)
        starts = np.concatenate(([0], np.flatnonzero(np.diff(times)) + 1))
        return Columns(
            joined,
            array("I", np.cumsum(sizes).astype(np.uint32).tobytes()),
            array("I", starts.astype(np.uint32).tobytes()),
            array("q", times[starts].tobytes()),
        )


def in_memory(parts: Sequence[tuple[bytes, bytes, bytes]]) -> Groups:
    """Frames that stand in no file: the entry, the columns and the payload of each."""
    entries, sizes, raws = [], [], []
    for entry, cols, payload in parts:
        entries.append(entry)
        sizes += [len(cols), len(payload)]
        raws += [cols, payload]
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    starts = ends - sizes
    none = np.zeros(len(entries), dtype=np.int64)
    table = np.frombuffer(b"".join(entries), ENTRY_DTYPE)
    return Groups(
        b"".join(raws), none[:1], table, none, starts[0::2], starts[1::2], 0,
        none[:1].astype(np.uint64), Mark(0, 0), False,
    )  # fmt: skip


def part_of(groups: Groups, first: int, stop: int) -> Groups:
    """The groups [first, stop) alone."""
    low, high = np.searchsorted(groups.frame_group, (first, stop))
    inside = slice(int(low), int(high))
    return Groups(
        groups.raw, groups.starts[first:stop], groups.frames[inside],
        groups.frame_group[inside] - first, groups.cols_at[inside], groups.payload_at[inside],
        end_of(groups, stop - 1) if stop else SECTOR, groups.first_lsns[first:stop], groups.mark,
        groups.damaged,
    )  # fmt: skip


def next_lsn(groups: Groups) -> int:
    """The number of the frame behind the last group; there is at least one."""
    last = len(groups.first_lsns) - 1
    return int(groups.first_lsns[last]) + int((groups.frame_group == last).sum())


def end_of(groups: Groups, index: int) -> int:
    """The byte behind a group and its padding."""
    start = int(groups.starts[index])
    count, cols, size, _ = np.frombuffer(groups.raw, dtype="<u4", count=4, offset=start + 32)
    return padded(start + GROUP.size + int(count) * ENTRY.size + int(cols) + int(size))


def claimed_file_ids(raw: bytes) -> list[int]:
    """The file ids in everything that looks like a group, in order; nothing of it is checked."""
    found = _candidates(raw)[1]
    return list(dict.fromkeys(found[:, 2].tolist()))


def _candidates(raw: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Offsets and header words of the sectors that begin with the magic of a group."""
    usable = len(raw) // SECTOR * SECTOR
    sectors = np.frombuffer(raw, dtype=np.uint8, count=usable).reshape(-1, SECTOR)
    words = sectors[:, : GROUP.size].copy().view("<u8")
    found = np.flatnonzero(words[:, 0] == np.frombuffer(GROUP_MAGIC, dtype="<u8")[0])
    return found.astype(np.int64) * SECTOR, words[found]


def scan_groups(raw: bytes, file_id: int, *, beyond_damage: bool = False) -> Groups:
    """Finds the longest valid prefix of groups and the highest mark anywhere in the file.

    With `beyond_damage` every valid group counts, wherever it stands: for repair only. Works in
    columns over all candidate sectors, because a log of single writes has one group for each
    record and must still be read at hundreds of thousands a second.
    """
    starts, head = _candidates(raw)
    own = np.flatnonzero(head[:, 2] == np.uint64(file_id))
    starts, head = starts[own], head[own]
    sizes = head[:, 4:6].copy().view("<u4").reshape(-1, 4).astype(np.int64)
    frames, cols, payload, synced_file = sizes[:, 0], sizes[:, 1], sizes[:, 2], sizes[:, 3]
    lengths = GROUP.size + frames * ENTRY.size + cols + payload
    valid = _checksums_hold(raw, starts, lengths, head[:, 1])
    chained = _prefix(starts, lengths, valid)
    mark = _highest(synced_file[valid], head[valid, 6])
    end = SECTOR if chained == 0 else int(padded(int(starts[chained - 1] + lengths[chained - 1])))
    keep: slice | npt.NDArray[np.int64] = slice(0, chained)
    if beyond_damage:
        keep = np.flatnonzero(valid)
    table, group_of, cols_at, payload_at = _tables(raw, starts[keep], frames[keep], cols[keep])
    # Bytes behind the end that are not zero, or a valid group there, mean that something was torn.
    damaged = bool(valid[chained:].any()) or any(raw[end : end + SECTOR])
    return Groups(
        raw, starts[keep], table, group_of, cols_at, payload_at, end, head[keep, 3], mark, damaged,
    )  # fmt: skip


def _highest(numbers: npt.NDArray[np.int64], offsets: npt.NDArray[np.uint64]) -> Mark:
    if not len(numbers):
        return Mark(0, 0)
    number = int(numbers.max())
    return Mark(number, int(offsets[numbers == number].max()))


def _checksums_hold(
    raw: bytes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    stored: npt.NDArray[np.uint64],
) -> npt.NDArray[np.bool_]:
    limit = len(raw)
    with memoryview(raw) as view:
        return np.fromiter(
            (
                start + length <= limit and checksum(view[start + 16 : start + length]) == expected
                for start, length, expected in zip(
                    starts.tolist(), lengths.tolist(), stored.tolist(), strict=True
                )
            ),
            dtype=np.bool_,
            count=len(starts),
        )


def _prefix(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]
) -> int:
    """How many groups from the first on are valid and stand back to back."""
    if not len(starts) or starts[0] != SECTOR:
        return 0
    ends = starts + (lengths + SECTOR - 1) // SECTOR * SECTOR
    linked = np.ones(len(starts), dtype=np.bool_)
    linked[1:] = starts[1:] == ends[:-1]
    broken = np.flatnonzero(~(linked & valid))
    return int(broken[0]) if len(broken) else len(starts)


def _tables(
    raw: bytes,
    starts: npt.NDArray[np.int64],
    frames: npt.NDArray[np.int64],
    cols: npt.NDArray[np.int64],
) -> tuple[
    npt.NDArray[np.void], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]
]:
    total = int(frames.sum())
    group_of = np.repeat(np.arange(len(starts)), frames)
    first = np.cumsum(frames) - frames
    rank = np.arange(total) - first[group_of]
    at = starts[group_of] + GROUP.size + rank * ENTRY.size
    data = np.frombuffer(raw, dtype=np.uint8)
    table = data[at[:, None] + np.arange(ENTRY.size)].view(ENTRY_DTYPE).reshape(-1)
    cols_base = starts + GROUP.size + frames * ENTRY.size
    cols_at = cols_base[group_of] + _within(table["cols"].astype(np.int64), first, group_of)
    payload_base = cols_base + cols
    payload_at = payload_base[group_of] + _within(table["size"].astype(np.int64), first, group_of)
    return table, group_of, cols_at, payload_at


def _within(
    sizes: npt.NDArray[np.int64], first: npt.NDArray[np.int64], group_of: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Offset of each frame's part inside its group's area: a running sum that restarts."""
    before = np.cumsum(sizes) - sizes
    return before - (before[first[group_of]] if len(before) else before)
