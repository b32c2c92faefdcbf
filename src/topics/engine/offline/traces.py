"""What records that were erased would look like in the files of a log.

A record's data is on disk as the client sent it. A value that is found there counts when the record
around it is one of those that were erased, or when no record is around it and the value is too long
to be there by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap

from topics.engine.state.record import data_places

# A value that is nowhere by chance.
_TEXT_BYTES = 8
_KEY_BYTES = 4


class Traces:
    """The records to look for."""

    def __init__(self) -> None:
        # By epoch and seq.
        self.places: set[tuple[str, int]] = set()
        self._times: set[tuple[int, int]] = set()
        # JSON texts by how they begin.
        self._texts: dict[bytes, set[bytes]] = {}

    def add(self, epoch: str, seq: int, ts_ms: int, data: bytes) -> None:
        self.places.add((epoch, seq))
        self._times.add((seq, ts_ms))
        self._texts.setdefault(data[:_KEY_BYTES], set()).add(data)

    def texts(self) -> Iterator[bytes]:
        """The values that are nowhere by chance."""
        for texts in self._texts.values():
            yield from (text for text in texts if len(text) >= _TEXT_BYTES)

    def is_in(self, content: bytes | mmap) -> bool:
        """Whether the bytes of a log's file hold one of the records."""
        for at, record in data_places(content):
            text = self._text_at(content, at)
            if text is None:
                continue
            if record in self._times or (record is None and len(text) >= _TEXT_BYTES):
                return True
        return False

    def _text_at(self, content: bytes | mmap, at: int) -> bytes | None:
        start = content[at : at + _KEY_BYTES]
        for length in range(1, len(start) + 1):
            for text in self._texts.get(start[:length], ()):
                is_whole = content[at + len(text) : at + len(text) + 1] in (b",", b"}", b"")
                if is_whole and content[at : at + len(text)] == text:
                    return text
        return None
