"""Log files: what they are called, and how one is made.

What must be true on disk: a file has its room, its header and its name durably before MARKS knows
of it, and MARKS does before the first group is written to it. So one that was made long before it
is needed differs in nothing from one that was made when it was, and no crash finds anything new.
Which frame it will begin with nobody knows by then: its first group says that.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass

from topics.storage.frames import SECTOR, FileHeader
from topics.storage.fs import File, Fs, discard, join


def new_file_id() -> int:
    return secrets.randbits(64)


def file_name(generation: int, shard: int, number: int) -> str:
    return f"{generation:08d}-{shard:02d}-{number:08d}.wal"


def parse_file_name(name: str) -> tuple[int, int, int] | None:
    stem, dot, suffix = name.partition(".")
    parts = stem.split("-")
    if not dot or suffix != "wal" or len(parts) != 3 or not all(p.isdigit() for p in parts):
        return None
    return int(parts[0]), int(parts[1]), int(parts[2])


@dataclass(slots=True)
class WalFile:
    file: File
    file_id: int
    number: int
    # Where the last group has to end, and how much the header says was allocated.
    capacity: int
    allocated: int
    is_routed: bool
    path: str

    def suits(self, room: int, *, is_routed: bool) -> bool:
        """Whether one that was made before anybody knew what for is the one that is needed."""
        return self.capacity >= room and self.is_routed == is_routed

    def write_behind(self, payloads: list[bytes], offset: int) -> None:
        for payload in payloads:
            self.file.pwrite(payload, offset)
            offset += len(payload)

    def give_back(self) -> None:
        """Gives back the room of a file without groups, to which nothing will be written."""
        self.capacity = SECTOR
        with contextlib.suppress(OSError):
            self.file.truncate(SECTOR)


def create(fs: Fs, directory: str, header: FileHeader, spare: int) -> WalFile:
    """Makes a file durably, under its name; so much is to be spare beside it.

    Raises OSError with nothing changed.
    """
    path = join(directory, file_name(header.generation, header.shard, header.number))
    capacity = header.capacity
    file = fs.open(path, create=True)
    try:
        file.allocate(capacity + spare)
        if file.size() > capacity:
            # What is to be spare, or what a larger one left that could not be removed.
            file.truncate(capacity)
            # Or a crash could keep the header and the length of before: that is no log file.
            file.sync()
        file.pwrite(header.encode(), 0)
        file.sync()
        fs.sync_dir(directory)
    except OSError:
        file.close()
        # An empty file of a generation holds no groups: removing it loses nothing.
        discard(fs, path)
        raise
    return WalFile(file, header.file_id, header.number, capacity, capacity, header.is_routed, path)
