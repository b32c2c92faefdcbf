"""The two kinds of inode of a FakeDisk: what is durable, what is cached, what is pending.

A file node promises that each sector of a crash image holds the content of the page cache at one
moment since the last sync: keeping a later write of a sector keeps the earlier ones in it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from topics.testing.crashplan import LOST, FileOperation, Judge, NameOperation, Survival
from topics.testing.sparsebytes import PAGE_BYTES, SparseBytes

SyncEffect = Literal["dropped", "persisted", "cached", "ignored"]


class FileNode:
    __slots__ = ("base", "cache", "durable", "ino", "pending")

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.durable = SparseBytes()
        self.cache = SparseBytes()
        self.pending: list[FileOperation] = []
        # The cache as it was when `pending` began, where that differs from `durable`: pages that a
        # failed sync marked clean are readable, yet no later sync writes them.
        self.base: SparseBytes | None = None

    def clone(self) -> FileNode:
        twin = FileNode(self.ino)
        twin.durable = self.durable.copy()
        twin.cache = self.cache.copy()
        twin.pending = self.pending.copy()
        twin.base = None if self.base is None else self.base.copy()
        return twin

    def apply(self, operation: FileOperation) -> None:
        _apply(self.cache, operation)
        self.pending.append(operation)

    def sync(self) -> None:
        if self.base is None:
            self.durable = self.cache.copy()
        else:
            self.durable = self.image([_written_back(operation) for operation in self.pending])
            self.durable.truncate(self.cache.size)
            self.base = self.cache.copy()
        self.pending.clear()

    def fail_sync(self, effect: SyncEffect) -> None:
        if effect == "persisted":
            self.sync()
        elif effect == "dropped":
            self.cache = self.durable.copy()
            self.base = None
            self.pending.clear()
        elif effect == "cached":
            self.base = self.cache.copy()
            self.pending.clear()

    def crashed(self, judge: Judge) -> FileNode:
        survivor = FileNode(self.ino)
        survivals = judge.file(self.ino, self.pending) if self.pending else []
        if all(survival is LOST for survival in survivals):
            survivor.durable = self.durable.copy()
        else:
            survivor.durable = self.image(survivals)
        survivor.cache = survivor.durable.copy()
        return survivor

    def image(self, survivals: Sequence[Survival]) -> SparseBytes:
        """The durable content after a crash in which `survivals` of the pending operations did."""
        cache = (self.durable if self.base is None else self.base).copy()
        image = self.durable.copy()
        for operation, survival in zip(self.pending, survivals, strict=True):
            _apply(cache, operation)
            if operation.kind != "write":
                if survival.size == "all":
                    _apply(image, operation)
                continue
            limit = image.size if survival.size == "none" else max(image.size, cache.size)
            for start, end in survival.ranges:
                image.write(cache.read_padded(start, min(end, limit)), start)
            if survival.size == "all" and image.size < cache.size:
                image.truncate(cache.size)
        return image


def _written_back(operation: FileOperation) -> Survival:
    """Write-back works in pages: bytes a failed sync left behind in a page go along with it."""
    start = operation.offset // PAGE_BYTES * PAGE_BYTES
    end = -(-(operation.offset + operation.length) // PAGE_BYTES) * PAGE_BYTES
    return Survival(((start, end),), "all")


def _apply(content: SparseBytes, operation: FileOperation) -> None:
    if operation.kind == "write":
        content.write(operation.data, operation.offset)
    elif operation.kind == "truncate":
        content.truncate(operation.length)
    else:
        content.reserve(operation.length)


class DirectoryNode:
    __slots__ = ("durable", "ino", "names", "pending")

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.durable: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.pending: list[NameOperation] = []

    def clone(self) -> DirectoryNode:
        twin = DirectoryNode(self.ino)
        twin.durable = self.durable.copy()
        twin.names = self.names.copy()
        twin.pending = self.pending.copy()
        return twin

    def apply(self, operation: NameOperation) -> None:
        apply_name(self.names, operation)
        self.pending.append(operation)

    def inos(self) -> set[int]:
        """Every node that some crash could still reach from here."""
        found = {*self.names.values(), *self.durable.values()}
        found.update(operation.ino for operation in self.pending)
        return found


def apply_name(names: dict[str, int], operation: NameOperation) -> None:
    if operation.kind in ("unlink", "rename-out"):
        names.pop(operation.name, None)
        return
    if operation.source is not None:
        names.pop(operation.source, None)
    names[operation.name] = operation.ino


def touched(operation: NameOperation) -> tuple[str, ...]:
    return (operation.name,) if operation.source is None else (operation.name, operation.source)
