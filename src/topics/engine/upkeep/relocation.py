"""Relocation: the oldest segments go to the cold store when the hot ones outgrow their bound.

At every step one complete copy is readable: the object is stored whole, then its table, flags and
spans are written beside the hot file and synced, then reads switch, and only then the hot file
goes. Objects that nothing needs any more are deleted after their local files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from topics.engine.commit.core import Core
from topics.engine.state.block import Segment
from topics.engine.upkeep.flagging import write_flags
from topics.storage import cold
from topics.storage import segment as codec
from topics.storage.flags import doubtful
from topics.storage.fs import join, opened

LOG = logging.getLogger("topics.engine")

# The time that a checkpoint waits for a slow store; relocation goes on beside the next one.
PATIENCE_S = 5.0


def relocate(core: Core) -> Iterator[None]:
    """Moves segments until the hot tier fits, as long as the store is quick about it."""
    tiering = core.tiering
    tiering.look()
    stop_s = core.clock.monotonic_s() + PATIENCE_S
    while True:
        tiering.tend()
        yield from switch(core)
        is_late = core.clock.monotonic_s() >= stop_s
        if not tiering.is_waiting or is_late:
            return
        yield from core.background.wait()


def switch(core: Core) -> Iterator[None]:
    """Lets reads of the stored segments go to their objects; one segment at each step."""
    stored = core.tiering.stored
    for number, spans in list(stored.items()):
        held = core.segments.live.get(number)
        if held is not None:
            yield from _switch(core, held, spans)
        # Not sooner: until it has switched it would be taken for one that is still to be stored.
        stored.pop(number, None)
        yield


def _switch(core: Core, held: Segment, spans: list[bytes]) -> Iterator[None]:
    segments, data = core.segments, core.data
    path = join(data.segments, codec.file_name(held.number))
    # Deletes made since it was stored are in the hot file's flag area behind this, or in memory.
    yield from write_flags(core, held)
    if held.number not in segments.live:
        return
    with opened(data.fs, path, writable=False) as file:
        flags = file.pread(held.info.flag_count, held.info.flags_at)
    if doubtful(held.info.rows, flags, held.flag_sums):
        # What was read is not what was written: the hot file, where that can be told, stays.
        LOG.error("segment %d: its delete flags were not read as they are; not moved", held.number)
        return
    cold.write(data.fs, data.segments, held.info, flags, spans)
    held.is_cold = True
    segments.close_file(held.number)
    data.fs.unlink(path)
    data.fs.sync_dir(data.segments)
