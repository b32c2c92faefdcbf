"""The cold tier: whole objects that are written once, read in ranges and deleted.

A `Store` is a directory or a bucket. What both promise, and no more:

- An object is visible under its name only when it is complete; `put` returns when it is durable.
- `put` on a name that exists replaces it: a reader gets the old bytes or the new, never a mix.
- An error from `put` leaves the old object, no object, or the whole new one. Put it again.
- Every call may be made from any thread and blocks until it is done.
- A failure is an OSError or a TopicsError; only an object that is not there is FileNotFoundError.

Names are directories without dots and one last part with an extension: `segments/7/000123.seg`.
The rule makes a name mean the same on a disk, where `a` can not be both a file and a directory,
and in a bucket, where it can. On disk a part that begins with a dot is an unfinished `put`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from topics.errors import StorageError, StoreUnreachable
from topics.storage.fs import Fs, join, opened

NAME_BYTES_MAX = 512
NAME_PART_BYTES_MAX = 200
# What is written of an object before it is synced.
SYNC_BYTES = 2 * 1024 * 1024

_PART = r"[A-Za-z0-9_=-]+"
NAME = re.compile(rf"(?:{_PART}/)*{_PART}(?:\.{_PART})+")
# What `put` writes to. Others may have hidden files beside ours, and those stay.
_TEMPORARY = re.compile(rf"(?:{_PART}/)*\.{_PART}(?:\.{_PART})+\.[0-9]+\.tmp")
_DIRECTORY = re.compile(_PART)
_PREFIX = re.compile(rf"((?:{_PART}/)*)[A-Za-z0-9_=.-]*")
SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")

Names: TypeAlias = list[str]


class Store(Protocol):
    @property
    def bytes_fetched(self) -> int:
        """Bytes that `get_range` has returned so far."""
        ...

    def put(self, name: str, data_parts: Iterable[bytes]) -> None:
        """Stores the concatenation of `data_parts`; complete and durable on return."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only where the object ends."""
        ...

    def size(self, name: str) -> int:
        """Bytes in the object."""
        ...

    def exists(self, name: str) -> bool: ...

    def delete(self, name: str) -> None:
        """Removes the object durably; it is not an error when it is not there."""
        ...

    def list(self, prefix: str = "") -> Names:
        """Names that begin with `prefix`, in byte order."""
        ...

    def sweep(self) -> int:
        """Removes what interrupted puts left, and counts it. Call it before the first `put`."""
        ...


class StoreBytes:
    """Random access to one object."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def read(self, length: int, offset: int) -> bytes:
        return self._store.get_range(self._name, offset, length)

    def size(self) -> int:
        return self._store.size(self._name)


def open_store(url_or_path: str, fs: Fs) -> Store:
    """A bucket for s3://, gs:// and az:// URLs, otherwise a directory; contacts no server."""
    scheme = SCHEME.match(url_or_path)
    if scheme is None:
        return DirectoryStore(fs, url_or_path)
    if scheme[1] == "file":
        return DirectoryStore(fs, url_or_path.removeprefix("file://"))
    # Imported here: objects.py needs this module, and a directory needs no object-store client.
    from topics.storage.objects import ObjectStore

    return ObjectStore(url_or_path)


class DirectoryStore:
    """Objects as files below `root`, through the filesystem door. One process owns `root`.

    Nothing is looked at before the first call: a start does without the store if it can.
    """

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._root = fs.resolve(root).rstrip("/") or "/"
        self._bytes_fetched = Counter()
        self._temporary_ids = itertools.count(1)
        self._directories_lock = threading.Lock()
        self._durable_directories: set[str] = set()
        self._poisoned_by = ""

    @property
    def bytes_fetched(self) -> int:
        return self._bytes_fetched.value

    def put(self, name: str, data_parts: Iterable[bytes]) -> None:
        directory, leaf = self._place(name)
        self._refuse_if_poisoned()
        self._ensure_directory(directory)
        temporary = join(directory, f".{leaf}.{next(self._temporary_ids)}.tmp")
        try:
            # A file left by a crash is not reused: pages of it may have failed to sync.
            self._unlink_if_there(temporary)
            self._write(temporary, data_parts)
            self._fs.rename(temporary, join(directory, leaf))
        except BaseException:
            with contextlib.suppress(OSError):
                self._unlink_if_there(temporary)
            raise
        self._sync_directory(directory)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_range(name, offset, length)
        directory, leaf = self._place(name)
        with opened(self._fs, join(directory, leaf), writable=False) as file:
            data = file.pread(length, offset) if length else b""
        self._bytes_fetched.add(len(data))
        return data

    def size(self, name: str) -> int:
        directory, leaf = self._place(name)
        with opened(self._fs, join(directory, leaf), writable=False) as file:
            return file.size()

    def exists(self, name: str) -> bool:
        directory, leaf = self._place(name)
        return self._fs.exists(join(directory, leaf))

    def delete(self, name: str) -> None:
        directory, leaf = self._place(name)
        self._refuse_if_poisoned()
        if self._unlink_if_there(join(directory, leaf)):
            self._sync_directory(directory)

    def list(self, prefix: str = "") -> Names:
        names = self._walk(directory_of(prefix))
        return sorted(name for name in names if name.startswith(prefix) and NAME.fullmatch(name))

    def sweep(self) -> int:
        unfinished = [name for name in self._walk("") if _TEMPORARY.fullmatch(name)]
        for name in unfinished:
            self._unlink_if_there(join(self._root, name))
        return len(unfinished)

    def _place(self, name: str) -> tuple[str, str]:
        check_name(name)
        parent, _, leaf = name.rpartition("/")
        return (join(self._root, parent) if parent else self._root), leaf

    def _write(self, path: str, data_parts: Iterable[bytes]) -> None:
        offset = synced = 0
        with opened(self._fs, path, create=True) as file:
            for part in data_parts:
                if part:
                    file.pwrite(part, offset)
                    offset += len(part)
                if offset - synced >= SYNC_BYTES:
                    # A little at a time: the log on the same disk waits for all of it else.
                    file.sync()
                    synced = offset
            file.sync()

    def _walk(self, directory: str) -> Iterator[str]:
        """Every file below `directory`, named from the root; no dot means a directory.

        Directories whose names no object has are not looked into: a disk has a `lost+found`, which
        only root may read.
        """
        pending = [directory]
        while pending:
            parent = pending.pop()
            for entry in self._entries(parent):
                name = f"{parent}/{entry}" if parent else entry
                if "." in entry:
                    yield name
                elif _DIRECTORY.fullmatch(entry):
                    pending.append(name)

    def _entries(self, directory: str) -> Names:
        try:
            return self._fs.listdir(join(self._root, directory) if directory else self._root)
        except NotADirectoryError:
            if not directory:
                raise
            # A file without an extension, as a README is: none of ours.
            return []

    def _ensure_directory(self, path: str) -> None:
        with self._directories_lock:
            self._make_durable(path)

    def _make_durable(self, path: str) -> None:
        """Creates `path` and makes its name durable, once for each store.

        A directory that exists is synced too: whoever made it may have died before its own sync.
        Above the root only what is missing is ours to make.
        """
        parent = _parent(path)
        if path in self._durable_directories or path == parent:
            return
        if len(path) > len(self._root) or not self._fs.exists(parent):
            self._make_durable(parent)
        self._fs.mkdir(path)
        self._sync_directory(parent)
        self._durable_directories.add(path)

    def _sync_directory(self, path: str) -> None:
        try:
            self._fs.sync_dir(path)
        except OSError as error:
            # A second sync could succeed without the lost entries, so there is none.
            self._poisoned_by = f"{path}: {error}"
            raise

    def _refuse_if_poisoned(self) -> None:
        if self._poisoned_by:
            raise StoreUnreachable(
                f"the cold directory could not be synced ({self._poisoned_by}); what was stored "
                "before is still readable; check the disk and restart",
                root=self._root,
            )

    def _unlink_if_there(self, path: str) -> bool:
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            return False
        return True


class Counter:
    """A number that threads may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, amount: int) -> None:
        with self._lock:
            self.value += amount


def check_name(name: str) -> None:
    parts_fit = all(len(part) <= NAME_PART_BYTES_MAX for part in name.split("/"))
    if NAME.fullmatch(name) is None or len(name) > NAME_BYTES_MAX or not parts_fit:
        raise StorageError(
            f"{name!r} can not name an object: it takes directories of A-Z a-z 0-9 _ = - "
            "and one last part with an extension, as in segments/7/000123.seg",
            name=name,
        )


def directory_of(prefix: str) -> str:
    matched = _PREFIX.fullmatch(prefix)
    if matched is None:
        raise StorageError(f"{prefix!r} can not begin the name of an object", prefix=prefix)
    return matched[1].rstrip("/")


def check_range(name: str, offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise StorageError(f"{name}: offset {offset} and length {length} must not be negative")


def _parent(path: str) -> str:
    parent, slash, _ = path.rpartition("/")
    return parent or ("/" if slash else ".")
