"""A register: small values by name, in one file that only grows until it is written anew.

What is put is with the kernel when `put` returns, so it survives the end of the process; `sync`
makes it durable. Each entry has its own checksum: what a machine crash has torn ends the register
there, and whatever was put after it was not synced either. A file that is half waste is written
anew beside the old one, which it then replaces.

Layout: magic, then entries, each a checksum (XXH3-64 of the rest), a length (u32) and msgpack
`[name, value]`; null instead of a value removes the name.
"""

from __future__ import annotations

import struct
import threading

import msgspec

from topics.storage.disk_errors import typed
from topics.storage.frames import checksum_of
from topics.storage.fs import File, Fs, join, opened, read_all

MAGIC = b"TOPREG\x00\x01"
ENTRY = struct.Struct("<QI")
VALUE_BYTES_MAX = 16 * 1024 * 1024
# A file is written anew when it has so much waste, and more of it than of anything else.
WASTE_BYTES_MIN = 1024 * 1024


class Entry(msgspec.Struct, array_like=True):
    name: str
    value: bytes | None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Entry)


class Register:
    """Owned by one thread, but for `sync` and `write_anew`, which may run in another."""

    def __init__(self, fs: Fs, directory: str, name: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = join(directory, name)
        self._new_path = self._path + ".tmp"
        self._file: File | None = None
        self._size = 0
        self._live_bytes = 0
        # The entry of each value.
        self._entries: dict[str, bytes] = {}
        # What was put while the file is written anew.
        self._late: list[bytes] | None = None
        self._is_damaged = False
        self._lock = threading.Lock()

    def load(self) -> dict[str, bytes]:
        """Every value that can be read. A torn end is left behind: the file is written anew."""
        found: dict[str, bytes] = {}
        if self._fs.exists(self._new_path):
            # Of a process that has died while it wrote it.
            self._fs.unlink(self._new_path)
        if not self._fs.exists(self._path):
            return found
        raw = read_all(self._fs, self._path)
        at, stop = len(MAGIC), len(raw)
        is_whole = raw[:at] == MAGIC
        while is_whole and at < stop:
            entry = _read(raw, at)
            is_whole = entry is not None
            if entry is None:
                break
            parsed, end = entry
            if parsed.value is None:
                found.pop(parsed.name, None)
                self._entries.pop(parsed.name, None)
            else:
                found[parsed.name] = parsed.value
                self._entries[parsed.name] = raw[at:end]
            at = end
        self._live_bytes = sum(map(len, self._entries.values()))
        if not is_whole or self._live_bytes + len(MAGIC) < stop:
            self.write_anew(self.begin_anew())
            self.take_over()
            self.sync()
        else:
            self._file, self._size = self._fs.open(self._path), stop
        return found

    # -- changes -----------------------------------------------------------------------------

    def put(self, name: str, value: bytes) -> None:
        """Keeps a value in place of any other of this name. Raises DiskFull or StorageError."""
        entry = _render(Entry(name, value))
        self._append(entry)
        self._live_bytes += len(entry) - len(self._entries.get(name, b""))
        self._entries[name] = entry

    def remove(self, name: str) -> None:
        """Forgets a name. Raises DiskFull or StorageError; it is back after a restart then."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._live_bytes -= len(entry)
            self._append(_render(Entry(name, None)))

    def _append(self, entry: bytes) -> None:
        try:
            if self._file is None:
                self._file = self._fs.open(self._path, create=True)
                self._file.truncate(0)
                self._file.pwrite(MAGIC, 0)
                self._size = len(MAGIC)
            # One that failed half way is written over by the next.
            self._file.pwrite(entry, self._size)
        except OSError as error:
            raise typed(error, f"{self._path} can not be written") from error
        self._size += len(entry)
        if self._late is not None:
            self._late.append(entry)

    # -- upkeep ------------------------------------------------------------------------------

    @property
    def is_wasteful(self) -> bool:
        """Whether it should be written anew: half of it is waste, or the disk failed it."""
        waste = self._size - self._live_bytes
        return self._is_damaged or waste > max(WASTE_BYTES_MIN, self._live_bytes)

    def sync(self) -> None:
        """Makes what was put durable. Raises OSError: what is durable is then not known."""
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.sync()
                self._fs.sync_dir(self._directory)
            except OSError:
                self._is_damaged = True
                raise

    def begin_anew(self) -> list[bytes]:
        """What the new file is to have; what is put from here on is kept for it, too."""
        self._late = []
        return list(self._entries.values())

    def write_anew(self, entries: list[bytes]) -> None:
        """Writes a new file, durably. Raises OSError."""
        with self._lock, opened(self._fs, self._new_path, create=True) as file:
            file.truncate(0)
            file.pwrite(b"".join([MAGIC, *entries]), 0)
            file.sync()

    def take_late(self) -> list[bytes]:
        """What was put since: the new file has to have it, durably, before it takes over."""
        late, self._late = self._late or [], []
        return late

    def write_late(self, late: list[bytes]) -> None:
        """Adds to the new file. Raises OSError."""
        with self._lock, opened(self._fs, self._new_path) as file:
            file.pwrite(b"".join(late), file.size())
            file.sync()

    def take_over(self) -> None:
        """The new file takes the place of the old. Raises OSError: the old one goes on then."""
        assert not self._late
        self._late = None
        with self._lock:
            self._fs.rename(self._new_path, self._path)
            if self._file is not None:
                self._file.close()
            self._file = self._fs.open(self._path)
            self._size = self._file.size()
            self._is_damaged = False

    def give_up_anew(self) -> None:
        """The new file could not be written; it is tried again some time."""
        self._late = None

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _render(entry: Entry) -> bytes:
    raw = _ENCODER.encode(entry)
    assert len(raw) <= VALUE_BYTES_MAX
    rest = struct.pack("<I", len(raw)) + raw
    return struct.pack("<Q", checksum_of(rest)) + rest


def _read(raw: bytes, at: int) -> tuple[Entry, int] | None:
    """The entry at a place and where it ends; None for what is none."""
    if at + ENTRY.size > len(raw):
        return None
    stored, length = ENTRY.unpack_from(raw, at)
    end = at + ENTRY.size + length
    if length > VALUE_BYTES_MAX or end > len(raw) or checksum_of(raw[at + 8 : end]) != stored:
        return None
    try:
        return _DECODER.decode(raw[at + ENTRY.size : end]), end
    except msgspec.DecodeError:
        return None
