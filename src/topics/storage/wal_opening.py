"""How the log of a start begins: the first file of each shard, also where there is little room."""

from __future__ import annotations

from topics.errors import Poisoned
from topics.storage import frames
from topics.storage.disk_errors import FULL
from topics.storage.fs import discard
from topics.storage.wal import START_BYTES, Shard


def start_bytes(needed: int) -> int:
    """How large the first file of a shard is at least when a start writes so much to it.

    A quarter of it may be kept for the next one.
    """
    if needed <= START_BYTES // 2:
        return START_BYTES
    return frames.padded((needed + START_BYTES) * 4 // 3)


def open_shards(shards: list[Shard], capacity: int, capacity_min: int) -> None:
    """Makes the first file of each shard, smaller ones on a disk without room for whole ones.

    Then deletes can be written, and the next write that needs a whole file asks for it again.
    Raises OSError with nothing left behind.
    """
    opened: list[Shard] = []
    while len(opened) < len(shards):
        shard = shards[len(opened)]
        try:
            shard.open(capacity)
            opened.append(shard)
        except (OSError, Poisoned) as error:
            shard.marks.begin_again()
            for other in opened:
                other.close()
                discard(other.fs, other.current.path)
            opened.clear()
            is_full = isinstance(error, OSError) and error.errno in FULL
            if not is_full or capacity <= capacity_min:
                raise
            capacity = max(capacity // 4, capacity_min)
