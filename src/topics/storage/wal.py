"""The write-ahead log: shards of preallocated files that only ever grow at their end.

Promises:

- `Shard.write` returns after the group's bytes are in the page cache: a killed process loses
  nothing that was written. It raises DiskFull with the log as it was, or Poisoned.
- `Shard.sync` makes durable everything written before it was called, in file order, and enters how
  far that is in MARKS before anybody can see it. It may run in a thread of its own, beside writes.
  What stands on bytes of another shard counts as durable no earlier than those (`footing`).
- After any failed sync nothing more is written or synced (docs/guarantees.md#fsync): the pages
  may have been dropped and marked clean, so a second attempt could succeed without them.
- A new process never appends to an old process's file. Every start opens a new *generation*.
- To go on in another file costs the writer no sync where `Shard.prepare` has come first.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

from topics.clock import Clock
from topics.errors import DiskFull, Overloaded, Poisoned
from topics.settings import Settings
from topics.storage import frames, wal_files
from topics.storage.disk_errors import FULL, NO_FILES
from topics.storage.footing import Footings
from topics.storage.frames import SECTOR, FileHeader, Mark
from topics.storage.fs import Fs
from topics.storage.marks import Marks
from topics.storage.wal_files import WalFile
from topics.storage.wal_stats import WalStats

# The least that a start on a full disk makes do with, for each shard.
START_BYTES = 8 * 1024
# Which part of a whole file appends leave free on a disk that has no room for a whole one.
SPARE_PART = 16
# Beyond the end of any file.
NEVER = 1 << 62


@dataclass(slots=True)
class Shard:
    """One timeline. Written by the engine's thread only; synced by one thread at a time.

    `lock` guards the place, the list of files and the mark, which both threads touch. `making` is
    held by who makes a file, and by who goes on in another one: both threads do the former, and
    must not make the same number. `syncing` is held by who syncs files, and by the engine's thread
    while it takes a write back: the system tells of a failed sync once, and only one of two. Who
    holds either may take `lock` and those of footings and MARKS, never the other way round.
    """

    fs: Fs
    directory: str
    generation: int
    index: int
    settings: Settings
    clock: Clock
    stats: WalStats
    marks: Marks
    footings: Footings[Shard]
    current: WalFile = field(init=False)
    # Rotated files whose last bytes may not be durable yet, oldest first.
    unsynced: list[WalFile] = field(default_factory=list, init=False)
    offset: int = field(default=SECTOR, init=False)
    # The place behind the last group. A file counts from its first group on, so that no mark names
    # the start of one: if it is found empty, nobody could tell what is missing in front of that.
    position: Mark = field(default=Mark(1, SECTOR), init=False)
    # The file behind the present one, if it is made; from which offset on that is tried.
    ready: WalFile | None = field(default=None, init=False)
    prepare_at: int = field(default=NEVER, init=False)
    making: threading.Lock = field(default_factory=threading.Lock, init=False)
    syncing: threading.Lock = field(default_factory=threading.Lock, init=False)
    # How far the bytes are on the disk, with the frame behind it; and how far nothing can take them
    # away any more, which is less where they stand on bytes of another shard.
    flushed: tuple[Mark, int] = field(default=(Mark(0, 0), 1), init=False)
    synced: Mark = field(default=Mark(0, 0), init=False)
    lsn: int = field(default=1, init=False)
    poison: Exception | None = field(default=None, init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    # Whether the next sync that finds nothing to do makes MARKS durable.
    wants_settled: bool = field(default=False, init=False)
    # How long the last write and the last sync took.
    write_s: float = field(default=0.0, init=False)
    sync_s: float = field(default=0.0, init=False)
    # Whether files made from now on say that routers are there.
    is_routed: bool = False

    def open(self, capacity: int) -> None:
        self.current = self.create_file(1, capacity)
        self._begin(self.current)
        self.synced = Mark(1, SECTOR)
        self.flushed = self.synced, self.lsn
        self.footings.enter(self)

    @property
    def is_dirty(self) -> bool:
        return self.synced < self.position

    def create_file(self, number: int, capacity: int, spare: int = 0) -> WalFile:
        """Creates, preallocates and names a file durably, and enters it in MARKS.

        So much is to be spare beside it. Raises OSError with nothing changed, or Poisoned.
        """
        header = FileHeader(
            wal_files.new_file_id(), self.generation, self.index, number, self.clock.wall_ms(),
            self.fs.boot_id(), capacity, self.is_routed,
        )  # fmt: skip
        made = wal_files.create(self.fs, self.directory, header, spare)
        try:
            self.marks.enter_file(self.index, number)
        except OSError as error:
            # MARKS may name the file by now: it stays.
            made.file.close()
            self.poison = error
            raise Poisoned(f"MARKS can not be written: {error}") from error
        return made

    @property
    def is_filling(self) -> bool:
        """Whether the next file is to be made."""
        return self.offset >= self.prepare_at and self.poison is None

    def prepare(self, *, at_once: bool = False) -> None:
        """Makes the next file when this one is half full: then to go on in it costs no sync.

        Called where syncs are made, when everybody has been told of them, and in a thread for who
        is about to go on anyway (`at_once`). A failure poisons the shard, but for want of room or
        descriptors: then whoever needs the file asks again and says so. Until then it is tried a
        second time, not with every sync: on a full disk each attempt takes for a moment what is
        left of the room.
        """
        with self.making:
            is_wanted = self.ready is None if at_once else self.is_filling
            if not is_wanted or self.poison is not None:
                return
            current = self.current
            self.prepare_at += current.allocated // 4
            try:
                self.ready = self.create_file(current.number + 1, self.settings.wal_file_bytes)
                self.prepare_at = NEVER
            except Poisoned:
                return
            except OSError as error:
                if error.errno not in (*FULL, *NO_FILES):
                    self.poison = error

    def _begin(self, wal_file: WalFile) -> None:
        """Says when the file behind a new one is made."""
        # One that is smaller than a whole one is there because a whole one had no room.
        is_whole = wal_file.allocated >= self.settings.wal_file_bytes
        self.prepare_at = wal_file.allocated // 2 if is_whole else NEVER

    def write(
        self,
        entries: list[bytes],
        columns: list[bytes],
        payloads: list[bytes],
        *,
        may_use_reserve: bool,
    ) -> Mark:
        """Writes one group and returns the place after it."""
        self._require_sound()
        began = self.clock.monotonic_s()
        length = frames.GROUP.size + frames.ENTRY.size * len(entries)
        length += sum(map(len, columns)) + sum(map(len, payloads))
        if length + self.settings.wal_reserve_bytes + SECTOR > self.current.capacity - self.offset:
            self._make_room(frames.padded(length), may_use_reserve)
        group = frames.encode_group(
            file_id=self.current.file_id,
            first_lsn=self.lsn,
            entries=entries,
            columns=columns,
            payloads=payloads,
            end=length,
            synced_file=self.synced.number,
            synced_upto=self.synced.offset,
            now_ms=max(self.clock.wall_ms(), 0),
        )
        size = frames.padded(length)
        try:
            self.current.file.pwrite(group, self.offset)
            if len(group) < length:
                self.current.write_behind(payloads, self.offset + len(group))
        except OSError as error:
            with self.syncing:
                self._unwrite(error)
            raise self._failed(error) from error
        with self.lock:
            self.offset += size
            self.lsn += len(entries)
            self.position = Mark(self.current.number, self.offset)
        stats = self.stats
        stats.frames_total += len(entries)
        stats.batches_total += 1
        stats.bytes_written_total += size
        if stats.is_full:
            stats.is_full = False
            stats.returns_total += 1
        self.write_s = self.clock.monotonic_s() - began
        return self.position

    def _unwrite(self, error: OSError) -> None:
        """Makes sure that nothing of a group which is about to be rejected can be found later.

        A write that failed may have left any part of its bytes, or all, and a shorter group in the
        same place would leave some of them behind it. Raises Poisoned when the end of the file can
        not be taken back for certain: then the outcome is unknown.
        """
        if error.errno not in FULL:
            return
        # A sync may have failed since the write began.
        self._require_sound()
        current = self.current
        try:
            current.file.truncate(self.offset)
            current.file.sync()
            current.capacity = self.offset
        except OSError as second:
            self.poison = second
            raise Poisoned(f"write to the write-ahead log failed: {second}") from second
        # Without room behind it the file has come to its end; the next write asks for another one.
        with contextlib.suppress(OSError):
            current.file.allocate(current.allocated)
            current.capacity = current.allocated

    def _require_sound(self) -> None:
        if self.poison is not None:
            raise Poisoned(f"write-ahead log failed earlier: {self.poison}")

    def _make_room(self, length: int, may_use_reserve: bool) -> None:
        left = self.current.capacity - self.offset
        if length + self.settings.wal_reserve_bytes <= left:
            return
        try:
            self._rotate(length, self.settings.wal_file_bytes // SPARE_PART)
        except OSError as error:
            if error.errno not in (*FULL, *NO_FILES):
                raise self._failed(error) from error
            # The reserve lets deletes and other small control frames commit on a full disk. What
            # is kept of it is given back by the next start, which makes a small file of it.
            if not (may_use_reserve and length <= left - self._kept_bytes):
                raise self._not_begun(error) from error

    @property
    def _kept_bytes(self) -> int:
        kept = max(self.settings.wal_reserve_bytes // 4, START_BYTES)
        kept = min(kept, self.current.capacity // 4)
        return kept if kept >= START_BYTES else 0

    def rotate(self) -> None:
        """Goes on in a new file; raises DiskFull or Poisoned with the log as it was."""
        self._require_sound()
        try:
            self._rotate(0, 0)
        except OSError as error:
            raise self._not_begun(error) from error

    def _rotate(self, length: int, spare: int) -> None:
        room = frames.padded(SECTOR + length + self.settings.wal_reserve_bytes)
        with self.making:
            # Whoever made a file meanwhile may have met a failure.
            self._require_sound()
            left, following = [self.current], self.ready
            if following is None:
                following = self._following(self.current.number + 1, room, spare)
            elif not following.suits(room, is_routed=self.is_routed):
                # MARKS names it: it stays in the row, without groups.
                left.append(following)
                following = self._instead(following, room, spare)
            with self.lock:
                self.unsynced += left
                self.current, self.ready = following, None
                self.offset = SECTOR
            self._begin(following)
        self._let_go()
        self.stats.rotations_total += 1

    def _let_go(self) -> None:
        """Closes the files that were left and need no sync any more.

        At once: nobody may write for a long time, and the room of one that is trimmed comes back
        when it is closed. A sync that is under way has its files open, because there is something
        then that is not flushed.
        """
        with self.lock:
            upto = self.flushed[0]
            count = len([f for f in self.unsynced if f.number < upto.number])
            if self.position == upto:
                count = len(self.unsynced)
            done, self.unsynced = self.unsynced[:count], self.unsynced[count:]
        for wal_file in done:
            wal_file.file.close()

    def _instead(self, passed: WalFile, room: int, spare: int) -> WalFile:
        """The file behind one that does not suit, which may need the room of that. Raises OSError.

        What could not be made for another reason leaves it as it was: it may suit the next time.
        """
        try:
            following = self._following(passed.number + 1, room, spare)
        except OSError as error:
            if error.errno not in FULL:
                raise
            passed.give_back()
            return self._following(passed.number + 1, room, spare)
        passed.give_back()
        return following

    def _following(self, number: int, capacity_min: int, spare: int) -> WalFile:
        """The next file: a smaller one, with something spare, where a whole one has no room.

        Else a disk with less room than that would stay full whatever is deleted: space comes back
        with a checkpoint, which begins with a new file, the smallest, and needs what is spare for
        itself. Raises OSError.
        """
        is_whole, capacity = True, max(self.settings.wal_file_bytes, capacity_min)
        while True:
            try:
                return self.create_file(number, capacity, 0 if is_whole else spare)
            except OSError as error:
                if error.errno not in FULL or (capacity <= capacity_min and not is_whole):
                    raise
            is_whole, capacity = False, max(capacity // 4 if spare else 0, capacity_min)

    def _not_begun(self, error: OSError) -> DiskFull | Poisoned:
        """Why there is no new file. What could not be opened was not written to either."""
        if error.errno not in NO_FILES:
            return self._failed(error)
        return Overloaded(
            "the log could not open its next file, because too many are open; nothing was "
            "written, reads go on, try again"
        )

    def _failed(self, error: OSError) -> DiskFull | Poisoned:
        if error.errno in FULL:
            self.stats.submit_full_total += 1
            self.stats.is_full = True
            return DiskFull(
                "no space left on the device; nothing was written, reads go on, and writes resume "
                "when space returns"
            )
        self.poison = error
        return Poisoned(f"write to the write-ahead log failed: {error}")

    def sync(self) -> None:
        """Makes everything written so far durable, in file order. A failure poisons the shard."""
        with self.syncing:
            self._sync()

    def _sync(self) -> None:
        with self.lock:
            files, upto, lsn = [*self.unsynced, self.current], self.position, self.lsn
        if self.poison is not None:
            return
        if upto == self.flushed[0]:
            self.footings.settle()
            if self.wants_settled:
                self.settle()
            return
        began = self.clock.monotonic_s()
        try:
            for wal_file in files:
                wal_file.file.sync()
        except OSError as error:
            self.poison = error
            return
        ended = self.clock.monotonic_s()
        self.sync_s = ended - began
        self.stats.note_sync(self.sync_s)
        self.stats.fsyncs_total += len(files)
        with self.lock:
            self.flushed = upto, lsn
        self._let_go()
        self.footings.settle()
        if self.marks.is_due(ended):
            self.settle()

    def vouch(self, upto: Mark, lsn: int) -> None:
        """Enters in MARKS how far nothing can be taken any more; a failure poisons the shard."""
        try:
            self.marks.enter(self.index, upto, lsn)
        except OSError as error:
            self.poison = error
            return
        self.synced = upto

    def settle(self) -> None:
        """Makes MARKS durable. A failure poisons the shard."""
        self.wants_settled = False
        try:
            self.marks.settle()
        except OSError as error:
            self.poison = error

    def close(self) -> None:
        ready = [] if self.ready is None else [self.ready]
        for wal_file in [*self.unsynced, self.current, *ready]:
            wal_file.file.close()
