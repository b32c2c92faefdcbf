"""The part of a salvage that replays the log: what is missing becomes a hole, or a doubt."""

from __future__ import annotations

from collections.abc import Iterable

from topics.engine.offline.salvaged import Base, Salvage
from topics.engine.ops.catalog import CreateFrame
from topics.engine.recovery.rederive import Mapped
from topics.engine.recovery.replay import Later, Replay
from topics.engine.state.topic import Topic
from topics.errors import CorruptData
from topics.storage import frames, wal_salvage
from topics.storage.columns import Columns
from topics.storage.frames import Groups, shard_of
from topics.storage.marks import ANYTHING
from topics.storage.snapshot import Snapshot
from topics.storage.wal_reader import Timeline, first_file, first_lsn
from topics.types import CORRUPTION


class SalvageReplay(Replay):
    """Replay that turns what is missing into holes instead of refusing."""

    def __init__(self, found: Salvage) -> None:
        super().__init__(found.core, is_routed=True)
        self.found = found
        if found.nameless:
            # No snapshot: an id that is not there was never entered, rather than dropped before.
            self.known_ids = 1

    def apply(
        self, topic_id: int, kind: int, groups: Groups, first: int, stop: int, generation: int
    ) -> None:
        topic = self.core.by_id.get(topic_id)
        if kind == frames.DROP:
            self.found.dropped.add(topic_id)
        if topic is not None and kind in (frames.DELETE, frames.FLOOR, frames.HOLE):
            for index in range(first, stop):
                self._believe(topic, kind, groups, index)
        super().apply(topic_id, kind, groups, first, stop, generation)

    def _believe(self, topic: Topic, kind: int, groups: Groups, index: int) -> None:
        """A frame that speaks of seqs after the head proves that they were assigned."""
        row = groups.frames[index]
        last = {
            frames.DELETE: int(row["first"]),
            frames.FLOOR: int(row["floor"]) - 1,
            frames.HOLE: int(row["first"]) - 1,
        }[kind]
        self.goes_on(topic, last + 1)

    def skipped(self, topic: Topic, first: int) -> None:
        self.found.skips += 1
        self.found.lose(topic, topic.head + 1, first - 1)
        topic.add_hole(topic.head + 1, first - 1, CORRUPTION)

    def missing(self, topic_id: int) -> Topic | None:
        if topic_id < self.known_ids or topic_id in self.found.dropped:
            return None
        name, config, version = self.found.name_of(topic_id)
        topic = Topic(topic_id, name, self.core.numbers.next_epoch, config)
        topic.configure(config, version)
        self.core.enter(topic)
        self.found.nameless.add(topic_id)
        return topic

    def create(self, topic_id: int, topic: Topic | None, frame: CreateFrame) -> None:
        if topic is None or topic_id not in self.found.nameless:
            super().create(topic_id, topic, frame)
            return
        if self.core.by_name.get(topic.name) is topic:
            del self.core.by_name[topic.name]
        topic.become(frame.name, frame.config)
        topic.ceiling.replay(max(topic.ceiling.seq, frame.ceiling))
        topic.renew(frame.epoch)
        self.name(topic)

    def lost(self, dest: Topic, _mapped: Mapped, low: int, high: int, /) -> None:
        first, last = dest.head + 1, dest.head + high - low + 1
        self.found.lose(dest, first, last)
        dest.add_hole(first, last, CORRUPTION)

    def unread(self, topic: Topic, first: int, last: int, _error: CorruptData, /) -> None:
        if last > topic.head:
            self.found.lose(topic, max(first, topic.head + 1), last)

    def is_vouched(self, _groups: Groups, _index: int) -> bool:
        """What is not there is missing, whoever was to have it."""
        return True

    def doubt(self, shard: int, shards: int) -> None:
        """Frames of a shard are missing, after what was set aside of its topics so far."""
        for topic_id, later in self.deferred.items():
            if shard_of(topic_id, shards) == shard:
                later.append(Later(0, None))

    def doubted(self, topic_id: int) -> None:
        if topic_id in self.core.by_id:
            self.found.unproved.add(topic_id)

    def publish(self, topic: Topic, first: int, columns: Columns) -> None:
        # Records that follow without a gap prove that none of this topic are missing before.
        self.found.unproved.discard(topic.id)
        super().publish(topic, first, columns)


def replay_log(found: Salvage, base: Base, lines: list[Timeline]) -> None:
    replay = SalvageReplay(found)
    summary = base.summary
    if summary is not None:
        replay.recovered_generation = summary.generation
    wanted = [x for x in lines if summary is None or x.generation >= summary.generation]
    start = summary.generation if summary else min((x.generation for x in wanted), default=1)
    shards = {x.generation: 1 + max(y.shard for y in lines if y.generation == x.generation)
              for x in wanted}  # fmt: skip
    found.first_new_id = replay.known_ids
    if summary is not None:
        _miss_files(found, summary, lines, range(len(summary.positions)))
    expected = start
    for line in wanted:
        if line.generation > expected + 1:
            for shard in range(shards[line.generation]):
                found.miss_frames(None, shard, shards[line.generation])
        expected = max(expected, line.generation)
        first = _first_number(found, summary, line, start)
        # Of a log whose beginning is gone nobody knows with which frame the rest begins.
        is_known = summary is not None or first == 1
        line.first_lsn = first_lsn(summary, line.generation, line.shard) if is_known else None
        _replay_line(found, replay, line, first, shards)
        for newer, _ in base.newer:
            if newer.generation == line.generation and line.shard < len(newer.positions):
                _miss_files(found, newer, lines, [line.shard])
    replay.finish_routed()
    replay.moves.finish(replay)
    for topic_id in list(replay.deferred):
        replay.finish_deferred(topic_id)
    found.replay = replay


def _replay_line(
    found: Salvage, replay: SalvageReplay, line: Timeline, first: int, shards: dict[int, int]
) -> None:
    def miss(count: int | None) -> None:
        found.miss_frames(count, line.shard, shards[line.generation])
        replay.doubt(line.shard, shards[line.generation])

    replay.is_clean = False
    for stretch in wal_salvage.salvage(found.core.data, line, first_number=first):
        if stretch.lost_frames != 0:
            miss(stretch.lost_frames)
        replay.groups(stretch.groups, line)
    found.clean[line.generation, line.shard] = replay.is_clean
    lost = wal_salvage.lost_at_end(line)
    # The mark of an orderly stop is the last group: where nobody else knows, it is believed.
    if lost != 0 and not (line.vouch == ANYTHING and replay.is_clean):
        miss(lost)


def _first_number(found: Salvage, summary: Snapshot | None, line: Timeline, start: int) -> int:
    if summary is not None:
        return first_file(summary, line.generation, line.shard)
    # Segments that no snapshot names come with a log of which nobody knows where it began.
    is_trimmed = line.generation == start and bool(found.nameless) and bool(line.files)
    return line.files[0].number if is_trimmed else 1


def _miss_files(
    found: Salvage, summary: Snapshot, lines: list[Timeline], shards: Iterable[int]
) -> None:
    """Log files that a snapshot names and that are not there at all."""
    present = {(x.generation, x.shard): [f.number for f in x.files] for x in lines}
    for shard in shards:
        if summary.positions[shard] not in present.get((summary.generation, shard), []):
            found.miss_frames(None, shard, len(summary.positions))
