"""One file of a BufferedFs: what its backing holds, and the unsynced pages in front of it.

The backing is a file of the inner Fs, or memory while the name is not yet durable: a crash would
leave such a file unreachable, so its synced bytes need no better home. Nothing here but
`write_through`, `allocate` and `materialise` changes the backing. The caller holds the lock.
"""

from __future__ import annotations

from topics.storage.fs import File, Fs
from topics.testing.sparsebytes import PAGE_BYTES, SparseBytes


class MemoryFile:
    def __init__(self) -> None:
        self.path = ""
        self.content = SparseBytes()

    def pread(self, length: int, offset: int) -> bytes:
        return self.content.read(length, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.content.write(bytes(data), offset)

    def sync(self) -> None:
        pass

    def allocate(self, length: int) -> None:
        self.content.reserve(length)

    def truncate(self, length: int) -> None:
        self.content.truncate(length)

    def size(self) -> int:
        return self.content.size

    def close(self) -> None:
        pass


class BufferedNode:
    __slots__ = (
        "_allocated",
        "_backing",
        "_dirty",
        "_floor",
        "_is_shrunk",
        "handles",
        "inner_path",
        "size",
    )

    def __init__(self, inner_path: str | None) -> None:
        self.inner_path = inner_path
        self.handles = 0
        self.size = 0
        self._backing: File | None = MemoryFile() if inner_path is None else None
        self._dirty: dict[int, bytes] = {}
        # Bytes of the backing at or beyond the floor were truncated away since the last sync.
        self._floor = 0
        self._is_shrunk = False
        self._allocated = 0

    def acquire(self, fs: Fs) -> None:
        if self._backing is None:
            assert self.inner_path is not None
            self._backing = fs.open(self.inner_path)
            if not self._is_changed():
                self.size = self._floor = self._backing.size()
        self.handles += 1

    def release(self) -> None:
        self.handles -= 1
        if self.handles == 0 and self.inner_path is not None:
            self._open_backing().close()
            self._backing = None

    def is_disposable(self) -> bool:
        """Whether another node made from the inner Fs would be just like this one."""
        return self.handles == 0 and self.inner_path is not None and not self._is_changed()

    def _is_changed(self) -> bool:
        return bool(self._dirty or self._allocated or self._is_shrunk or self._floor != self.size)

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        if not self._dirty and end <= self._floor:
            return self._open_backing().pread(end - offset, offset)
        first = offset // PAGE_BYTES
        pages = [self._page(page) for page in range(first, (end - 1) // PAGE_BYTES + 1)]
        start = first * PAGE_BYTES
        return b"".join(pages)[offset - start : end - start]

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        end = offset + len(data)
        for page in range(offset // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1):
            base = page * PAGE_BYTES
            start, upto = max(offset, base), min(end, base + PAGE_BYTES)
            piece = data[start - offset : upto - offset]
            if len(piece) < PAGE_BYTES:
                old = self._page(page)
                piece = old[: start - base] + piece + old[upto - base :]
            self._dirty[page] = piece
        self.size = max(self.size, end)

    def truncate(self, length: int) -> None:
        tail_page, tail = divmod(length, PAGE_BYTES)
        for page in [page for page in self._dirty if page >= tail_page]:
            if page > tail_page or not tail:
                del self._dirty[page]
            else:
                self._dirty[page] = self._dirty[page][:tail].ljust(PAGE_BYTES, b"\0")
        self.size = length
        self._is_shrunk = self._is_shrunk or length < self._floor
        self._floor = min(self._floor, length)
        self._allocated = min(self._allocated, length)

    def allocate(self, length: int) -> None:
        """Takes the room at once, so that ENOSPC comes from here and not from a sync."""
        self._open_backing().allocate(length)
        self._allocated = max(self._allocated, length)
        self.size = max(self.size, length)

    def write_through(self) -> File:
        """Brings the backing up to date and returns it, for the caller to sync."""
        backing = self._open_backing()
        if self._is_shrunk:
            backing.truncate(self._floor)
        if self._allocated:
            backing.allocate(self._allocated)
        for page, data in sorted(self._dirty.items()):
            base = page * PAGE_BYTES
            backing.pwrite(data[: self.size - base], base)
        if backing.size() != self.size:
            backing.truncate(self.size)
        self._dirty = {}
        self._floor = self.size
        self._is_shrunk = False
        self._allocated = 0
        return backing

    def materialise(self, fs: Fs, path: str) -> None:
        """Moves the synced bytes from memory to `path` of the inner Fs, and syncs them there."""
        memory = self._open_backing()
        assert isinstance(memory, MemoryFile)
        file = fs.open(path, create=True)
        try:
            file.truncate(0)
            if memory.content.pages:
                file.allocate(max(memory.content.size, 1))
            for page, data in sorted(memory.content.pages.items()):
                base = page * PAGE_BYTES
                file.pwrite(data[: memory.content.size - base], base)
            file.truncate(memory.content.size)
            file.sync()
        except BaseException:
            file.close()
            raise
        self.inner_path = path
        self._backing = file
        if self.handles == 0:
            self.handles = 1
            self.release()

    def _open_backing(self) -> File:
        assert self._backing is not None, "a node is used only through its handles"
        return self._backing

    def _page(self, page: int) -> bytes:
        if page in self._dirty:
            return self._dirty[page]
        base = page * PAGE_BYTES
        held = max(0, min(self._floor - base, PAGE_BYTES))
        data = self._open_backing().pread(held, base) if held else b""
        return data.ljust(PAGE_BYTES, b"\0")
