"""What the log has and no segment: it says when the next checkpoint is due."""

from __future__ import annotations


class Unsealed:
    def __init__(self) -> None:
        # Records published since the last checkpoint began, or replayed, and their bytes.
        self.records = 0
        self.bytes = 0
        # The log that recovery read: its bytes, and how many starts have left a part of it.
        self.replayed_bytes = 0
        self.replayed_generations = 0
        # Whether there are less than two snapshots, so that nothing of the log could be trimmed.
        self.is_untrimmed = False
        # Whether the log has records that were sealed by the last checkpoint, or may have some that
        # a start left: they go with the next.
        self.is_held = True

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size

    def replay(self, size: int) -> None:
        self.replayed_bytes += size

    def begin(self, generations: int) -> None:
        """So many starts have left a part of the log that is read now."""
        self.replayed_generations = generations

    def seal(self) -> None:
        """A checkpoint begins, which takes all of it."""
        self.is_held = self.records > 0
        self.records = self.bytes = self.replayed_generations = 0

    def trim(self, snapshots: int) -> bool:
        """Notes how many snapshots can be read; True when the log can be trimmed."""
        self.is_untrimmed = snapshots < 2
        return not self.is_untrimmed
