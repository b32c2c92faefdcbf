"""What a bucket lacks since compaction removed something: three numbers that only go up.

They go with the frame of the delete and into snapshots, so that what is gone is known to be.
"""

from __future__ import annotations

from typing import NamedTuple


class Lacking(NamedTuple):
    # The highest seq of what superseded something removed: from here on every state is whole.
    whole_from: int = 0
    # The highest version that was removed while something older of its key was left.
    gapped_seq: int = 0
    # The highest marker that was removed: who is behind it has not seen it, and never will.
    unmarked_seq: int = 0

    def with_more(self, other: Lacking) -> Lacking:
        return Lacking(*map(max, self, other))


NOTHING = Lacking()
