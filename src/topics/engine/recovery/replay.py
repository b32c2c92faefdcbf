"""Replay: the fold of log frames into topics. Applying a frame twice is applying it once.

Idempotence is what lets a snapshot be taken while writes go on, a crashed recovery be repeated,
and the unsynced end of an old log be copied into a new one.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.ops.catalog import CreateFrame, decode_configure, decode_create
from topics.engine.ops.resident import replay_hole
from topics.engine.queues.origins import Moves
from topics.engine.recovery import batches, rederive
from topics.engine.recovery.records import Records
from topics.engine.recovery.rederive import Mapped, SourceBytes
from topics.engine.recovery.replay_frames import HANDLERS, replay_ceiling
from topics.engine.state import router_frames
from topics.engine.state.topic import Topic
from topics.errors import CorruptData
from topics.storage import frames
from topics.storage.frames import Groups, Mark
from topics.storage.stage_file import StageId
from topics.storage.wal_reader import Timeline
from topics.types import CRASH

# Frames that need records of another topic, which may stand in another shard.
ROUTED = frozenset((frames.ROUTER, frames.UNROUTE, frames.MAP))


class Later(NamedTuple):
    """Frames of one topic and one kind that were set aside; without groups, a gap in its shard."""

    generation: int
    groups: Groups | None
    first: int = 0
    stop: int = 0


class Replay(Records):
    """Folds groups into `core`. Topics of class memory are set aside for after readiness.

    So is a destination from its first router on, for when all shards have been read: its copies
    are made from the records of its source by seq, whatever became of those since. `is_routed`
    says that there may be such, and keeps the log's records at hand until `finish_routed`.
    """

    def __init__(self, core: Core, *, is_routed: bool = False) -> None:
        self.core = core
        # Ids below this one are of topics that the snapshot has, or that were gone by then.
        self.known_ids = core.numbers.first_logged_id
        self.deferred: dict[int, deque[Later]] = {}
        self.sources = SourceBytes(core) if is_routed else None
        self.routed: set[int] = set()
        # The timeline and the file that groups are from, while maps are set aside.
        self._places: dict[int, tuple[Timeline, int]] = {}
        # Maps whose source a crash took, by their groups and their place there: what was lost.
        self.bereft: dict[tuple[int, int], list[tuple[int, int]]] = {}
        # A topic that was dropped stays so when the frame of its creation comes by again.
        self.dropped: set[int] = set()
        # The youngest topic that ever had a name, by name, gone or not.
        self.youngest: dict[str, int] = {}
        # Topics whose name a younger one has or had: gone, but what was made from them may not be.
        self.succeeded: set[int] = set()
        # Ephemeral topics of the snapshot with frames from before they became so, which have no
        # beginning: by id, where those skip to.
        self.outlived: dict[int, int] = {}
        # Stages that commits name, and the topics that have their records.
        self.spent: dict[StageId, int] = {}
        # Jobs that became dead letters; their topics may be in shards that are read later.
        self.moves = Moves()
        self.recovered_generation = 0
        self.is_clean = False

    def groups(self, groups: Groups, line: Timeline) -> None:
        """Applies every frame of a file, runs of one topic's appends at a time."""
        table, generation = groups.frames, line.generation
        if not len(table):
            return
        if self.sources is not None:
            self._places[id(groups)] = line, line.end.number
        topics, kinds = table["topic"], table["kind"]
        size = int(table["cols"].sum(dtype=np.int64)) + int(table["size"].sum(dtype=np.int64))
        self.core.unsealed.replay(table.nbytes + size)
        self.moves.note(groups)
        edges = np.flatnonzero((topics[1:] != topics[:-1]) | (kinds[1:] != kinds[:-1])) + 1
        bounds = [0, *edges.tolist(), len(table)]
        ids, kind_of = topics[bounds[:-1]].tolist(), kinds[bounds[:-1]].tolist()
        for index, (topic_id, kind) in enumerate(zip(ids, kind_of, strict=True)):
            first, stop = bounds[index], bounds[index + 1]
            if topic_id == 0:
                # The last of a run counts: a clean mark may follow an idle one.
                self._system(kind, groups, stop - 1, generation)
            elif kind in (frames.COMMIT, frames.PRODUCERS):
                for at in range(first, stop):
                    batches.replay(self, topic_id, kind, groups, at, generation)
            else:
                self.same(topic_id, kind, groups, first, stop, generation)
        self.is_clean = self.is_clean and kind_of[-1] == frames.MARK

    def same(
        self, topic_id: int, kind: int, groups: Groups, first: int, stop: int, generation: int
    ) -> None:
        """Applies frames of one topic and one kind, or sets them aside."""
        if self.sources is not None and kind == frames.APPEND:
            self.sources.keep(topic_id, generation, groups, first, stop)
        topic = self.core.by_id.get(topic_id)
        if topic is not None and kind in ROUTED:
            self.routed.add(topic_id)
        if kind == frames.CONFIGURE and topic_id not in self.routed:
            # The class may change with it, and what was lost is judged by the class.
            self.finish_deferred(topic_id)
        elif topic is not None and self._defers(topic, kind):
            if kind == frames.EPOCH:
                # Not later: recovery hands out new epochs before the deferred are applied.
                newest = int(groups.frames["first"][first:stop].max())
                self.core.numbers.pass_epoch(newest)
            later = self.deferred.setdefault(topic_id, deque())
            step = 1 if kind == frames.MAP else stop - first
            for at in range(first, stop, step):
                later.append(Later(generation, groups, at, at + step))
            return
        self.apply(topic_id, kind, groups, first, stop, generation)

    def unread(self, _topic: Topic, _first: int, _last: int, error: CorruptData) -> None:
        """A stage that was committed can not be read. It may be left out only by who says so."""
        raise error

    def _defers(self, topic: Topic, kind: int) -> bool:
        return (
            topic.id in self.deferred
            or topic.id in self.routed
            or (kind == frames.APPEND and topic.config.durability == "memory")
        )

    def finish_routed(self) -> None:
        """Makes the copies of all routers again. Everything of the log has been read."""
        for topic_id in sorted(self.routed):
            self.finish_deferred(topic_id)
        for frame in list(self.core.routers.recovered.values()):
            # Where a router stands is judged by its source's head.
            self.finish_deferred(frame.source_id)
        for topic_id in self.succeeded:
            self.deferred.pop(topic_id, None)
            topic = self.core.by_id.get(topic_id)
            if topic is not None:
                self.core.leave(topic)
        self.succeeded.clear()
        self.routed.clear()
        self._places.clear()
        self.sources = None

    def finish_deferred(self, topic_id: int) -> None:
        """Applies what was set aside for one topic, and before it what that is made from."""
        waiting = [topic_id]
        stuck: set[int] = set()
        while waiting:
            here = waiting[-1]
            later = self.deferred.get(here)
            if not later:
                self.deferred.pop(here, None)
                waiting.pop()
                continue
            needed = self._needed(here, later[0])
            if needed is not None and here not in stuck:
                stuck.add(here)
                waiting.append(needed)
                continue
            stuck.clear()
            generation, groups, first, stop = later[0]
            if groups is None:
                self.doubted(here)
            else:
                kind = int(groups.frames["kind"][first])
                self.apply(here, kind, groups, first, stop, generation)
            # Not before: what failed is applied again by whoever tries again.
            later.popleft()

    def _needed(self, topic_id: int, later: Later) -> int | None:
        """The topic that has to come first, because copies of this map are made from it."""
        generation, groups, index, _ = later
        dest = self.core.by_id.get(topic_id)
        if groups is None or self.sources is None or dest is None:
            return None
        if groups.frames["kind"][index] != frames.MAP:
            return None
        frame = router_frames.decode_map(groups.payload(index))
        if frame.source_id not in self.deferred:
            return None
        wanted = rederive.wanted(dest, frame, int(groups.frames["first"][index]))
        lacks = rederive.lacks(self.sources, frame.source_id, generation, wanted)
        return frame.source_id if lacks else None

    def is_vouched(self, groups: Groups, index: int) -> bool:
        """Whether a frame is known to have been durable."""
        line, number = self._places[id(groups)]
        return Mark(number, int(groups.starts[groups.frame_group[index]])) < line.mark

    def doubted(self, topic_id: int) -> None:
        """Frames of this topic's shard may be missing at this place of its timeline."""

    def apply(
        self, topic_id: int, kind: int, groups: Groups, first: int, stop: int, generation: int
    ) -> None:
        topic = self.core.by_id.get(topic_id)
        if kind == frames.CREATE:
            self.create(topic_id, topic, decode_create(groups.payload(first)))
            return
        topic = topic or self.missing(topic_id)
        if kind in (frames.ROUTER, frames.UNROUTE):
            # Also where the destination is gone: the router may have taken another one's name.
            for index in range(first, stop):
                rederive.replay_router(self.core, kind, groups, index)
            return
        if topic is None:
            return
        if kind == frames.APPEND:
            self.appends(topic, groups, first, stop)
            return
        if kind == frames.CONFIGURE and topic_id in self.outlived:
            self._end_outlived(topic, groups, first)
        if kind == frames.MAP:
            for index in range(first, stop):
                rederive.replay_map(self, topic, groups, index, generation)
            return
        if kind == frames.DROP:
            self.dropped.add(topic_id)
        if kind == frames.HOLE:
            for index in range(first, stop):
                self._hole(topic, groups, index)
            return
        handler = HANDLERS.get(kind)
        if handler is None:
            raise CorruptData(f"unknown kind of frame: {kind}")
        for index in range(first, stop):
            handler(self.core, topic, groups, index)

    def _system(self, kind: int, groups: Groups, index: int, generation: int) -> None:
        if kind == frames.RECOVERED:
            self.recovered_generation = generation
            # What a start passed over stays so, whether or not anything was made after it.
            self.core.numbers.pass_epoch(int(groups.frames["first"][index]) - 1)
            self.is_clean = False
        elif kind == frames.MARK:
            self.is_clean = bool(groups.frames["flags"][index])

    def missing(self, topic_id: int) -> Topic | None:
        """A frame of a topic that is not there: None when it is known to be gone."""
        # Dropped later than this frame and before the snapshot that we started from.
        if topic_id >= max(self.known_ids, self.core.numbers.next_topic_id):
            raise CorruptData(f"frame of a topic that was never created: {topic_id}")
        return None

    def create(self, topic_id: int, topic: Topic | None, frame: CreateFrame) -> None:
        self.core.numbers.pass_epoch(frame.epoch)
        if topic is None:
            if topic_id < self.known_ids or topic_id in self.dropped:
                return
            topic = Topic(topic_id, frame.name, frame.epoch, frame.config)
            self.name(topic)
        # Also of one that the snapshot has: it was perhaps not durable when that was taken.
        if frame.ceiling:
            replay_ceiling(topic, frame.ceiling)

    def name(self, topic: Topic) -> None:
        """Enters a topic under its name, unless a younger one has that, or had it.

        Shards are replayed one after the other, and the drop of the older one may come later or be
        in another shard's lost end. Until all of the log has been read it keeps taking its frames:
        a topic is known by its id, and others may have copies of its records.
        """
        core = self.core
        youngest = max(topic.id, self.youngest.get(topic.name, 0))
        self.youngest[topic.name] = youngest
        other = core.by_name.get(topic.name)
        if other is not None and other is not topic:
            self.succeeded.add(min(other.id, topic.id))
        if topic.id < youngest:
            self.succeeded.add(topic.id)
            core.by_id[topic.id] = topic
        else:
            core.enter(topic)

    def _hole(self, topic: Topic, groups: Groups, index: int) -> None:
        row = groups.frames[index]
        first, last = int(row["first"]), int(row["floor"])
        if self.goes_on(topic, first):
            replay_hole(self.core, topic, first, last, int(row["flags"]), int(row["ts"]))

    def goes_on(self, topic: Topic, first: int) -> bool:
        """Whether a frame of seqs from `first` on counts, be it of records, copies or a hole.

        A snapshot has no records of an ephemeral topic. When it was taken while the topic became
        one, the log after it still begins in the middle of those from before: what skips there
        does not count. Raises CorruptData for any other gap in front of `first`.
        """
        if first <= topic.head + 1:
            return True
        if topic.id < self.known_ids and topic.config.durability == "ephemeral":
            self.outlived[topic.id] = first
            return False
        self.skipped(topic, first)
        return True

    def _end_outlived(self, topic: Topic, groups: Groups, index: int) -> None:
        """Behind the change that the snapshot knows nothing may be skipped any more."""
        first = self.outlived.pop(topic.id)
        if decode_configure(groups.payload(index)).version > topic.config_version:
            self.skipped(topic, first)

    def skipped(self, topic: Topic, first: int) -> None:
        """Frames go on at `first`, and nothing says what became of the seqs in front of it."""
        raise CorruptData(f"topic {topic.name}: frames skip from {topic.head} to {first}")

    def lost(self, dest: Topic, mapped: Mapped, low: int, high: int, /) -> None:
        """A map speaks of source seqs that are nowhere.

        They were durable when the map was vouched for. Before that a crash of the machine may take
        them from the source's shard and leave the map: then it takes the copies too.
        """
        if self.is_vouched(mapped.groups, mapped.at):
            raise CorruptData(
                f"topic {dest.name}: record {low} of its source (topic id "
                f"{mapped.frame.source_id}) is missing"
            )
        self.bereft.setdefault((id(mapped.groups), mapped.at), []).append((low, high))
        self.core.tally.lost[CRASH] += high - low + 1
        dest.add_hole(dest.head + 1, dest.head + high - low + 1, CRASH)
