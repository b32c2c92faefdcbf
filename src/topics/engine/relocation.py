"""Relocation: the oldest segments go to the cold store when the hot ones outgrow their bound.

At every step one complete copy is readable: the object is stored whole, then its table and flags
are written beside the hot file and synced, then reads switch, and only then the hot file goes.
"""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.core import Core
from topics.engine.flagging import write_flags
from topics.engine.segments import Segment
from topics.storage import cold
from topics.storage import segment as codec
from topics.storage.fs import join, opened

PART_BYTES = 4 * 1024 * 1024


def relocate(core: Core) -> Iterator[None]:
    """Moves segments until the hot tier fits; one segment at each step."""
    if core.segments.store is None:
        return
    hot = [held for held in core.segments.live.values() if not held.is_cold]
    hot.sort(key=lambda held: held.number)
    total = sum(held.info.size for held in hot)
    for held in hot:
        if total <= core.settings.hot_bytes:
            return
        total -= held.info.size
        yield from _move(core, held)


def _move(core: Core, held: Segment) -> Iterator[None]:
    segments, data = core.segments, core.data
    assert segments.store is not None
    yield from write_flags(core, held)
    name = codec.file_name(held.number)
    path = join(data.segments, name)
    yield from core.in_background(lambda: _copy(core, path, name))
    if held.number not in segments.live:
        return
    # Deletes made during the copy are in the hot file's flag area by now, or still in memory.
    yield from write_flags(core, held)
    if held.number not in segments.live:
        return
    with opened(data.fs, path, writable=False) as file:
        flags = file.pread(held.info.flag_count, held.info.flags_at)
    cold.write(data.fs, data.segments, held.info, flags)
    held.is_cold = True
    segments.close_file(held.number)
    data.fs.unlink(path)
    data.fs.sync_dir(data.segments)
    yield


def _copy(core: Core, path: str, name: str) -> None:
    store = core.segments.store
    assert store is not None
    with opened(core.data.fs, path, writable=False) as file:
        size = file.size()
        offsets = range(0, size, PART_BYTES)
        store.put(name, (file.pread(min(PART_BYTES, size - at), at) for at in offsets))
    if store.size(name) != size:
        raise OSError(f"cold copy of {name} is not whole")
