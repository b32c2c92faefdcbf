"""Records that come back: frames of appends become runs, and runs are published.

Frames of single records, of which there may be a great many, are gathered first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.state import retention
from topics.engine.state.topic import Topic
from topics.storage import columns as columns_codec
from topics.storage.columns import Columns
from topics.storage.frames import Groups

# Frames of single records are gathered into runs of at most this many bytes.
RUN_BYTES_MAX = 256 * 1024


class Records(ABC):
    """What Replay does with records; it knows of no other frames."""

    core: Core

    @abstractmethod
    def goes_on(self, topic: Topic, first: int) -> bool:
        """Whether a frame of seqs from `first` on counts."""

    def appends(self, topic: Topic, groups: Groups, first: int, stop: int) -> None:
        table = groups.frames
        single = (table["count"][first:stop] == 1) & (table["flags"][first:stop] == 0)
        edges = np.flatnonzero(single[1:] != single[:-1]) + 1 + first
        bounds = [first, *edges.tolist(), stop]
        for start, end in pairwise(bounds):
            if single[start - first]:
                self._singles(topic, groups, start, end)
            else:
                for index in range(start, end):
                    self._frame(topic, groups, index)

    def _singles(self, topic: Topic, groups: Groups, first: int, stop: int) -> None:
        """Frames of one plain record each, as few runs."""
        seqs = groups.frames["first"][first:stop].astype(np.int64)
        breaks = (np.flatnonzero(np.diff(seqs) != 1) + 1 + first).tolist()
        for start, end in zip([first, *breaks], [*breaks, stop], strict=True):
            self._run(topic, groups, start, end)

    def _run(self, topic: Topic, groups: Groups, first: int, stop: int) -> None:
        """Frames of consecutive seqs."""
        table = groups.frames[first:stop]
        seq = int(table["first"][0])
        if not self.goes_on(topic, seq):
            return
        fresh = topic.head + 1 - seq
        if fresh >= len(table):
            return
        sizes = table["size"].astype(np.int64)
        room = max(int(RUN_BYTES_MAX // max(int(sizes.mean()), 1)), 1)
        for start in range(fresh, len(table), room):
            end = min(start + room, len(table))
            self.publish(topic, seq + start, groups.singles(first + start, first + end))

    def _frame(self, topic: Topic, groups: Groups, index: int) -> None:
        row = groups.frames[index]
        first, count, ts = int(row["first"]), int(row["count"]), int(row["ts"])
        columns, key = groups.columns(index)
        if key and not int(row["flags"]) & columns_codec.MOVED:
            self.core.remember_key(topic, key, first, count, ts)
        if first + count - 1 <= topic.head:
            return
        if first <= topic.head:
            columns = columns.cut(topic.head + 1 - first, count)
            first = topic.head + 1
        if self.goes_on(topic, first):
            self.publish(topic, first, columns)

    def publish(self, topic: Topic, first: int, columns: Columns) -> None:
        load = self.core.segments.spans
        self.core.unsealed.add(len(columns.ends), len(columns.payload))
        topic.publish(first, columns, self.core.settings.block_bytes)
        if columns.tags is not None and not topic.config.is_bucket:
            topic.add_tags(columns.tags, first)
        config = topic.config
        if (config.cap_records or config.cap_bytes) and config.durability != "ephemeral":
            # What had expired before is gone by now: its FLOOR frame comes first.
            retention.evict(topic, load)
