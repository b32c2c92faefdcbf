"""The data directory: its layout, its format version, its one owner.

    FORMAT        the format version, in words and as a number
    LOCK          held by the owner while it runs; names it
    MARKS         which log files there are, and how far they were made durable
    SESSIONS      the watch sessions of a server, which outlive it
    POISONED      left behind when a sync failed: the page cache of that boot can not be trusted
    wal/          write-ahead log files, <generation>-<shard>-<number>.wal
    seg/          sealed segments, <number>.seg, and <number>.cold for those in the cold store
    snap/         snapshots, <number>.snap
    stage/        records that wait for a commit, or that one names, <generation>-<number>.stage
    broken/       torn ends of the log, copied before they were cut, and what a repair replaced
    quarantine/   files recovery did not know; only a scrub removes them

Names of topics never reach the filesystem.
"""

from __future__ import annotations

import json

from topics.errors import FormatMismatch
from topics.storage import marks
from topics.storage.frames import FORMAT_VERSION
from topics.storage.fs import Fs, join, make_directory, opened, write_atomically

FORMAT_BYTES_MAX = 4096
FILES = ("FORMAT", "LOCK", "MARKS", "POISONED", "SESSIONS")
DIRECTORIES = ("wal", "seg", "snap", "stage", "broken", "quarantine")
# Those of files that are being replaced among them.
ROOT_NAMES = frozenset((*FILES, *(name + ".tmp" for name in FILES), *DIRECTORIES))
# What a new filesystem has in it: a volume that was made for us is empty.
OF_THE_SYSTEM = "lost+found"


class DataDir:
    def __init__(self, fs: Fs, root: str) -> None:
        self.fs = fs
        self.root = root
        self.wal = join(root, "wal")
        self.segments = join(root, "seg")
        self.snapshots = join(root, "snap")
        self.stages = join(root, "stage")
        self.broken = join(root, "broken")
        self.quarantine = join(root, "quarantine")

    def check_ours(self) -> None:
        """Raises FormatMismatch for a directory that somebody else keeps things in.

        One without FORMAT is that of a start which was killed early, or has lost the file: all it
        holds has names of ours. Whatever else is there would be among our files for good, or be
        set aside as unknown.
        """
        if self.fs.exists(join(self.root, "FORMAT")):
            return
        names = [name for name in self.fs.listdir(self.root) if name != OF_THE_SYSTEM]
        foreign = [name for name in names if name not in ROOT_NAMES]
        if foreign:
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            raise FormatMismatch(
                f"{self.root} is not a topics directory: it holds {foreign[0]!r}{more} and no "
                "FORMAT file. Nothing was changed. A new log needs a directory that is empty"
            )

    def prepare(self) -> None:
        """Creates what is missing, durably, and checks the version; raises FormatMismatch."""
        make_directory(self.fs, self.root)
        kept = (self.wal, self.segments, self.snapshots, self.stages)
        for path in (*kept, self.broken, self.quarantine):
            self.fs.mkdir(path)
        format_path = join(self.root, "FORMAT")
        if not self.fs.exists(format_path):
            # In this order: where FORMAT is, MARKS was. Beside a log it is not made anew.
            if not self.fs.exists(join(self.root, marks.NAME)) and not self._holds_data():
                marks.create(self.fs, self.root)
            text = json.dumps({"format": "topics", "version": FORMAT_VERSION}) + "\n"
            write_atomically(self.fs, self.root, "FORMAT", text.encode())
            return
        self.check_format()
        # A process that was killed may have left names that no sync has covered yet: what is read
        # from here on, and built upon, is to be durable.
        for path in (self.root, *kept):
            self.fs.sync_dir(path)

    def _holds_data(self) -> bool:
        return any(self.fs.listdir(path) for path in (self.wal, self.segments, self.snapshots))

    def check_format(self) -> None:
        with opened(self.fs, join(self.root, "FORMAT"), writable=False) as file:
            raw = file.pread(FORMAT_BYTES_MAX, 0)
        try:
            version = json.loads(raw)["version"]
        except (ValueError, KeyError, TypeError):
            raise FormatMismatch(
                f"{self.root}: FORMAT can not be read; nothing was changed. "
                "Restore that file or the directory from a backup."
            ) from None
        if version != FORMAT_VERSION:
            newer = isinstance(version, int) and version > FORMAT_VERSION
            advice = "Use a newer topics." if newer else "Export it with the version that wrote it."
            raise FormatMismatch(
                f"{self.root} has format version {version}; this program reads version "
                f"{FORMAT_VERSION}. Nothing was changed. {advice}",
                version=version,
            )

    @property
    def is_poisoned(self) -> bool:
        return self.fs.exists(join(self.root, "POISONED"))

    def poison(self, reason: str) -> None:
        """Leaves a note for the next start. Best effort: the disk is not to be trusted."""
        try:
            with opened(self.fs, join(self.root, "POISONED"), create=True) as file:
                file.pwrite(reason.encode(), 0)
        except OSError:
            return

    def clear_poison(self) -> None:
        if self.is_poisoned:
            self.fs.unlink(join(self.root, "POISONED"))
            self.fs.sync_dir(self.root)
