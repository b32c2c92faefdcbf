"""What has happened to records since the engine was opened, as plain numbers for metrics."""

from __future__ import annotations

from collections import Counter


class Tally:
    """Nothing of it is on disk: the next start counts from 0.

    `appended` are records that became readable, copies of routers included. `read` are those that
    readers were given: by a diff, a range, a watch or a claim. `lost` are the seqs that recovery
    had to give up, by state; some of them may never have been told to anybody.
    """

    __slots__ = ("appended", "dead_lettered", "evicted", "expired", "lost", "read")

    def __init__(self) -> None:
        self.appended = 0
        self.read = 0
        self.evicted = 0
        self.expired = 0
        self.dead_lettered = 0
        self.lost: Counter[int] = Counter()
