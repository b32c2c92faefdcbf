"""Where backups lie: a directory or a bucket with objects that are written once, and manifests.

    backups/<id>.json                    a backup: what is in it, written when all of that is there
    seg/<number>-<stamp>.body            a segment up to its delete flags
    snap/<number>-<stamp>.snap           a snapshot
    wal/<generation>-<shard>-<number>-<file id>/<offset>.part
                                         a stretch of a log file, never of another one
    stage/<generation>-<number>-<stamp>.stage
                                         a stage that a commit in the log names
    flags/<id>.z                         the delete flags of its segments, when the backup began

What must be true there:

- A backup is there when its manifest is, and that is stored last, whole or not at all: whatever
  cuts a backup short, what it leaves is objects that no manifest names.
- An object's name says what is in it (a stamp is the checksum that its own header has), so the next
  backup takes what an earlier manifest names as its own and stores only what is new.
- A manifest has the size and the XXH3-64 of every object that it names, and of itself in its first
  line. Nothing of a backup is believed without them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from topics.errors import CorruptData, NotFound
from topics.storage.frames import Mark, checksum
from topics.storage.tiers import Store

VERSION = 1
MANIFESTS = "backups/"
# What is read of an object at a time.
READ_BYTES = 1024 * 1024


class Object(msgspec.Struct, frozen=True):
    name: str
    size: int
    sum: str


class SegmentCopy(msgspec.Struct, frozen=True):
    """A segment; its `flags` are so many bytes, behind those of the ones in front of it."""

    number: int
    flags: int
    body: Object


class SnapshotCopy(msgspec.Struct, frozen=True):
    number: int
    # From this moment on the log says what there is besides it.
    taken_ms: int
    body: Object


class LogCopy(msgspec.Struct, frozen=True):
    """A log file: its stretches, one behind the other from its first byte on."""

    generation: int
    shard: int
    number: int
    file_id: str
    parts: list[Object]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


class MarkCopy(msgspec.Struct, frozen=True):
    """How far MARKS vouched for a timeline of an earlier generation; there may be more of it."""

    generation: int
    shard: int
    mark: Mark


class StageCopy(msgspec.Struct, frozen=True):
    file_name: str
    body: Object


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup."""

    version: int = VERSION
    id: str
    began_ms: int
    # The span: every moment from the first to the last can be restored.
    from_ms: int
    to_ms: int
    topics: int
    # Bytes of everything in it, and of what was stored for it.
    bytes: int
    bytes_copied: int
    # Whether the log goes back to its beginning, so that no snapshot is needed.
    is_from_beginning: bool
    snapshots: list[SnapshotCopy]
    segments: list[SegmentCopy]
    flags: Object | None
    logs: list[LogCopy]
    marks: list[MarkCopy]
    stages: list[StageCopy]

    def objects(self) -> Iterator[Object]:
        """Everything that it names."""
        yield from (each.body for each in self.snapshots)
        yield from (each.body for each in self.segments)
        yield from (part for each in self.logs for part in each.parts)
        yield from (each.body for each in self.stages)
        if self.flags is not None:
            yield self.flags


_MANIFEST = msgspec.json.Decoder(Manifest)


def sum_of(value: int) -> str:
    """A checksum as manifests and names have it."""
    return f"{value:016x}"


def manifest_name(backup_id: str) -> str:
    return f"{MANIFESTS}{backup_id}.json"


def segment_name(number: int, stamp: int) -> str:
    return f"seg/{number:012d}-{sum_of(stamp)}.body"


def snapshot_name(number: int, stamp: int) -> str:
    return f"snap/{number:012d}-{sum_of(stamp)}.snap"


def log_part_name(log: LogCopy, offset: int) -> str:
    place = f"{log.generation:08d}-{log.shard:02d}-{log.number:08d}-{log.file_id}"
    return f"wal/{place}/{offset:012d}.part"


def stage_name(file_name: str, stamp: int) -> str:
    return f"stage/{file_name.partition('.')[0]}-{sum_of(stamp)}.stage"


def flags_name(backup_id: str) -> str:
    return f"flags/{backup_id}.z"


def store_manifest(store: Store, manifest: Manifest) -> None:
    """The last step of a backup."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    store.put(manifest_name(manifest.id), [sum_of(checksum(body)).encode() + b"\n", body])


def ids(store: Store) -> list[str]:
    """The backups that are there, newest first."""
    names = store.list(MANIFESTS)
    return [name.removeprefix(MANIFESTS).removesuffix(".json") for name in reversed(names)]


def read_manifest(store: Store, backup_id: str) -> Manifest:
    """Raises NotFound, or CorruptData for one that can not be believed."""
    name = manifest_name(backup_id)
    try:
        raw = store.get_range(name, 0, store.size(name))
    except FileNotFoundError:
        raise NotFound(f"there is no backup {backup_id} here", backup=backup_id) from None
    stored, _, body = raw.partition(b"\n")
    if stored.decode("ascii", "replace") != sum_of(checksum(body)):
        raise CorruptData(f"{name} fails its checksum", object=name)
    try:
        found = _MANIFEST.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptData(f"{name} does not decode: {error}", object=name) from None
    if found.version != VERSION or found.id != backup_id:
        raise CorruptData(
            f"{name}: version {found.version} of {found.id}; this program reads {VERSION}",
            object=name,
        )
    return found


def read_object(store: Store, wanted: Object) -> bytes:
    """All of it, believed. Raises CorruptData."""
    return b"".join(pieces(store, wanted))


def pieces(store: Store, wanted: Object) -> Iterator[bytes]:
    """An object piece by piece; raises CorruptData at its end when it is not what was stored."""
    seen, at = xxhash.xxh3_64(), 0
    while at < wanted.size:
        try:
            raw = store.get_range(wanted.name, at, min(READ_BYTES, wanted.size - at))
        except FileNotFoundError:
            raise CorruptData(f"{wanted.name} is missing", object=wanted.name) from None
        if not raw:
            break
        seen.update(raw)
        at += len(raw)
        yield raw
    if at != wanted.size or sum_of(seen.intdigest()) != wanted.sum:
        raise CorruptData(f"{wanted.name} fails its checksum", object=wanted.name)
