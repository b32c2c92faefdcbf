"""What a router forwards next: a bounded piece of its source, rendered for its destination."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from topics.engine.commit.core import Core
from topics.engine.ops.growth import UNBOUNDED, charge, room
from topics.engine.state.block import Block
from topics.engine.state.copies import RouterStamp, copies
from topics.engine.state.explaining import states
from topics.engine.state.kinds import RANGE, is_marker
from topics.engine.state.record import router_mark
from topics.engine.state.router_frames import Run
from topics.engine.state.routers import Router
from topics.engine.state.segments import ColdMiss
from topics.engine.state.topic import Topic
from topics.errors import RecordTooLarge, TopicFull
from topics.storage.columns import Columns
from topics.types import DELETED, LIVE, SOURCE_TRIM, UNASSIGNED

RECORDS_MAX = 1000
BYTES_MAX = 1024 * 1024


# Copies, or None for a hole.
Piece = Columns | None


@dataclass(slots=True)
class Plan:
    """The new cursor, the runs for the log and the pieces for the destination."""

    cursor: int
    runs: list[Run] = field(default_factory=list)
    pieces: list[tuple[int, Piece]] = field(default_factory=list)
    count: int = 0
    copied: int = 0
    size: int = 0
    # What of that needs room.
    charged: int = 0
    charged_bytes: int = 0
    # Whether some of it is copied from the cold store.
    is_cold: bool = False
    # The bytes of the first copy for which there was no room.
    refused_bytes: int = 0


def plan(core: Core, router: Router, upto: int, ts: int) -> Plan:
    """Looks at up to RECORDS_MAX source records.

    Raises TopicFull when not even one has room, RecordTooLarge when the next one never will have,
    ColdMiss when not even one is within reach.
    """
    source, dest = router.source, router.dest
    found = Plan(router.ahead.cursor)
    looks = RECORDS_MAX
    records, size = room(core, dest)
    if not _knows_enough(core, router):
        return found
    for low, high, state in states(source, found.cursor + 1, upto):
        if state == UNASSIGNED or looks <= 0 or found.size >= BYTES_MAX:
            break
        if state == LIVE:
            high = min(high, low + looks - 1)
            looks -= high - low + 1
            try:
                for columns, block, indexes, stop in _live(core, router, low, high):
                    fits = _add(found, columns, indexes, block, router, ts, records, size)
                    if fits < len(indexes):
                        found.cursor = block.first + indexes[fits] - 1
                        return _at_least_one(found, router)
                    found.cursor = stop - 1
                    if found.size >= BYTES_MAX:
                        break
            except ColdMiss:
                if found.cursor == router.ahead.cursor:
                    raise
                return found
            continue
        if state != DELETED:
            _tell(core, router, found, low, high)
        found.cursor = high
    return found


def _tell(core: Core, router: Router, found: Plan, low: int, high: int) -> None:
    """Adds what could not be copied, but for what has been told all the way round a cycle."""
    hops_max = _hops_max(core, router)
    for first, last, hops in hole_runs(core, router.source, low, high):
        if hops < hops_max:
            found.runs.append((SOURCE_TRIM, first, last))
            found.pieces.append((last - first + 1, None))
            found.count += last - first + 1


def hole_runs(core: Core, topic: Topic, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """The seqs [low, high], which are gone, in runs with how often each was told before."""
    for first, last, hops in core.routers.hole_hops.get(topic.id, ()):
        if first > high or last < low:
            continue
        if first > low:
            yield low, first - 1, 0
        yield max(low, first), min(high, last), hops
        low = last + 1
    if low <= high:
        yield low, high, 0


def _at_least_one(found: Plan, router: Router) -> Plan:
    if found.cursor == router.ahead.cursor:
        dest = router.dest
        cap_bytes = dest.config.cap_bytes if dest.config.discard == "reject" else 0
        if cap_bytes and found.refused_bytes > cap_bytes:
            raise RecordTooLarge(
                f'record {found.cursor + 1} of "{router.source.name}" can never fit "{dest.name}"',
                topic=dest.name, cap_bytes=cap_bytes,
            )  # fmt: skip
        raise TopicFull(f'topic "{dest.name}" is full', topic=dest.name)
    return found


def _add(
    found: Plan,
    columns: Columns,
    indexes: list[int],
    block: Block,
    router: Router,
    ts: int,
    records: int,
    size: int,
) -> int:
    """Adds copies of a block's records as far as there is room; how many."""
    if not indexes:
        return 0
    first = router.dest.next_seq + found.count
    made = copies(columns, indexes, block.first, router.copying, first, ts)
    fits = _fitting(found, router.dest, made, records, size)
    if not fits:
        found.refused_bytes = made.ends[0]
        return 0
    if fits < len(indexes):
        made = made.cut(0, fits)
    charged, charged_bytes = charge(router.dest, made)
    found.charged += charged
    found.charged_bytes += charged_bytes
    found.runs.extend((LIVE, a, b) for a, b in _runs(indexes[:fits], block.first))
    found.is_cold = found.is_cold or (block.segment is not None and block.segment.is_cold)
    found.pieces.append((fits, made))
    found.count += fits
    found.copied += fits
    found.size += len(made.payload)
    return fits


def _fitting(found: Plan, dest: Topic, made: Columns, records: int, size: int) -> int:
    """How many copies there is room for, up to the first that finds none."""
    records, size = max(records - found.charged, 0), size - found.charged_bytes
    if made.kinds is None or not dest.config.is_bucket:
        return min(bisect_right(made.ends, size), records)
    for place, kind in enumerate(made.kinds):
        if not is_marker(kind):
            records -= 1
            size -= made.span(place, place + 1)
            if records < 0 or size < 0:
                return place
    return len(made)


def _live(
    core: Core, router: Router, low: int, high: int
) -> Iterator[tuple[Columns, Block, list[int], int]]:
    """The records of a live run that the router takes, block by block: with the seq after each."""
    source = router.source
    position = source.block_at(low)
    taken = _taken(core, router)
    takes_all = router.options.filter is None and taken is None
    while low <= high:
        block = source.blocks[position]
        position += 1
        stop = min(block.stop, high + 1)
        columns = core.segments.columns(block)
        indexes = list(range(low - block.first, stop - block.first))
        if not takes_all:
            indexes = [
                index
                for index in indexes
                if _matches(router, columns, index)
                and (taken is None or taken(block.first + index))
            ]
        yield columns, block, indexes, stop
        low = stop


def _matches(router: Router, columns: Columns, index: int) -> bool:
    match = router.options.filter
    if match is None:
        return True
    text, is_prefix = match
    if columns.kinds is not None and router.dest.config.is_bucket:
        kind = columns.kinds[index]
        if kind is not None and kind.startswith(RANGE):
            # It has no tag: it is for everybody who may have something that it hides.
            prefix = kind[len(RANGE) :]
            return text.startswith(prefix) or (is_prefix and prefix.startswith(text))
    tag = columns.tags[index] if columns.tags is not None else None
    return tag is not None and (tag.startswith(text) if is_prefix else tag == text)


class _Taken:
    """Leaves out what an earlier router copied, and what has been all the way round a cycle."""

    def __init__(self, known: set[int], hops: dict[int, int], hops_max: int) -> None:
        self._known = known
        self._hops = hops
        self._hops_max = hops_max

    def __call__(self, seq: int) -> bool:
        return seq not in self._known and self._hops.get(seq, 0) < self._hops_max


def _taken(core: Core, router: Router) -> _Taken | None:
    """None where nothing can be left out."""
    hops = core.routers.hops.get(router.source.id, {})
    if not router.known and not hops:
        return None
    return _Taken(router.known, hops, _hops_max(core, router))


def _hops_max(core: Core, router: Router) -> int:
    ring = core.routers.ring(router.source)
    if any(topic is router.dest for topic in ring):
        # A copy goes to every other topic of the cycle and not back to where it was written.
        return len(ring) - 1
    return UNBOUNDED


def _runs(indexes: list[int], base: int) -> Iterator[tuple[int, int]]:
    start = before = indexes[0]
    for index in indexes[1:]:
        if index != before + 1:
            yield base + start, base + before
            start = index
        before = index
    yield base + start, base + before


# -- what an earlier router of the same name left --------------------------------------------------


def _knows_enough(core: Core, router: Router) -> bool:
    """Looks through a bounded part of the destination for copies that are there already.

    False while there is more of it, or some of it is on its way: nothing is forwarded before that.
    A router that is not exactly-once, or is so no longer, has nothing to look for.
    """
    dest, stamp = router.dest, router.stamp
    if stamp is None or router.ahead.cursor >= router.known_upto:
        return True
    # What was on its way may have been refused by a full disk, and its seqs taken back.
    upto = min(router.look_upto, dest.next_seq - 1)
    looks = RECORDS_MAX
    for low, high, state in states(dest, router.looked_upto + 1, min(upto, dest.head)):
        if looks <= 0 or state == UNASSIGNED:
            break
        if state == LIVE:
            high = min(high, low + looks - 1)
            looks -= high - low + 1
            _note_known(core, router, stamp, low, high)
        router.looked_upto = high
    return router.looked_upto >= upto


def _note_known(core: Core, router: Router, stamp: RouterStamp, low: int, high: int) -> None:
    dest = router.dest
    position = dest.block_at(low)
    prefix = stamp.key(0)[:-1]
    while low <= high:
        block = dest.blocks[position]
        position += 1
        stop = min(block.stop, high + 1)
        columns = core.segments.columns(block)
        for index in range(low - block.first, stop - block.first):
            if columns.metas is not None and columns.metas[index]:
                raw = bytes(columns.payload[columns.start(index) : columns.ends[index]])
                mark = router_mark(raw)
                if mark is not None and mark["idempotency_key"].startswith(prefix):
                    router.known.add(mark["source_seq"])
        low = stop
