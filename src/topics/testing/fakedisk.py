"""A disk in memory that forgets exactly what a real one may forget.

Owns the inodes, the names and the locks. Reads see every change at once, as through the page
cache. `File.sync` makes bytes and size durable, not the name; `sync_dir` makes names durable.
`crash` keeps a legal part of the rest, chosen by a `CrashPlan`; `kill` keeps all of it, still
pending. A name operation survives a crash only when every earlier one on its names did, and an
inode below a lost directory is gone. One lock serialises every call.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator

from topics.errors import DirectoryLocked
from topics.testing.crashplan import CrashPlan, FileOperation, NameOperation
from topics.testing.fakenodes import DirectoryNode, FileNode, SyncEffect
from topics.testing.faketree import FakeTree, Node, fail, path_parts
from topics.testing.sparsebytes import PAGE_BYTES


class DiskCrashed(RuntimeError):
    """This disk, or the process holding this handle, ended in a crash or a kill."""


class FakeFile:
    def __init__(self, disk: FakeDisk, node: FileNode, path: str, *, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._is_writable = writable
        self._is_closed = False

    @property
    def node(self) -> FileNode:
        return self._node

    def pread(self, length: int, offset: int) -> bytes:
        with self._disk.guard():
            self._check_open()
            if length < 0 or offset < 0:
                fail(errno.EINVAL, self.path)
            return self._node.cache.read(length, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """On a full disk the part that fits is written before ENOSPC is raised."""
        with self._disk.guard():
            self._check_open(writing=True)
            if offset < 0:
                fail(errno.EINVAL, self.path)
            whole = bytes(data)
            order = self._disk.mutate("pwrite", self.path)
            free = self._disk.free_pages()
            fits = len(whole)
            if free is not None:
                fits = self._node.cache.fitting_bytes(len(whole), offset, free_pages=free)
            if fits:
                self._node.apply(FileOperation(order, "write", fits, offset, whole[:fits]))
            if fits < len(whole):
                fail(errno.ENOSPC, self.path)

    def sync(self) -> None:
        with self._disk.guard():
            self._check_open()
            self._disk.mutate("sync", self.path)
            self._node.sync()

    def fail_sync(self, effect: SyncEffect) -> None:
        """What a sync that reports an error did: see `FaultFs`. Counts as a sync."""
        with self._disk.guard():
            self._check_open()
            self._disk.mutate("sync", self.path)
            self._node.fail_sync(effect)

    def allocate(self, length: int) -> None:
        with self._disk.guard():
            self._check_open(writing=True)
            if length <= 0:
                fail(errno.EINVAL, self.path)
            order = self._disk.mutate("allocate", self.path)
            free = self._disk.free_pages()
            cache = self._node.cache
            if free is not None and cache.fitting_bytes(length, 0, free_pages=free) < length:
                fail(errno.ENOSPC, self.path)
            self._node.apply(FileOperation(order, "allocate", length))

    def truncate(self, length: int) -> None:
        with self._disk.guard():
            self._check_open(writing=True)
            if length < 0:
                fail(errno.EINVAL, self.path)
            order = self._disk.mutate("truncate", self.path)
            self._node.apply(FileOperation(order, "truncate", length))

    def size(self) -> int:
        with self._disk.guard():
            self._check_open()
            return self._node.cache.size

    def close(self) -> None:
        """Silent after a crash: a dead process has nothing left to close."""
        self._is_closed = True
        self._disk.forget_handle(self)

    def _check_open(self, *, writing: bool = False) -> None:
        if self._is_closed or (writing and not self._is_writable):
            fail(errno.EBADF, self.path)


class FakeLock:
    def __init__(self, disk: FakeDisk, path: str) -> None:
        self._disk = disk
        self._path: str | None = path

    def release(self) -> None:
        if self._path is not None:
            self._disk.forget_lock(self._path)
            self._path = None


class FakeDisk:
    """`Fs` in memory; deterministic in its seed, its calls and the plans of its crashes.

    `on_mutation(index, operation, path)` runs before each mutating call, inside the lock; what it
    raises prevents that call, and it may clone or crash this disk. `capacity_bytes` counts whole
    pages, may be changed at any time, and None means endless.
    """

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.mutations = 0
        self.on_mutation: Callable[[int, str, str], None] | None = None
        self._guard = threading.RLock()
        self._is_dead = False
        self._boots = 1
        self._tree = FakeTree()
        self._locks: dict[str, str] = {}
        self._handles: set[FakeFile] = set()

    # The Fs protocol.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FakeFile:
        with self.guard():
            parent, name = self._tree.parent(path)
            node = self._tree.child(parent, name)
            if isinstance(node, DirectoryNode):
                fail(errno.EISDIR, path)
            if node is None:
                if not create:
                    fail(errno.ENOENT, path)
                order = self.mutate("create", path)
                if self.free_pages() == 0:
                    fail(errno.ENOSPC, path)
                node = self._tree.add_file(parent, name, order)
            handle = FakeFile(self, node, path, writable=writable)
            self._handles.add(handle)
            return handle

    def rename(self, source: str, target: str) -> None:
        with self.guard():
            parent, name = self._tree.parent(source)
            node = self._tree.child(parent, name)
            if node is None:
                fail(errno.ENOENT, source)
            into, new_name = self._tree.parent(target)
            old = self._tree.child(into, new_name)
            _check_replaceable(node, old, target)
            order = self.mutate("rename", source)
            if old is node:
                return
            if into is parent:
                into.apply(NameOperation(order, "rename", new_name, node.ino, source=name))
                return
            needs = (into.ino, order)
            into.apply(NameOperation(order, "rename-in", new_name, node.ino))
            parent.apply(
                NameOperation(self._tree.take_order(), "rename-out", name, node.ino, needs=needs)
            )

    def unlink(self, path: str) -> None:
        with self.guard():
            parent, name = self._tree.parent(path)
            node = self._tree.child(parent, name)
            if node is None:
                fail(errno.ENOENT, path)
            if isinstance(node, DirectoryNode):
                fail(errno.EISDIR, path)
            parent.apply(NameOperation(self.mutate("unlink", path), "unlink", name, node.ino))

    def mkdir(self, path: str) -> None:
        """Creates missing parents too, as OsFs does; each directory made is one mutation."""
        with self.guard():
            node: DirectoryNode = self._tree.root()
            done = ""
            for name in path_parts(path):
                done = f"{done}/{name}"
                child = self._tree.child(node, name)
                if isinstance(child, FileNode):
                    fail(errno.EEXIST, path)
                if child is None:
                    order = self.mutate("mkdir", done)
                    if self.free_pages() == 0:
                        fail(errno.ENOSPC, path)
                    child = self._tree.add_directory(node, name, order)
                node = child

    def listdir(self, path: str) -> list[str]:
        with self.guard():
            node = self._tree.lookup(path)
            if node is None:
                return []
            if isinstance(node, FileNode):
                fail(errno.ENOTDIR, path)
            return sorted(node.names, key=os.fsencode)

    def exists(self, path: str) -> bool:
        with self.guard():
            return self._tree.lookup(path) is not None

    def resolve(self, path: str) -> str:
        return path

    def sync_dir(self, path: str) -> None:
        with self.guard():
            directory = self._tree.directory(path)
            self.mutate("sync_dir", path)
            self._tree.commit_names(directory)

    def lock(self, path: str, owner: str) -> FakeLock:
        with self.guard():
            key = "/" + "/".join(path_parts(path))
            if key in self._locks:
                holder = self._locks[key]
                raise DirectoryLocked(f"{path!r} is in use by {holder}", owner=holder)
            parent, name = self._tree.parent(path)
            node = self._tree.child(parent, name)
            if node is None:
                node = self._tree.add_file(parent, name, self._tree.take_order())
            if isinstance(node, DirectoryNode):
                fail(errno.EISDIR, path)
            note = owner.encode()
            node.apply(FileOperation(self._tree.take_order(), "truncate", 0))
            node.apply(FileOperation(self._tree.take_order(), "write", len(note), 0, note))
            self._locks[key] = owner
            return FakeLock(self, key)

    def boot_id(self) -> str:
        with self.guard():
            return f"fake-{self.seed}-{self._boots}"

    # Ends and copies.

    def crash(self, plan: CrashPlan) -> FakeDisk:
        """The disk after the machine crashed; this object and its handles are unusable then."""
        with self.guard():
            after = self.crashed(plan)
            self._is_dead = True
            return after

    def crashed(self, plan: CrashPlan) -> FakeDisk:
        """What `crash` would return, without ending this disk: many plans for one moment."""
        with self.guard():
            after = self._successor(self._tree.crashed(plan, self.seed))
            after._boots += 1
            return after

    def kill(self) -> FakeDisk:
        """The disk as the next process finds it: all content, still pending, same boot."""
        with self.guard():
            after = self._successor(self._tree)
            self._is_dead = True
            return after

    def clone(self) -> FakeDisk:
        """An independent copy with the same pending state and locks, but no handles or hook."""
        with self.guard():
            after = self._successor(self._tree.clone())
            after._locks = self._locks.copy()
            return after

    def _successor(self, tree: FakeTree) -> FakeDisk:
        after = FakeDisk(self.seed, capacity_bytes=self.capacity_bytes)
        after.mutations = self.mutations
        after._boots = self._boots
        after._tree = tree
        return after

    # What tests ask.

    def image_hash(self) -> str:
        """A stable hash of every reachable durable name and its durable bytes."""
        with self.guard():
            hasher = hashlib.blake2b(digest_size=16)
            for path, node in self._tree.walk(durable=True):
                hasher.update(f"{path}\0{type(node).__name__}\0".encode("utf-8", "surrogateescape"))
                if isinstance(node, FileNode):
                    node.durable.update_hash(hasher)
            return hasher.hexdigest()

    def files(self) -> dict[str, bytes]:
        """Every file a reader can open now, with its content."""
        with self.guard():
            return {
                path: node.cache.read(node.cache.size, 0)
                for path, node in self._tree.walk(durable=False)
                if isinstance(node, FileNode)
            }

    def open_paths(self) -> list[str]:
        """The files that somebody holds open."""
        with self._guard:
            return sorted(handle.path for handle in self._handles)

    def used_bytes(self) -> int:
        with self.guard():
            used = {handle.node.ino: handle.node for handle in self._handles}
            for _, node in self._tree.walk(durable=False):
                if isinstance(node, FileNode):
                    used[node.ino] = node
            return sum(len(node.cache.pages) for node in used.values()) * PAGE_BYTES

    # What the handles of this disk call.

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Holds the lock of every call; raises DiskCrashed once the disk is dead."""
        with self._guard:
            self._check_alive()
            yield

    def _check_alive(self) -> None:
        if self._is_dead:
            raise DiskCrashed("this disk is gone; use the one that crash() or kill() returned")

    def mutate(self, operation: str, path: str) -> int:
        """Announces and counts a mutating call; returns its place among the pending ones."""
        if self.on_mutation is not None:
            self.on_mutation(self.mutations, operation, path)
            self._check_alive()
        self.mutations += 1
        return self._tree.take_order()

    def free_pages(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        return max(0, (self.capacity_bytes - self.used_bytes()) // PAGE_BYTES)

    def forget_handle(self, handle: FakeFile) -> None:
        with self._guard:
            self._handles.discard(handle)

    def forget_lock(self, path: str) -> None:
        with self._guard:
            self._locks.pop(path, None)


def _check_replaceable(node: Node, old: Node | None, target: str) -> None:
    if old is None or old is node:
        return
    if isinstance(old, FileNode):
        if isinstance(node, DirectoryNode):
            fail(errno.ENOTDIR, target)
    elif isinstance(node, FileNode):
        fail(errno.EISDIR, target)
    elif old.names:
        fail(errno.ENOTEMPTY, target)
