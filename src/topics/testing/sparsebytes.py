"""File content as shared immutable pages, so that copying a disk costs pointers and not bytes.

A page absent from `pages` is a hole: it reads as zeros and occupies no room. Every page is exactly
`PAGE_BYTES` long, and bytes at or beyond `size` are zero; extending a file relies on that.
"""

from __future__ import annotations

from typing import Protocol

SECTOR_BYTES = 512
PAGE_BYTES = 4096
ZERO_PAGE = bytes(PAGE_BYTES)


class Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...


class SparseBytes:
    __slots__ = ("pages", "size")

    def __init__(self, pages: dict[int, bytes] | None = None, size: int = 0) -> None:
        self.pages = {} if pages is None else pages
        self.size = size

    def copy(self) -> SparseBytes:
        return SparseBytes(self.pages.copy(), self.size)

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; shorter only at the end of the file."""
        return self.read_padded(offset, max(offset, min(offset + length, self.size)))

    def read_padded(self, start: int, end: int) -> bytes:
        """Exactly `end - start` bytes, zeros beyond the end of the file."""
        if end <= start:
            return b""
        first, last = start // PAGE_BYTES, (end - 1) // PAGE_BYTES
        base = first * PAGE_BYTES
        if first == last:
            return self.pages.get(first, ZERO_PAGE)[start - base : end - base]
        get = self.pages.get
        whole = b"".join([get(page, ZERO_PAGE) for page in range(first, last + 1)])
        return whole[start - base : end - base]

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        end = offset + len(data)
        position = offset
        while position < end:
            page = position // PAGE_BYTES
            base = page * PAGE_BYTES
            upto = min(end, base + PAGE_BYTES)
            piece = data[position - offset : upto - offset]
            if len(piece) < PAGE_BYTES:
                old = self.pages.get(page, ZERO_PAGE)
                piece = old[: position - base] + piece + old[upto - base :]
            self.pages[page] = piece
            position = upto
        self.size = max(self.size, end)

    def truncate(self, length: int) -> None:
        if length < self.size:
            keep_pages = -(-length // PAGE_BYTES)
            for page in [page for page in self.pages if page >= keep_pages]:
                del self.pages[page]
            tail = length % PAGE_BYTES
            if tail and keep_pages - 1 in self.pages:
                kept = self.pages[keep_pages - 1][:tail]
                self.pages[keep_pages - 1] = kept + ZERO_PAGE[tail:]
        self.size = length

    def reserve(self, length: int) -> None:
        """Fills holes below `length` with zero pages that occupy room; never shrinks."""
        for page in range(-(-length // PAGE_BYTES)):
            self.pages.setdefault(page, ZERO_PAGE)
        self.size = max(self.size, length)

    def fitting_bytes(self, length: int, offset: int, *, free_pages: int) -> int:
        """How many of `length` bytes at `offset` can be written with `free_pages` new pages."""
        for page in range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)):
            if page not in self.pages:
                if free_pages == 0:
                    return max(0, page * PAGE_BYTES - offset)
                free_pages -= 1
        return length

    def update_hash(self, hasher: Hasher) -> None:
        """Feeds size and content; holes and pages of zeros are the same content."""
        hasher.update(self.size.to_bytes(8, "little"))
        for page in sorted(self.pages):
            data = self.pages[page]
            if data is not ZERO_PAGE and data != ZERO_PAGE:
                hasher.update(page.to_bytes(8, "little"))
                hasher.update(data)
