"""The only door to the disk.

Everything durable goes through an `Fs`, so that tests can hand the engine a disk that forgets
exactly what a real one may forget. The promises a caller may rely on, and no others:

- `pwrite` makes bytes readable at once; they survive a process kill, not a machine crash.
- `File.sync` makes the bytes and the size of that file durable, not its name.
- `Fs.sync_dir` makes creations, renames and unlinks in that directory durable.
- `rename` is atomic for readers; which of the two names survives a crash is open until `sync_dir`.
- An error from any sync means that nothing is known about the unsynced bytes. It is not retried.
- Nothing but plain files and directories is touched. A link, a pipe or a device under a name that
  is opened, listed or created raises Misplaced; only the way to a directory's root may have links,
  which `resolve` takes out of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import stat
from collections.abc import Iterator, Sequence
from typing import Protocol

from topics.errors import DirectoryLocked

AnyPath = str | os.PathLike[str]


class Misplaced(OSError):
    """What has this name is no plain file or directory, and nobody of ours made it."""


class File(Protocol):
    """One open file. Offsets are bytes; there is no file position."""

    path: str

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; shorter only at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Writes all of `data` or raises OSError, in which case any part may be there."""
        ...

    def sync(self) -> None: ...

    def allocate(self, length: int) -> None:
        """Extends the file with zeros to at least `length` bytes, with room on the disk."""
        ...

    def truncate(self, length: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Fs(Protocol):
    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Raises FileNotFoundError unless `create`; creating needs `sync_dir` to be durable."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Creates one directory with mode 0700; it is not an error when it exists."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in byte order; an absent directory is empty."""
        ...

    def exists(self, path: str) -> bool: ...

    def resolve(self, path: str) -> str:
        """The path without links: what a root is named by before anything below it is touched."""
        ...

    def sync_dir(self, path: str) -> None: ...

    def lock(self, path: str, owner: str) -> Lock:
        """Takes the single-owner lock or raises DirectoryLocked naming the present owner."""
        ...

    def boot_id(self) -> str:
        """Changes whenever the page cache may have been lost."""
        ...


class OsFile:
    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        done = len(data)
        while done < length:
            data = os.pread(self.fd, length - done, offset + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        written = os.pwrite(self.fd, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            step = os.pwrite(self.fd, view[written:], offset + written)
            if step == 0:
                raise OSError(errno.EIO, "pwrite wrote nothing", self.path)
            written += step

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def allocate(self, length: int) -> None:
        os.posix_fallocate(self.fd, 0, length)

    def truncate(self, length: int) -> None:
        os.ftruncate(self.fd, length)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class OsLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# A pipe without a writer must not block, and a link is never followed.
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _open_plain(path: str, flags: int) -> int:
    """A descriptor of a regular file; raises Misplaced for anything else."""
    try:
        fd = os.open(path, flags | _PLAIN, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _misplaced(path, "file") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _misplaced(path, "file")
    return fd


def _open_directory(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:
        if os.path.islink(path):
            raise _misplaced(path, "directory") from None
        raise


def _misplaced(path: str, wanted: str) -> Misplaced:
    words = f"not a plain {wanted}: links, pipes and devices are not followed; nothing was changed"
    return Misplaced(errno.EINVAL, words, path)


class OsFs:
    """The real filesystem."""

    def __init__(self) -> None:
        self._boot_id = ""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        flags = os.O_RDWR if writable else os.O_RDONLY
        return OsFile(path, _open_plain(path, flags | (os.O_CREAT if create else 0)))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        if os.path.islink(path):
            raise _misplaced(path, "directory")
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            # Its parents were made, or were there, before it: only the last one can be a file.
            found = path if os.path.lexists(path) else os.path.dirname(path)
            words = "there is a file where a directory should be"
            raise NotADirectoryError(errno.ENOTDIR, words, found) from None

    def listdir(self, path: str) -> list[str]:
        try:
            fd = _open_directory(path)
        except FileNotFoundError:
            return []
        try:
            return sorted(os.listdir(fd), key=os.fsencode)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def resolve(self, path: str) -> str:
        return os.path.realpath(path)

    def sync_dir(self, path: str) -> None:
        fd = _open_directory(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, owner: str) -> OsLock:
        fd = _open_plain(path, os.O_RDWR | os.O_CREAT)
        _flock(fd, path, fcntl.LOCK_EX)
        note = owner.encode()
        # Not emptied first: on a full disk its one block might be gone then.
        os.pwrite(fd, note, 0)
        os.ftruncate(fd, len(note))
        return OsLock(fd)

    def lock_shared(self, path: str) -> OsLock | None:
        """Keeps owners away while somebody looks, and changes nothing; None without a lock file.

        Raises DirectoryLocked when there is an owner.
        """
        try:
            fd = _open_plain(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        _flock(fd, path, fcntl.LOCK_SH)
        return OsLock(fd)

    def boot_id(self) -> str:
        # Asked for with each log file, also when no other file can be opened any more.
        if not self._boot_id:
            with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as source:
                self._boot_id = source.read().strip()
        return self._boot_id or "unknown"


def _flock(fd: int, path: str, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        note = os.pread(fd, 4096, 0).decode("utf-8", "replace").strip()
        holder = shown(note) or "another process"
        os.close(fd)
        raise DirectoryLocked(
            f"data directory {os.path.dirname(path)!r} is in use by {holder}; "
            "stop that process or choose another directory",
            owner=holder,
        ) from None


def owner_name() -> str:
    """Who we are, for the next one who finds the directory locked."""
    return f"process {os.getpid()} on {platform.node() or 'this machine'}"


def shown(text: str) -> str:
    """A name as it can be printed: what a terminal would act on, or is no text, is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def text_of(path: AnyPath) -> str:
    """A path as it is used from here on; bytes are one, too, to who does without types."""
    return os.fsdecode(path)


def join(*parts: str) -> str:
    return os.path.join(*parts)


def make_directory(fs: Fs, path: str) -> None:
    """Creates a directory with its missing parents and makes their names durable.

    One that exists is synced too: whoever made it may have died before its own sync.
    """
    parent = os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
    existed = fs.exists(path)
    if not existed and not fs.exists(parent):
        make_directory(fs, parent)
    fs.mkdir(path)
    try:
        fs.sync_dir(parent)
    except PermissionError:
        # A parent that we may not read was made, and is kept, by somebody else.
        if not existed:
            raise


@contextlib.contextmanager
def opened(fs: Fs, path: str, *, create: bool = False, writable: bool = True) -> Iterator[File]:
    file = fs.open(path, create=create, writable=writable)
    try:
        yield file
    finally:
        file.close()


def read_all(fs: Fs, path: str) -> bytes:
    with opened(fs, path, writable=False) as file:
        return file.pread(file.size(), 0)


def write_atomically(fs: Fs, directory: str, name: str, data: bytes) -> None:
    """Replaces `directory/name` so that a crash leaves the old content or the new, never a mix."""
    write_whole(fs, directory, name, [data])
    fs.sync_dir(directory)


def write_whole(fs: Fs, directory: str, name: str, parts: Sequence[bytes]) -> None:
    """The same, but for the directory, which the caller syncs.

    Leaves nothing behind when it raises OSError, or what the next start removes.
    """
    temporary = join(directory, name + ".tmp")
    # What can not be opened is nothing of ours to remove.
    file = fs.open(temporary, create=True)
    try:
        with contextlib.closing(file):
            file.truncate(0)
            at = 0
            for part in parts:
                file.pwrite(part, at)
                at += len(part)
            file.sync()
        fs.rename(temporary, join(directory, name))
    except OSError:
        discard(fs, temporary)
        raise


def discard(fs: Fs, path: str) -> None:
    """Removes a file that nobody was told of, if that can be done."""
    with contextlib.suppress(OSError):
        if fs.exists(path):
            fs.unlink(path)
