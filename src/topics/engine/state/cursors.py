"""The cursors of one topic: durable, named places of readers. See ops/cursors.py for the rules."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topics.types import Cursor


class CursorFrame(msgspec.Struct, array_like=True):
    """What a CURSOR frame says: a cursor as it now stands, or None when it was deleted."""

    version: int
    name: str
    cursor: Cursor | None


class Cursors:
    """The cursors of one topic: as they stand, and as they will when all that is staged is."""

    __slots__ = ("assigned", "latest", "standing", "version")

    def __init__(self, cursors: Iterable[Cursor] = (), version: int = 0) -> None:
        self.standing = {cursor.name: cursor for cursor in cursors}
        self.latest = dict(self.standing)
        # The version of the last frame that was applied, and of the last one that was staged.
        self.version = self.assigned = version

    def assign(self, name: str, cursor: Cursor | None) -> CursorFrame:
        """What a frame says that is about to be staged: a cursor as it will stand."""
        self.assigned += 1
        self.expect(name, cursor)
        return CursorFrame(self.assigned, name, cursor)

    def expect(self, name: str, cursor: Cursor | None) -> None:
        """So it will stand when all that is staged is applied."""
        _set(self.latest, name, cursor)

    def fold(self, frame: CursorFrame) -> bool:
        """Applies a frame; False when it was applied before."""
        if frame.version <= self.version:
            return False
        self.version = frame.version
        _set(self.standing, frame.name, frame.cursor)
        if frame.version > self.assigned:
            # It comes from the log: nobody here has staged it.
            self.assigned = frame.version
            _set(self.latest, frame.name, frame.cursor)
        return True

    def dump(self) -> tuple[list[Cursor], int]:
        """What a snapshot keeps: nothing of what is still on its way to the disk."""
        return list(self.standing.values()), self.version

    def holds(self) -> tuple[Cursor, ...]:
        return tuple(cursor for cursor in self.standing.values() if cursor.hold is not None)


def _set(cursors: dict[str, Cursor], name: str, cursor: Cursor | None) -> None:
    if cursor is None:
        cursors.pop(name, None)
    else:
        cursors[name] = cursor
