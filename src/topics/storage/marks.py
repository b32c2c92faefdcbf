"""MARKS: what is known about the log from outside of it, so that a log that shrank is told apart.

A log file can vouch for everything in it but its own end: cut, emptied, zeroed or removed, it looks
as if it had never been written. This one small file beside the log says which log files there are
and how far each timeline was made durable.

What must be true on disk:

- A place is entered after the sync that made it durable and before anybody is told of that sync.
  It survives a killed process at once. It is synced itself when the log falls idle, when a log
  file is added, at least once in `SETTLE_S` under load, and at an orderly stop: after a crash of
  the machine it may be that much older than the log, never ahead of it.
- A log file is entered, and that is synced, before the first group is written to it.
- Each start replaces MARKS as a whole, before its first log file is made, with what is known of
  earlier generations. A generation is `ready` when every slot says so; one that is not was never
  seen by anybody: nothing is demanded of it, and the next start removes it.

Layout: the head (header sector, table of earlier timelines), two slots of one sector for each
shard, written in turn, and the head again the other way round. Of each pair one is enough, unless
the other was damaged while the machine was up: then nobody knows what it said.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, field, replace

from topics.errors import CorruptData
from topics.storage.frames import FORMAT_VERSION, SECTOR, Mark, checksum, padded
from topics.storage.fs import File, Fs, join, opened, write_atomically

NAME = "MARKS"
MAGIC = b"TOPMRK\x00\x01"
SLOT_MAGIC = b"TOPSLT\x00\x01"
# magic, checksum of the rest and of the table, version, random id, generation, shards, rows, boot
HEADER = struct.Struct("<8sQIQIII64s")
# generation, shard, last file, marked file, marked offset, next frame
ROW = struct.Struct("<IIIIQQ")
# magic, checksum of the rest, id of this file, count, generation, shard, last file, marked file,
# marked offset, next frame, whether the generation is ready
SLOT = struct.Struct("<8sQQQIIIIQQ?")
# How far the durable vouch may be behind under load.
SETTLE_S = 1.0
# More than any number of shards and generations comes to.
BYTES_MAX = 16 * 1024 * 1024
# A file number that no log has: what nobody knows can not be met by any log.
UNKNOWN = 0xFFFFFFFF

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Vouch:
    """What was known of one timeline; `lsn` is the number of the next frame, 0 if not known."""

    last_file: int
    mark: Mark
    lsn: int


NOTHING = Vouch(0, Mark(0, 0), 1)
ANYTHING = Vouch(UNKNOWN, Mark(UNKNOWN, 0), 0)


@dataclass(slots=True)
class Known:
    """What MARKS says: the newest generation, and each timeline by generation and shard."""

    generation: int = 0
    shards: int = 0
    boot_id: str = ""
    is_ready: bool = False
    lines: dict[Key, Vouch] = field(default_factory=dict)
    # What of the file could not be read, although the rest sufficed.
    damage: list[str] = field(default_factory=list)
    # Timelines of which a newer vouch may have stood in what could not be read.
    doubtful: set[Key] = field(default_factory=set)

    @property
    def next_generation(self) -> int:
        """A generation that was never ready is begun again."""
        return self.generation + 1 if self.is_ready or not self.generation else self.generation

    def require_undoubted(self, boot_id: str) -> None:
        """A slot may be torn by a crash of the machine; otherwise raises CorruptData."""
        crashed = boot_id in ("unknown", "") or boot_id != self.boot_id
        lost = [key for key in self.doubtful if self.lines[key] == ANYTHING]
        if lost or (self.doubtful and not crashed):
            raise _unreadable(", ".join(self.damage))


def _unreadable(why: str) -> CorruptData:
    return CorruptData(
        f"{NAME}, which says how far the log goes, can not be trusted: {why}. Nothing was changed. "
        "Restore the directory from a backup, or run `topics repair --accept-loss`.",
        path=NAME,
    )


def _encode_slot(file_id: int, count: int, key: Key, vouch: Vouch, *, is_ready: bool) -> bytes:
    slot = bytearray(
        SLOT.pack(
            SLOT_MAGIC, 0, file_id, count, *key, vouch.last_file, vouch.mark.number,
            vouch.mark.offset, vouch.lsn, is_ready,
        )
    )  # fmt: skip
    struct.pack_into("<Q", slot, 8, checksum(memoryview(slot)[16:]))
    return bytes(slot)


@dataclass(frozen=True, slots=True)
class Slot:
    file_id: int
    count: int
    key: Key
    vouch: Vouch
    is_ready: bool


def decode_slot(raw: bytes) -> Slot | None:
    if len(raw) < SLOT.size:
        return None
    magic, stored, file_id, count, generation, shard, last, number, offset, lsn, ready = (
        SLOT.unpack_from(raw)
    )
    if magic != SLOT_MAGIC or stored != checksum(raw[16 : SLOT.size]):
        return None
    vouch = Vouch(last, Mark(number, offset), lsn)
    return Slot(file_id, count, (generation, shard), vouch, ready)


def _encode(file_id: int, known: Known) -> bytes:
    """A whole file: `known.lines` of earlier generations, and slots that vouch for nothing yet."""
    table = b"".join(
        ROW.pack(*key, vouch.last_file, vouch.mark.number, vouch.mark.offset, vouch.lsn)
        for key, vouch in sorted(known.lines.items())
    )
    header = bytearray(
        HEADER.pack(
            MAGIC, 0, FORMAT_VERSION, file_id, known.generation, known.shards, len(known.lines),
            known.boot_id.encode()[:64],
        ).ljust(SECTOR, b"\0")
    )  # fmt: skip
    struct.pack_into("<Q", header, 8, checksum(bytes(header[16:]) + table))
    table = table.ljust(padded(len(table)), b"\0")
    slots = b"".join(
        _encode_slot(file_id, count, (known.generation, shard), NOTHING, is_ready=False).ljust(
            SECTOR, b"\0"
        )
        for shard in range(known.shards)
        for count in range(2)
    )
    return bytes(header) + table + slots + table + bytes(header)


def _decode_head(header: bytes, raw: bytes, *, is_front: bool) -> tuple[int, Known] | None:
    """The head at the front of the file or at its end."""
    if len(header) < SECTOR:
        return None
    magic, stored, version, file_id, generation, shards, rows, boot = HEADER.unpack_from(header)
    length = rows * ROW.size
    start = SECTOR if is_front else len(raw) - SECTOR - padded(length)
    table = raw[start : start + length] if start >= 0 else b""
    if magic != MAGIC or version != FORMAT_VERSION or stored != checksum(header[16:] + table):
        return None
    known = Known(generation, shards, boot.rstrip(b"\0").decode("utf-8", "replace"))
    for g, shard, last, number, offset, lsn in ROW.iter_unpack(table):
        known.lines[g, shard] = Vouch(last, Mark(number, offset), lsn)
    return file_id, known


def read(fs: Fs, root: str) -> Known:
    """What MARKS says. Raises CorruptData when it is not there or neither copy can be read."""
    try:
        with opened(fs, join(root, NAME), writable=False) as file:
            size = file.size()
            raw = file.pread(size, 0) if size <= BYTES_MAX else b""
    except FileNotFoundError:
        raise _unreadable("it is missing") from None
    front = _decode_head(raw[:SECTOR], raw, is_front=True)
    back = _decode_head(raw[-SECTOR:], raw, is_front=False)
    head = front or back
    if head is None:
        raise _unreadable("it is damaged")
    file_id, known = head
    if front is None or back is None:
        known.damage.append("one copy of its head is damaged")
    slots_at = SECTOR + padded(len(known.lines) * ROW.size)
    found = []
    for shard in range(known.shards):
        at, key = slots_at + 2 * shard * SECTOR, (known.generation, shard)
        found += _read_slots(raw, at, file_id, key, known)
    # Readiness is synced into one slot of each pair, then into the other, and only then is anybody
    # served: a slot that does not say so was left by a start that failed before that.
    known.is_ready = all(slot.is_ready for slot in found)
    return known


def _read_slots(raw: bytes, at: int, file_id: int, key: Key, known: Known) -> list[Slot]:
    found = []
    for place in range(2):
        slot = decode_slot(raw[at + place * SECTOR : at + (place + 1) * SECTOR])
        if slot and (slot.file_id, slot.key, slot.count % 2) == (file_id, key, place):
            found.append(slot)
    # Counts of the two follow each other, unless a crash of the machine took one of them back.
    if len(found) < 2 or abs(found[0].count - found[1].count) != 1:
        known.damage.append(f"a slot of shard {key[1]} is damaged")
        known.doubtful.add(key)
    newest = max(found, key=lambda slot: slot.count, default=None)
    known.lines[key] = ANYTHING if newest is None else newest.vouch
    return found


class Marks:
    """MARKS of the generation that is being written. Called from the engine and sync threads."""

    def __init__(self, file: File, file_id: int, generation: int, shards: int, at: int) -> None:
        self._file = file
        self._file_id = file_id
        self._generation = generation
        self._slots_at = at
        self._vouches = [NOTHING] * shards
        self._counts = [1] * shards
        # Whether this generation is in use; said with the next settling.
        self.is_ready = False
        self._lock = threading.Lock()
        # Held by who syncs; whoever holds it may take the other one, never the other way round.
        self._syncing = threading.Lock()
        # Whether something was entered that no sync has covered.
        self.is_dirty = False
        self.settled_s = 0.0
        # A file whose sync failed is not written to again: see docs/guarantees.md#fsync.
        self._failed: OSError | None = None

    def begin_again(self) -> None:
        """The log files that were entered are about to be removed: nothing was written to them."""
        self._vouches = [NOTHING] * len(self._vouches)

    def enter(self, shard: int, mark: Mark, lsn: int) -> None:
        """Says that everything in front of `mark` is durable. Raises OSError."""
        with self._lock:
            self._write(shard, Vouch(self._vouches[shard].last_file, mark, lsn))

    def enter_file(self, shard: int, number: int) -> None:
        """Says durably that there is a log file of this number. Raises OSError."""
        with self._lock:
            self._write(shard, replace(self._vouches[shard], last_file=number))
        self.settle()

    def settle(self) -> None:
        """Makes what was entered durable, in both slots of each shard. Raises OSError."""
        # One at a time: the system tells of a failed sync once, and would tell only one of two.
        with self._syncing:
            with self._lock:
                for shard, vouch in enumerate(self._vouches):
                    self._write(shard, vouch)
                self.is_dirty = False
            try:
                self._file.sync()
            except OSError as error:
                self._failed = error
                raise

    def is_due(self, now_s: float) -> bool:
        """Whether the log has been busy for so long that the vouch should be made durable."""
        if now_s - self.settled_s < SETTLE_S:
            return False
        self.settled_s = now_s
        return self.is_dirty

    def _write(self, shard: int, vouch: Vouch) -> None:
        if self._failed is not None:
            raise self._failed
        count = self._counts[shard] + 1
        key = (self._generation, shard)
        slot = _encode_slot(self._file_id, count, key, vouch, is_ready=self.is_ready)
        self._file.pwrite(slot, self._slots_at + (2 * shard + count % 2) * SECTOR)
        self._counts[shard], self._vouches[shard] = count, vouch
        self.is_dirty = True

    def close(self) -> None:
        self._file.close()


def create(fs: Fs, root: str) -> None:
    """The MARKS of a directory in which there never was a log."""
    write_atomically(fs, root, NAME, _encode(0, Known()))


def lay_out(fs: Fs, root: str, *, generation: int, lines: dict[Key, Vouch]) -> None:
    """The MARKS of a directory whose log was put there as a whole; `generation` is taken by it."""
    known = Known(generation, 0, fs.boot_id(), lines=lines)
    write_atomically(fs, root, NAME, _encode(0, known))


def begin(
    fs: Fs, root: str, *, file_id: int, generation: int, shards: int, earlier: dict[Key, Vouch]
) -> Marks:
    """Replaces MARKS for a new generation. Raises OSError with the old one in its place."""
    known = Known(generation, shards, fs.boot_id(), lines=earlier)
    write_atomically(fs, root, NAME, _encode(file_id, known))
    file = fs.open(join(root, NAME))
    return Marks(file, file_id, generation, shards, SECTOR + padded(len(earlier) * ROW.size))
