"""Makes SIGKILL of a real process lose what a machine crash would lose.

Bytes, creations, renames and unlinks stay in the memory of this process until the sync that would
make them durable; a kill then leaves only synced state on the inner Fs. `boot_id` differs for each
instance, because for its data each start is a new boot.

Where it is kinder or harsher than a real crash:
- The loss is always total: nothing unsynced survives except the room taken by `allocate` and what
  a kill inside `sync` or `sync_dir` had already written. FakeDisk covers the subsets.
- `mkdir` and `lock` go through at once; directories cannot be renamed.
- A file whose name is not yet durable lives wholly in memory, so that its ENOSPC comes from
  `sync_dir`, and unsynced bytes of any file meet ENOSPC in `sync`, not in `pwrite`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
import uuid
from dataclasses import dataclass
from typing import Literal, NoReturn

from topics.storage.fs import Fs, Lock
from topics.testing.bufferednode import BufferedNode


class BufferedFile:
    def __init__(self, fs: BufferedFs, node: BufferedNode, path: str, *, writable: bool) -> None:
        self.path = path
        self._fs = fs
        self._node = node
        self._is_writable = writable
        self._is_closed = False

    def pread(self, length: int, offset: int) -> bytes:
        with self._fs.guard:
            self._check_open()
            return self._node.read(length, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        with self._fs.guard:
            self._check_open(writing=True)
            if offset < 0:
                _fail(errno.EINVAL, self.path)
            self._node.write(bytes(data), offset)

    def sync(self) -> None:
        with self._fs.guard:
            self._check_open()
            inner = self._node.write_through()
        # Outside the lock, so that readers and writers do not wait for the disk.
        inner.sync()

    def allocate(self, length: int) -> None:
        with self._fs.guard:
            self._check_open(writing=True)
            if length <= 0:
                _fail(errno.EINVAL, self.path)
            self._node.allocate(length)

    def truncate(self, length: int) -> None:
        with self._fs.guard:
            self._check_open(writing=True)
            if length < 0:
                _fail(errno.EINVAL, self.path)
            self._node.truncate(length)

    def size(self) -> int:
        with self._fs.guard:
            self._check_open()
            return self._node.size

    def close(self) -> None:
        with self._fs.guard:
            if not self._is_closed:
                self._is_closed = True
                self._fs.let_go(self._node)

    def _check_open(self, *, writing: bool = False) -> None:
        if self._is_closed or (writing and not self._is_writable):
            _fail(errno.EBADF, self.path)


@dataclass(frozen=True, slots=True)
class _NameChange:
    kind: Literal["create", "rename", "unlink"]
    path: str
    node: BufferedNode
    target: str = ""

    def directories(self) -> set[str]:
        places = (self.path, self.target) if self.kind == "rename" else (self.path,)
        return {_parent(place) for place in places}


class BufferedFs:
    def __init__(self, inner: Fs) -> None:
        self.inner = inner
        self.guard = threading.RLock()
        self._boot_id = f"buffered-{uuid.uuid4().hex}"
        # Names that differ from the inner Fs (None: gone), and the changes that made them so.
        self._view: dict[str, BufferedNode | None] = {}
        self._changes: list[_NameChange] = []
        # Nodes with an open handle or unsynced bytes, by their path on the inner Fs.
        self._nodes: dict[str, BufferedNode] = {}

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> BufferedFile:
        with self.guard:
            key = posixpath.normpath(path)
            node = self._resolve(key)
            if node is None:
                if not create:
                    _fail(errno.ENOENT, path)
                self._check_parent(key)
                node = BufferedNode(None)
                self._change(_NameChange("create", key, node))
            node.acquire(self.inner)
            if node.inner_path is not None:
                self._nodes[node.inner_path] = node
            return BufferedFile(self, node, path, writable=writable)

    def rename(self, source: str, target: str) -> None:
        with self.guard:
            key, into = posixpath.normpath(source), posixpath.normpath(target)
            if self._is_directory(key):
                # Nothing here knows what is below it.
                _fail(errno.ENOTSUP, source)
            node = self._resolve(key)
            if node is None:
                _fail(errno.ENOENT, source)
            self._check_parent(into)
            if self._is_directory(into):
                _fail(errno.EISDIR, target)
            if key != into:
                self._change(_NameChange("rename", key, node, into))

    def unlink(self, path: str) -> None:
        with self.guard:
            key = posixpath.normpath(path)
            node = self._resolve(key)
            if node is None:
                _fail(errno.ENOENT, path)
            if self._is_directory(key):
                _fail(errno.EISDIR, path)
            self._change(_NameChange("unlink", key, node))

    def mkdir(self, path: str) -> None:
        with self.guard:
            if self._view.get(posixpath.normpath(path)) is not None:
                _fail(errno.EEXIST, path)
            self.inner.mkdir(path)

    def listdir(self, path: str) -> list[str]:
        with self.guard:
            key = posixpath.normpath(path)
            if self._view.get(key) is not None:
                _fail(errno.ENOTDIR, path)
            names = set(self.inner.listdir(path))
            for place, node in self._view.items():
                if _parent(place) == key:
                    (names.discard if node is None else names.add)(posixpath.basename(place))
            return sorted(names, key=os.fsencode)

    def exists(self, path: str) -> bool:
        with self.guard:
            key = posixpath.normpath(path)
            return self._view[key] is not None if key in self._view else self.inner.exists(path)

    def resolve(self, path: str) -> str:
        return self.inner.resolve(path)

    def sync_dir(self, path: str) -> None:
        with self.guard:
            directories = self._entangled(posixpath.normpath(path))
            left: list[_NameChange] = []
            for index, change in enumerate(self._changes):
                if change.directories().isdisjoint(directories):
                    left.append(change)
                    continue
                try:
                    self._carry_out(change)
                except BaseException:
                    self._changes = left + self._changes[index:]
                    raise
            self._changes = left
            for place in [place for place in self._view if _parent(place) in directories]:
                del self._view[place]
        for directory in sorted(directories):
            self.inner.sync_dir(directory)

    def lock(self, path: str, owner: str) -> Lock:
        return self.inner.lock(path, owner)

    def boot_id(self) -> str:
        return self._boot_id

    def let_go(self, node: BufferedNode) -> None:
        """One handle less; a node that holds nothing of its own is forgotten."""
        node.release()
        if node.inner_path is not None and self._nodes.get(node.inner_path) is node:
            self._settle(node.inner_path, node)

    def _settle(self, path: str, node: BufferedNode) -> None:
        if node.is_disposable():
            self._nodes.pop(path, None)
        else:
            self._nodes[path] = node

    def _resolve(self, key: str) -> BufferedNode | None:
        if key in self._view:
            return self._view[key]
        if key in self._nodes:
            return self._nodes[key]
        return BufferedNode(key) if self.inner.exists(key) else None

    def _change(self, change: _NameChange) -> None:
        self._changes.append(change)
        if change.kind == "create":
            self._view[change.path] = change.node
            return
        self._view[change.path] = None
        if change.kind == "rename":
            self._view[change.target] = change.node

    def _entangled(self, directory: str) -> set[str]:
        """`directory` and those that a pending rename ties to it."""
        directories = {directory}
        size = 0
        while size < len(directories):
            size = len(directories)
            for change in self._changes:
                if not directories.isdisjoint(change.directories()):
                    directories |= change.directories()
        return directories

    def _carry_out(self, change: _NameChange) -> None:
        node = change.node
        if change.kind == "create":
            node.materialise(self.inner, change.path)
            self._settle(change.path, node)
        elif change.kind == "unlink":
            self.inner.unlink(change.path)
            self._nodes.pop(change.path, None)
        else:
            self.inner.rename(change.path, change.target)
            self._nodes.pop(change.path, None)
            node.inner_path = change.target
            self._settle(change.target, node)

    def _check_parent(self, key: str) -> None:
        parent = _parent(key)
        if not self.exists(parent):
            _fail(errno.ENOENT, key)
        self.listdir(parent)

    def _is_directory(self, key: str) -> bool:
        if key in self._view or not self.inner.exists(key):
            return False
        try:
            self.inner.listdir(key)
        except NotADirectoryError:
            return False
        return True


def _parent(place: str) -> str:
    return posixpath.dirname(place) or "."


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)
