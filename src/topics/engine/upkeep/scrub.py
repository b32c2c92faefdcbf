"""Scrub: what was deleted, evicted or expired leaves the disk, not only the index.

Of a stopped directory, of all topics; or of some topics beside everything else, which is how an
erasure is finished and shown without a stop. Segments with bytes of what is gone are rewritten (see
rewriting.py). Then a snapshot names the new ones; a second one, so that neither of the two that are
kept needs the old bytes; only then are the old segments, log files, snapshots and copies removed. A
crash anywhere leaves the old segments or the new ones, each complete, and a scrub that was cut
short is simply run again.

Only what was gone when the scrub began is promised to be gone from the files when it ends. The
filesystem and the medium below may keep freed blocks; that is not ours to erase.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator

import msgspec

from topics.engine.commit.core import Core
from topics.engine.state.block import Segment
from topics.engine.state.topic import Topic
from topics.engine.upkeep import relocation
from topics.engine.upkeep.checkpoint import checkpoint
from topics.engine.upkeep.rewriting import ROWS_SLICE, block_at, rewrite
from topics.errors import StorageError, StoreUnreachable
from topics.storage import segment, snapshot
from topics.storage.disk_errors import typed
from topics.storage.fs import join, shown
from topics.storage.tiers import Store


class Scrubbed(msgspec.Struct):
    """What a scrub did."""

    segments_rewritten: int = 0
    segments_removed: int = 0
    records_erased: int = 0
    bytes_erased: int = 0
    copies_removed: list[str] = msgspec.field(default_factory=list)
    # Files that may hold deleted bytes and were left, because they are not ours or were to be kept.
    left: list[str] = msgspec.field(default_factory=list)


def scrub(
    core: Core,
    done: Scrubbed,
    *,
    topics: Collection[Topic] | None = None,
    between: Callable[[], Iterator[None]] = lambda: iter(()),
    is_paced: bool = False,
    keep_aside: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[None]:
    """A scrub in slices, which fills `done`. `keep_aside` leaves broken/ and quarantine/.

    With `topics`, only what these have lost has to go; `between` is done after each segment, and
    `progress` is told how many of them are done. Raises StorageError or DiskFull where it could
    not.
    """
    for topic in list(core.by_id.values()) if topics is None else topics:
        if not topic.dropped:
            core.expire(topic)
    numbers = list(core.segments.live)
    for index, number in enumerate(numbers, 1):
        held = core.segments.live.get(number)
        if held is not None and (yield from _is_soiled(core, held, topics)):
            try:
                rewritten = yield from rewrite(core, [held], is_paced=is_paced)
            except OSError as error:
                raise typed(error, f"segment {number} can not be rewritten") from error
            done.segments_rewritten += rewritten.segments
            done.records_erased += rewritten.records_erased
            done.bytes_erased += rewritten.bytes_erased
            yield from between()
        if progress is not None:
            progress(index, len(numbers))
        yield
    spent = set(core.segments.garbage)
    before = set(core.data.fs.listdir(core.data.segments))
    with core.sealing():
        yield from checkpoint(core)
        yield from checkpoint(core)
        if core.unsealed.is_untrimmed or not spent.isdisjoint(core.segments.garbage):
            raise StorageError("the log can not be trimmed: a snapshot can not be read; try again")
        done.segments_removed = len(before.difference(core.data.fs.listdir(core.data.segments)))
        yield from relocation.relocate(core)
    with core.tiering.alone():
        yield from core.tiering.finish()
        used = {held.number for held in core.segments.live.values() if held.is_cold}
        yield from core.background.run(lambda: _remove_stray_objects(core, used, done))
        core.tiering.unneeded.clear()
    data = core.data
    # In the directory itself a server that runs has unfinished files of its own, with no records.
    own = [data.broken, data.quarantine, data.snapshots, data.segments]
    where = [*own, data.root] if topics is None else own
    yield from core.background.run(lambda: _remove_copies(core, done, where, keep_aside=keep_aside))


def _is_soiled(
    core: Core, held: Segment, topics: Collection[Topic] | None
) -> Generator[None, None, bool]:
    """Whether it holds bytes of what is gone: of these topics, or of ones that are not there."""
    if not held.dead_bytes and core.segments.is_exact:
        return False
    for index, row in enumerate(held.info.rows):
        if index % ROWS_SLICE == ROWS_SLICE - 1:
            yield
        owner = core.by_id.get(row.topic_id)
        if topics is not None and owner is not None and owner not in topics:
            continue
        found = block_at(core, held, row)
        if found is None:
            if row.payload_bytes:
                return True
            continue
        topic, block = found
        live_bytes = block.live_bytes
        if not core.segments.is_exact and (block.dead_count or block.first < topic.floor):
            spans = core.segments.exact_spans(block)
            live = block.live_runs(max(topic.floor - block.first, 0), block.count)
            live_bytes = sum(spans.span(a, b) for a, b in live)
            yield
        if live_bytes < row.payload_bytes:
            return True
    return False


def _remove_copies(core: Core, done: Scrubbed, directories: list[str], *, keep_aside: bool) -> None:
    """Copies of damaged, unknown or unfinished files: nobody can say what is in them."""
    data = core.data
    for directory in directories:
        aside = directory in (data.broken, data.quarantine)
        for name in data.fs.listdir(directory):
            path = join(directory, name)
            where = shown(path.removeprefix(data.root).lstrip("/"))
            if not aside and not name.endswith(".tmp"):
                continue
            if aside and keep_aside:
                done.left.append(where)
                continue
            try:
                data.fs.unlink(path)
            except OSError:
                # A directory, or a file of somebody else.
                done.left.append(where)
            else:
                done.copies_removed.append(where)
        data.fs.sync_dir(directory)
    for name in data.fs.listdir(data.wal):
        if not name.endswith(".wal"):
            done.left.append(f"wal/{shown(name)}")
    for name in data.fs.listdir(data.snapshots):
        if snapshot.parse_file_name(name) is None:
            done.left.append(f"snap/{shown(name)}")


def _remove_stray_objects(core: Core, used: set[int], done: Scrubbed) -> None:
    """Objects of ours in the cold store that no segment needs: copies of a move cut short."""
    store = core.segments.store
    if store is None:
        return
    try:
        _delete_unused(core, store, used, done)
    except OSError as error:
        raise StoreUnreachable(
            "the cold store can not be reached: it may hold erased bytes; scrub again"
        ) from error


def _delete_unused(core: Core, store: Store, used: set[int], done: Scrubbed) -> None:
    store.sweep()
    for name in store.list():
        number = segment.parse_file_name(name)
        if number is None or number >= core.numbers.next_segment:
            done.left.append(f"cold:{shown(name)}")
        elif number not in used:
            store.delete(name)
            done.copies_removed.append(f"cold:{name}")
