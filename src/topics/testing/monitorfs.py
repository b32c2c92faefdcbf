"""Watches every call on the way to an Fs and stops the first one that breaks an ordering rule.

Rules, each an OrderViolation raised before the call reaches the disk:

- sync, then rename: a file with unsynced bytes or size is not moved into place. What is set aside
  in `quarantine` is not: nobody counts on it.
- A declared dependency: a file is unlinked or replaced only when its successor is durable.
- sync, then MARKS: nothing is entered there of a log that is not durable.
- No use after a failed sync: that file is neither written nor synced again, since nobody can say
  what became of its bytes.

Knows only what passed through it. What was there before is taken as durable, or with
`assume_durable=False` (after a process kill) as unsynced until synced here.
"""

from __future__ import annotations

import posixpath
import threading

from topics.storage import marks, wal_files
from topics.storage.frames import SECTOR
from topics.storage.fs import File, Fs, Lock, opened
from topics.testing.monitorstate import FileState, NameState

ASIDE = "quarantine"


class OrderViolation(BaseException):
    """The engine did something in an order that a crash could turn into loss.

    Not an Exception: what is tested may handle those, and must not handle this.
    """


class MonitorFile:
    def __init__(self, fs: MonitorFs, inner: File, state: FileState) -> None:
        self.path = inner.path
        self._fs = fs
        self._inner = inner
        self._state = state

    def pread(self, length: int, offset: int) -> bytes:
        return self._inner.pread(length, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        # Marked before the call: when it fails, any part may be there.
        with self._fs.guard:
            self._check_trusted("write to")
            self._fs.check_marks(self.path, bytes(data))
            self._state.mark_unsynced(offset, offset + len(data))
        self._inner.pwrite(data, offset)

    def sync(self) -> None:
        with self._fs.guard:
            self._check_trusted("sync")
            begun = self._state.begin_sync(self._inner.size())
        try:
            self._inner.sync()
        except BaseException:
            with self._fs.guard:
                self._state.fail_sync(begun)
            raise
        with self._fs.guard:
            self._state.end_sync(begun)

    def allocate(self, length: int) -> None:
        with self._fs.guard:
            self._check_trusted("allocate")
            self._state.mark_unsynced(self._inner.size(), length)
        self._inner.allocate(length)

    def truncate(self, length: int) -> None:
        with self._fs.guard:
            self._check_trusted("truncate")
            self._state.mark_resized(self._inner.size(), length)
        self._inner.truncate(length)

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()
        with self._fs.guard:
            self._fs.handles.discard(self)

    def _check_trusted(self, verb: str) -> None:
        if self._state.has_failed_sync and self._fs.forbid_use_after_failed_sync:
            raise OrderViolation(f"{verb} {self.path!r} after its sync failed")


class MonitorLock:
    def __init__(self, fs: MonitorFs, inner: Lock, path: str) -> None:
        self.path = path
        self._fs = fs
        self._inner = inner

    def release(self) -> None:
        self._inner.release()
        with self._fs.guard:
            self._fs.locks.discard(self)


class MonitorFs:
    def __init__(
        self,
        inner: Fs,
        *,
        assume_durable: bool = True,
        forbid_use_after_failed_sync: bool = True,
    ) -> None:
        self.inner = inner
        self.assume_durable = assume_durable
        self.forbid_use_after_failed_sync = forbid_use_after_failed_sync
        self.guard = threading.RLock()
        self.handles: set[MonitorFile] = set()
        self.locks: set[MonitorLock] = set()
        self._names: dict[str, NameState] = {}
        self._synced_directories: set[str] = set()
        self._depends: dict[str, set[str]] = {}

    # The Fs protocol.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> MonitorFile:
        with self.guard:
            is_new = create and not self.inner.exists(path)
            inner = self.inner.open(path, create=create, writable=writable)
            if is_new:
                self._names[_key(path)] = NameState(FileState(), is_durable=False)
            handle = MonitorFile(self, inner, self._file_state(path, inner.size()))
            self.handles.add(handle)
            return handle

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            name = self._names.get(_key(source))
            is_unsynced = name is not None and name.file is not None and name.file.is_unsynced()
            if is_unsynced and posixpath.basename(posixpath.dirname(target)) != ASIDE:
                assert name is not None
                assert name.file is not None
                raise OrderViolation(
                    f"rename {source!r} to {target!r} with "
                    f"{name.file.unsynced_bytes()} unsynced bytes: sync comes first"
                )
            self._check_depends(target, "replace")
            self.inner.rename(source, target)
            self._move_names(_key(source), _key(target))

    def unlink(self, path: str) -> None:
        with self.guard:
            self._check_depends(path, "unlink")
            self.inner.unlink(path)
            self._names.pop(_key(path), None)
            self._depends.pop(_key(path), None)

    def mkdir(self, path: str) -> None:
        with self.guard:
            missing = []
            place = _key(path)
            while place not in _TOPS and not self.inner.exists(place):
                missing.append(place)
                place = _parent(place)
            self.inner.mkdir(path)
            for place in missing:
                self._names[place] = NameState(None, is_durable=False)

    def listdir(self, path: str) -> list[str]:
        return self.inner.listdir(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def resolve(self, path: str) -> str:
        return self.inner.resolve(path)

    def sync_dir(self, path: str) -> None:
        directory = _key(path)
        with self.guard:
            # Only names that were there before the call; others may come while it runs.
            begun = [name for place, name in self._names.items() if _parent(place) == directory]
        self.inner.sync_dir(path)
        with self.guard:
            self._synced_directories.add(directory)
            for name in begun:
                name.is_durable = True

    def lock(self, path: str, owner: str) -> MonitorLock:
        lock = MonitorLock(self, self.inner.lock(path, owner), path)
        with self.guard:
            self.locks.add(lock)
        return lock

    def boot_id(self) -> str:
        return self.inner.boot_id()

    # What tests declare and ask.

    def declare_depends(self, path: str, *, on: str) -> None:
        """From now on `path` may be unlinked or replaced only when all of `on` is durable."""
        with self.guard:
            self._depends.setdefault(_key(path), set()).add(_key(on))

    def is_durable(self, path: str, upto: int) -> bool:
        """Whether bytes [0, upto) are synced and the name, with its parents, is durable."""
        with self.guard:
            return (
                self.inner.exists(path)
                and self._is_name_durable(_key(path))
                and self._file_state(path).is_durable(upto)
            )

    def unsynced_bytes(self, path: str) -> int:
        """How many bytes of the file a machine crash could still change."""
        with self.guard:
            return self._file_state(path).unsynced_bytes()

    def assert_no_leaks(self, directory: str | None = None) -> None:
        """No open handles or locks, and no *.tmp file at any depth below `directory`."""
        with self.guard:
            leaks = [f"open handle on {handle.path!r}" for handle in self.handles]
            leaks += [f"held lock on {lock.path!r}" for lock in self.locks]
            if directory is not None:
                leaks += [f"left behind {path!r}" for path in self._temporary_files(directory)]
        assert not leaks, "; ".join(sorted(leaks))

    # State by path.

    def _file_state(self, path: str, size: int | None = None) -> FileState:
        name = self._names.get(_key(path))
        if name is not None and name.file is not None:
            return name.file
        if size is None:
            with opened(self.inner, path, writable=False) as file:
                size = file.size()
        state = FileState(synced_size=size)
        if not self.assume_durable:
            state = FileState(is_resized=True)
            state.mark_unsynced(0, size)
        is_durable = self.assume_durable or _parent(_key(path)) in self._synced_directories
        self._names[_key(path)] = NameState(state, is_durable=is_durable)
        return state

    def _is_name_durable(self, place: str) -> bool:
        while place not in _TOPS:
            name = self._names.get(place)
            if name is not None and not name.is_durable:
                return False
            place = _parent(place)
        return True

    def check_marks(self, path: str, data: bytes) -> None:
        """What a slot of MARKS says of the log has to be so, and its file has to have its name.

        Once its generation is ready: before that nobody goes by it.
        """
        slot = marks.decode_slot(data) if posixpath.basename(path) == marks.NAME else None
        if slot is None or not slot.is_ready:
            return
        directory = posixpath.join(posixpath.dirname(path), "wal")
        vouch = slot.vouch
        for number, upto in ((vouch.last_file, SECTOR), (vouch.mark.number, vouch.mark.offset)):
            log = posixpath.join(directory, wal_files.file_name(*slot.key, number))
            if number < vouch.last_file and not self.inner.exists(log):
                # Trimmed, and nothing was written since: a mark stays behind the last group.
                continue
            if number and not self.is_durable(log, upto):
                raise OrderViolation(f"{path!r} vouches for {upto} bytes of {log!r}: not durable")

    def _check_depends(self, path: str, verb: str) -> None:
        for on in sorted(self._depends.get(_key(path), ())):
            state = self._names.get(on)
            is_safe = self.inner.exists(on) and self._is_name_durable(on)
            if is_safe and state is not None and state.file is not None:
                is_safe = not state.file.is_unsynced()
            if not is_safe:
                raise OrderViolation(f"{verb} {path!r} before its successor {on!r} is durable")

    def _move_names(self, source: str, target: str) -> None:
        """Follows a rename, also of a directory; a moved name is not durable until its sync."""
        self._names.pop(target, None)
        self._depends.pop(target, None)
        for place in [place for place in self._names if _is_below(place, source)]:
            self._names[target + place[len(source) :]] = self._names.pop(place)
        moved = self._names.get(target)
        kept = None if moved is None else moved.file
        # A fresh object: a sync_dir begun before this rename must not vouch for the new name.
        self._names[target] = NameState(kept, is_durable=False)
        for place in [place for place in self._depends if _is_below(place, source)]:
            self._depends[target + place[len(source) :]] = self._depends.pop(place)
        for successors in self._depends.values():
            for on in [on for on in successors if _is_below(on, source)]:
                successors.remove(on)
                successors.add(target + on[len(source) :])

    def _temporary_files(self, directory: str) -> list[str]:
        found: list[str] = []
        for name in self.inner.listdir(directory):
            path = posixpath.join(directory, name)
            if name.endswith(".tmp"):
                found.append(path)
            try:
                found += self._temporary_files(path)
            except NotADirectoryError:
                continue
        return found


_TOPS = ("/", ".")


def _key(path: str) -> str:
    return posixpath.normpath(path)


def _parent(place: str) -> str:
    return posixpath.dirname(place) or "."


def _is_below(place: str, top: str) -> bool:
    return place == top or place.startswith(top + "/")
