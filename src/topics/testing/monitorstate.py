"""What MonitorFs knows of one file and of one name: which bytes no sync has covered yet."""

from __future__ import annotations

from dataclasses import dataclass, field

Range = tuple[int, int]


@dataclass(slots=True, eq=False)
class BegunSync:
    """What a sync in progress will vouch for: the state at its start, not at its end."""

    unsynced: list[Range]
    size: int
    is_resized: bool


@dataclass(slots=True)
class FileState:
    synced_size: int = 0
    is_resized: bool = False
    has_failed_sync: bool = False
    unsynced: list[Range] = field(default_factory=list)
    in_progress: list[BegunSync] = field(default_factory=list)

    def mark_unsynced(self, start: int, end: int) -> None:
        if end > start:
            self.unsynced = _merged([*self.unsynced, (start, end)])

    def mark_resized(self, size: int, length: int) -> None:
        self.is_resized = True
        self.unsynced = [
            (start, min(end, length)) for start, end in self.unsynced if start < length
        ]
        self.synced_size = min(self.synced_size, length)
        self.mark_unsynced(size, length)

    def begin_sync(self, size: int) -> BegunSync:
        begun = BegunSync(self.unsynced, size, self.is_resized)
        self.unsynced = []
        self.is_resized = False
        self.in_progress.append(begun)
        return begun

    def end_sync(self, begun: BegunSync) -> None:
        self.in_progress.remove(begun)
        # A truncation while the sync ran has already lowered what may be promised.
        self.synced_size = begun.size if not self.is_resized else min(self.synced_size, begun.size)

    def fail_sync(self, begun: BegunSync) -> None:
        self.in_progress.remove(begun)
        self.unsynced = _merged([*self.unsynced, *begun.unsynced])
        self.is_resized = self.is_resized or begun.is_resized
        self.has_failed_sync = True

    def is_unsynced(self) -> bool:
        return bool(self.unsynced or self.in_progress or self.is_resized or self.has_failed_sync)

    def is_durable(self, upto: int) -> bool:
        return self.synced_size >= upto and all(start >= upto for start, _ in self._open_ranges())

    def unsynced_bytes(self) -> int:
        return sum(end - start for start, end in _merged(self._open_ranges()))

    def _open_ranges(self) -> list[Range]:
        return [*self.unsynced, *(one for begun in self.in_progress for one in begun.unsynced)]


@dataclass(slots=True, eq=False)
class NameState:
    """`file` is None for a directory."""

    file: FileState | None
    is_durable: bool


def _merged(ranges: list[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
