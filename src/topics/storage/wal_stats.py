"""What the log counts of itself, for metrics; all shards count together."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

SYNC_EDGES_US = (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000)


@dataclass(slots=True)
class WalStats:
    frames_total: int = 0
    batches_total: int = 0
    bytes_written_total: int = 0
    fsyncs_total: int = 0
    rotations_total: int = 0
    submit_full_total: int = 0
    # The most frames of one shard that were on their way at once.
    queue_depth_peak: int = 0
    # Whether the last write found no space.
    is_full: bool = False
    # How often there was room again after that, as for a delete that takes what is kept for it.
    returns_total: int = 0
    # How many syncs took at most as long as each edge; the last count is of all that took longer.
    sync_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_EDGES_US) + 1))
    sync_us_sum: float = 0.0

    def note_sync(self, seconds: float) -> None:
        us = seconds * 1e6
        self.sync_counts[bisect_left(SYNC_EDGES_US, us)] += 1
        self.sync_us_sum += us
