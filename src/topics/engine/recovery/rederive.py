"""Copies made again: from the maps in the log and the bytes of the sources, seq by seq.

A copy depends on one thing only, the bytes of the record it was made from. Those are found by
topic, seq and generation, in the log, among copies made again before, or in the segments that the
snapshot names; what became of the record since (deleted, evicted, its topic dropped) has no say.
So shards can be replayed one after the other, and a map that was copied into a later generation
still finds what it was about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.state import router_frames
from topics.engine.state.block import Block, Segment
from topics.engine.state.copies import copies
from topics.engine.state.router_frames import Fed, MapFrame, Place, RouterFrame, Run
from topics.engine.state.routers import Router
from topics.engine.state.topic import Topic
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns
from topics.storage.frames import Groups
from topics.storage.segment import Row
from topics.types import CRASH, LIVE

# Columns with the seq of their first record.
Found = tuple[Columns, int]
# A run of frames of one topic with ascending seqs.
Frames = tuple[int, Groups, int, int]
_FIRST = itemgetter(0)


class Mapped(NamedTuple):
    """A map, and where in the log it stands."""

    frame: MapFrame
    generation: int
    ts: int
    groups: Groups
    at: int


class Fold(Protocol):
    """What replaying a map needs of the replay."""

    core: Core
    sources: SourceBytes | None

    def publish(self, topic: Topic, first: int, columns: Columns) -> None: ...

    def goes_on(self, topic: Topic, first: int) -> bool: ...

    def lost(self, dest: Topic, mapped: Mapped, low: int, high: int, /) -> None: ...


class SourceBytes:
    """The records of the log and of the snapshot's segments, by seq."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Frames by topic and generation, in the order of the seqs: a seq may be used again in a
        # later generation, by a topic whose head could not be proved.
        self._logged: dict[int, dict[int, list[Frames]]] = defaultdict(lambda: defaultdict(list))
        self._made: dict[int, dict[int, list[tuple[int, Columns]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._rows: dict[int, list[tuple[int, Segment, Row]]] | None = None
        self._last: tuple[int, int, Columns, int] | None = None

    def keep(self, topic_id: int, generation: int, groups: Groups, first: int, stop: int) -> None:
        """Remembers a run of append frames. Those that come by again are left out."""
        kept = self._logged[topic_id][generation]
        seqs = groups.frames["first"][first:stop].astype(np.int64)
        falls = (np.flatnonzero(np.diff(seqs) <= 0) + 1 + first).tolist()
        for start, end in zip([first, *falls], [*falls, stop], strict=True):
            known = _last_of(kept[-1]) if kept else -1
            table = groups.frames[start:end]
            lasts = table["first"].astype(np.int64) + table["count"] - 1
            start += int(np.searchsorted(lasts, known, side="right"))
            if start < end:
                # A topic that is promoted is logged again, in other frames than before.
                fresh = max(int(groups.frames["first"][start]), known + 1)
                kept.append((fresh, groups, start, end))

    def made(self, topic_id: int, generation: int, first: int, columns: Columns) -> None:
        self._made[topic_id][generation].append((first, columns))

    def find(self, topic_id: int, generation: int, seq: int, upto: int) -> Found | None:
        """A run that holds the record, as of a generation; it need not go up to `upto`."""
        if self._last is not None:
            last_topic, last_generation, columns, first = self._last
            same = (last_topic, last_generation) == (topic_id, generation)
            if same and first <= seq < first + len(columns):
                return columns, first
        found = (
            self._in_log(topic_id, generation, seq, upto) or self._in_segments(topic_id, seq)
            # Its shard had not vouched for it yet: the next generation has it, copied.
            or self._in_log(topic_id, generation + 1, seq, upto)
        )  # fmt: skip
        if found is not None:
            self._last = (topic_id, generation, *found)
        return found

    def _in_log(self, topic_id: int, generation: int, seq: int, upto: int) -> Found | None:
        logged, made = self._logged.get(topic_id, {}), self._made.get(topic_id, {})
        # After this one a later generation may have used the seqs again.
        limit = upto + 1
        for at in sorted((g for g in {*logged, *made} if g <= generation), reverse=True):
            runs, kept = made.get(at, []), logged.get(at, [])
            found: Found | None = None
            index = bisect_right(runs, seq, key=_FIRST) - 1
            if index >= 0 and seq < runs[index][0] + len(runs[index][1]):
                found = runs[index][1], runs[index][0]
            index = bisect_right(kept, seq, key=_FIRST) - 1
            if found is None and index >= 0:
                found = _decoded(kept[index], seq, upto)
            if found is not None:
                return _cut(found, limit)
            starts = [run[0] for run in runs[:1]] + [run[0] for run in kept[:1]]
            limit = min([limit, *(start for start in starts if start > seq)])
        return None

    def _in_segments(self, topic_id: int, seq: int) -> Found | None:
        if self._rows is None:
            self._rows = defaultdict(list)
            for held in self._core.routers.segments:
                for row in held.info.rows:
                    self._rows[row.topic_id].append((row.first, held, row))
            for rows in self._rows.values():
                rows.sort(key=_FIRST)
        rows = self._rows.get(topic_id, [])
        # A record may stand in two: the newer one may have been written without it.
        for first, held, row in reversed(rows[: bisect_right(rows, seq, key=_FIRST)]):
            if seq >= row.stop:
                continue
            block = Block(first, columns_codec.empty())
            block.columns, block.segment, block.row, block.size = None, held, row, row.payload_bytes
            columns = self._core.segments.columns_waiting(block)
            if columns.span(seq - first, seq - first + 1):
                return columns, first
        return None


def _cut(found: Found, limit: int) -> Found:
    columns, first = found
    return (columns if first + len(columns) <= limit else columns.cut(0, limit - first)), first


def _last_of(kept: Frames) -> int:
    _, groups, _, stop = kept
    last = groups.frames[stop - 1]
    return int(last["first"]) + int(last["count"]) - 1


def _decoded(kept: Frames, seq: int, upto: int) -> Found | None:
    """The frame that holds `seq`, or a run of frames of single records from it on."""
    _, groups, start, end = kept
    table = groups.frames
    index = start + int(np.searchsorted(table["first"][start:end], seq, side="right")) - 1
    first, count = int(table["first"][index]), int(table["count"][index])
    if seq >= first + count:
        return None
    if count == 1 and not table["flags"][index]:
        stop = min(end, index + upto - seq + 1)
        part = table[index:stop]
        plain = (part["count"] == 1) & (part["flags"] == 0)
        follows = part["first"].astype(np.int64) - first == np.arange(len(part))
        broken = np.flatnonzero(~(plain & follows))
        length = int(broken[0]) if len(broken) else len(part)
        return groups.singles(index, index + length), first
    return groups.columns(index)[0], first


def wanted(dest: Topic, frame: MapFrame, first: int) -> list[Run]:
    """The runs of a map that the destination does not have yet; they go on after its head."""
    found = []
    for state, low, high in frame.runs:
        stop = first + high - low + 1
        low += max(dest.head + 1 - first, 0)
        first = stop
        if low <= high:
            found.append((state, low, high))
    return found


def lacks(sources: SourceBytes, source_id: int, generation: int, runs: list[Run]) -> bool:
    """Whether any of the records that were copied is not there yet."""
    for state, low, high in runs:
        while state == LIVE and low <= high:
            found = sources.find(source_id, generation, low, high)
            if found is None:
                return True
            columns, first = found
            low = first + len(columns)
    return False


def without_lost(frame: MapFrame, lost: list[tuple[int, int]]) -> bytes:
    """A map that says which of its copies a crash took, with their source."""
    runs: list[Run] = []
    for state, low, high in frame.runs:
        for first, last in lost:
            if state == LIVE and low <= first <= high:
                runs += [(LIVE, low, first - 1)] * (low < first)
                runs.append((CRASH, first, last))
                low = last + 1
        runs += [(state, low, high)] * (low <= high)
    frame.packed = router_frames.pack(runs)
    return router_frames.encode(frame)


def replay_map(fold: Fold, dest: Topic, groups: Groups, index: int, generation: int) -> None:
    """Makes the copies of a map again; those already there are left alone."""
    row = groups.frames[index]
    first, ts = int(row["first"]), int(row["ts"])
    frame = router_frames.decode_map(groups.payload(index))
    known = fold.core.routers.recovered.get(frame.router_id)
    if known is not None:
        _move(known, frame.place, frame.source_epoch)
    if frame.packed and not fold.goes_on(dest, first):
        return
    for state, low, high in wanted(dest, frame, first):
        if state == LIVE:
            _copy_again(fold, dest, Mapped(frame, generation, ts, groups, index), low, high)
        else:
            dest.add_hole(dest.head + 1, dest.head + high - low + 1, state)
    dest.pass_time(ts)


def _copy_again(fold: Fold, dest: Topic, mapped: Mapped, low: int, high: int) -> None:
    sources, frame, generation, ts = fold.sources, *mapped[:3]
    assert sources is not None
    while low <= high:
        found = sources.find(frame.source_id, generation, low, high)
        if found is None:
            stop = low + 1
            while stop <= high and not sources.find(frame.source_id, generation, stop, high):
                stop += 1
            fold.lost(dest, mapped, low, stop - 1)
            low = stop
            continue
        columns, first = found
        stop = min(first + len(columns), high + 1)
        indexes = range(low - first, stop - first)
        made = copies(columns, indexes, first, frame.copying, dest.head + 1, ts)
        sources.made(dest.id, generation, dest.head + 1, made)
        # The topic may join it to others, and then it grows: its own copy.
        fold.publish(dest, dest.head + 1, made.cut(0, len(made)))
        low = stop


# -- the routers themselves ----------------------------------------------------------------------


def replay_router(core: Core, kind: int, groups: Groups, index: int) -> None:
    raw = groups.payload(index)
    if kind == frames.UNROUTE:
        core.routers.ended.add(router_frames.decode_end(raw))
    else:
        define(core, router_frames.decode_router(raw))


def define(core: Core, frame: RouterFrame) -> None:
    """Folds a definition, from the log or from a snapshot."""
    routers = core.routers
    routers.next_id = max(routers.next_id, frame.id + 1)
    known = routers.recovered.setdefault(frame.id, frame)
    if frame.version > known.version:
        known.version, known.options, known.began = frame.version, frame.options, frame.began
    _move(known, frame.place, frame.source_epoch)


def _move(known: RouterFrame, place: Place, source_epoch: int) -> None:
    if place.step > known.place.step:
        known.place, known.source_epoch = place, source_epoch


def conclude(core: Core) -> None:
    """Enters the routers that have not ended and whose topics are there.

    Of all that ever had a name only the youngest can be one of them: the others ended when it took
    their name, whatever became of it since.
    """
    routers = core.routers
    youngest = {frame.name: frame for _, frame in sorted(routers.recovered.items())}
    # A topic that is not there any more, or never was, leaves its id to nobody: the next start
    # would take its routers for another one's.
    for frame in routers.recovered.values():
        core.numbers.pass_topic_id(frame.source_id)
        source, dest = core.by_id.get(frame.source_id), core.by_id.get(frame.dest_id)
        if source is None or dest is None:
            continue
        if frame.id in routers.ended or youngest[frame.name] is not frame:
            _note_end(core, frame, source, dest)
            continue
        router = Router(frame.id, frame.name, frame.options, source, dest)
        router.version, router.created_ts = frame.version, frame.created_ts
        router.known_upto, router.began = frame.known_upto, frame.began
        router.place = router.ahead = frame.place
        routers.enter(router)
        routers.sources[source.id].durable_head = source.head
        if frame.place.cursor > source.head:
            _go_back(core, router)
    routers.recovered.clear()
    routers.ended.clear()
    routers.segments.clear()


def _note_end(core: Core, frame: RouterFrame, source: Topic, dest: Topic) -> None:
    """What an ended router brought a bucket stays known, of an epoch that goes on."""
    if source.config.is_bucket and dest.config.is_bucket and frame.source_epoch == source.epoch:
        upto = min(frame.place.cursor, source.head)
        brought = Fed(source.id, source.epoch, frame.options.filter, frame.began, upto)
        core.routers.note_fed(dest.id, brought, copied=frame.place.forwarded_total)


def _go_back(core: Core, router: Router) -> None:
    """The source's head could not be proved and went back, with a new epoch.

    That is written down: the next start would take the place for one among the new records.
    """
    place = router.place
    router.place = router.ahead = Place(router.source.head, place.forwarded_total, place.step + 1)
    raw = router_frames.encode(router.frame())
    core.committer.stage(Op(router.dest, frames.ROUTER, nothing, gated=False, payload=raw))
