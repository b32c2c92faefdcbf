"""Recovery: from a directory to an engine that is ready, in steps, and safe to be cut short.

Order: newest readable snapshot, its segments, the log in generation order as far as MARKS says, the
decision what was lost, then a new generation with the unsynced end of the old log copied into it,
everything made durable, and only then ready. A crash anywhere inside leaves a directory from which
the same recovery starts again: nothing is removed here but torn bytes, after a copy of them was
made, and what an earlier start left behind that never became ready.

What was acknowledged and is gone is decided here, once, and written down:

- `fsync`: nothing can be.
- `disk`: after a machine crash, what lies between the recovered head and the topic's ceiling may
  have been acknowledged; it becomes a hole (`crash`). After a process kill nothing was lost.
- `memory`: after a machine crash the head can not be proved: new epoch.
- `ephemeral`: the records are gone by contract (`restart`); without a clean stop the head can not
  be proved either: new epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.commit.log import Log
from topics.engine.commit.syncing import Syncer, ThreadSyncer
from topics.engine.ops.commit_frames import forget_producers
from topics.engine.queues import origins
from topics.engine.recovery import rederive
from topics.engine.recovery.batches import enter_stages
from topics.engine.recovery.inventory import clear_away, load_snapshot
from topics.engine.recovery.replay import Replay
from topics.engine.state import router_frames
from topics.engine.state.topic import Topic
from topics.errors import StorageError
from topics.storage import frames, marks, wal_reader
from topics.storage.footing import Footings
from topics.storage.frames import Groups, Mark, shard_of
from topics.storage.fs import opened
from topics.storage.marks import Known, Vouch
from topics.storage.prefetch import Prefetch
from topics.storage.wal import Shard
from topics.storage.wal_files import new_file_id
from topics.storage.wal_opening import open_shards, start_bytes
from topics.storage.wal_reader import Timeline
from topics.storage.wal_stats import WalStats
from topics.types import CRASH, RESTART

EPOCH_JUMP = 1 << 20
# Frames that say what a start decided of one topic, at most: of an ephemeral one a new epoch, a
# floor, a hole and that its batches are forgotten, of others one of these after a machine crash.
NOTES = {"fsync": 0, "ephemeral": 4}
# What a map grows by when it says of a run that a crash took it: two runs and their length.
LOST_RUN_BYTES = 64


@dataclass(slots=True)
class Tail:
    """Frames that are readable but not known to be durable."""

    groups: Groups
    first: int


class Recovery:
    """Run `steps()` to its end; then `committer` is open and `replay` may hold deferred topics."""

    def __init__(self, core: Core, wal_stats: WalStats) -> None:
        self.core = core
        self.data = core.data
        self.stats = wal_stats
        self.replay: Replay
        self._tails: list[Tail] = []
        self._lost_possible = False
        self._is_clean = True
        # Jobs whose move stood in the log, but not yet their end in the queue.
        self._moved_late: list[tuple[Topic, list[int]]] = []
        # Whether the log that was read says that there are routers.
        self._is_routed = False
        # What was opened so far, to be let go of when a start fails.
        self._opened = ExitStack()

    def steps(self) -> Iterator[float]:
        """Does a bounded piece of work at each step and yields the progress, 0 to 1."""
        known = self._marks()
        snapshot, left = load_snapshot(self.core)
        self._check_store()
        yield 0.1
        lines = wal_reader.list_timelines(self.data)
        wanted = wal_reader.wanted(snapshot, lines, known)
        self.core.unsealed.begin(len({line.generation for line, _ in wanted}))
        self._is_routed = wal_reader.is_routed(self.data, wanted)
        self.replay = Replay(self.core, is_routed=self._is_routed)
        # Only a generation that was ready takes snapshots; its own note may be trimmed by now.
        self.replay.recovered_generation = snapshot.generation if snapshot else 0
        paths = [f.path for line, first in wanted for f in line.files if f.number >= first]
        read_log = partial(wal_reader.read_log, self.data.fs)
        read = Prefetch(read_log, paths, threads=self.core.settings.threads)
        self._opened.callback(read.close)
        clean: dict[tuple[int, int], bool] = {}
        for index, (line, first_number) in enumerate(wanted):
            self.replay.is_clean = False
            for groups in self._read(line, first_number, read):
                self.replay.groups(groups, line)
                yield 0.1 + 0.8 * index / len(wanted)
            clean[line.generation, line.shard] = self.replay.is_clean
            if line.damage is not None:
                wal_reader.cut(self.data, line.damage)
        read.close()
        self.replay.finish_routed()
        self._moved_late = self.replay.moves.finish(self.replay)
        self.judge([line for line, _ in wanted], clean)
        self._make_room(wanted, [line for line in lines if wal_reader.is_spare(line, known)])
        self.open_log(known.next_generation, wal_reader.vouches(lines, known))
        yield 0.95
        self._copy_tails()
        for source, seqs in self._moved_late:
            origins.log_moved(self.core, source, seqs)
        self.settle_losses()
        self.write_down()
        clear_away(self.core, left)
        enter_stages(self.core, snapshot, self.replay.spent)
        self.become_ready()
        yield 1.0

    def _check_store(self) -> None:
        cold = [held.number for held in self.core.segments.live.values() if held.is_cold]
        if cold and self.core.segments.store is None:
            raise StorageError(
                f"{len(cold)} segments are in a cold store and none is configured; nothing was "
                "changed. Name it with TOPICS_COLD_DIR or --cold-dir.",
                segments=len(cold),
            )

    def abandon(self) -> None:
        """Lets go of threads and files after a failure."""
        self._opened.close()
        self.core.background.jobs.close()
        self.core.segments.close()

    def _marks(self) -> Known:
        known = marks.read(self.data.fs, self.data.root)
        known.require_undoubted(self.data.fs.boot_id())
        return known

    def _make_room(self, wanted: list[tuple[Timeline, int]], spare: list[Timeline]) -> None:
        """Gives back what earlier generations had allocated and nobody will write any more.

        So a start needs no more room than there was, and any number of them take no more than one.
        """
        fs = self.data.fs
        for line, _ in wanted:
            for path, end in line.ends.items():
                with opened(fs, path) as file:
                    if file.size() > end:
                        file.truncate(end)
        for line in spare:
            for log_file in line.files:
                fs.unlink(log_file.path)
        if spare:
            fs.sync_dir(self.data.wal)

    def _read(self, line: Timeline, first_number: int, read: Prefetch) -> Iterator[Groups]:
        """The groups of a timeline; remembers those that no mark covers."""
        kept: list[tuple[int, Groups]] = []
        number = first_number
        for groups in wal_reader.read_timeline(
            self.data, line, first_number=first_number, read=read
        ):
            yield groups
            kept.append((number, groups))
            number += 1
            # Everything up to the file before the mark's is durable: forget it early.
            kept = [(n, g) for n, g in kept if n >= line.mark.number]
        for number, groups in kept:
            starts = groups.starts
            fresh = [i for i, at in enumerate(starts) if not Mark(number, int(at)) < line.mark]
            if fresh:
                first = int((groups.frame_group < fresh[0]).sum())
                self._tails.append(Tail(groups, first))

    def judge(self, lines: list[Timeline], clean: dict[tuple[int, int], bool]) -> None:
        """Whether anything acknowledged may be gone, from the last generation that became ready."""
        ready = self.replay.recovered_generation
        mine = [line for line in lines if line.generation == ready]
        if not mine:
            return
        boots = {line.boot_id for line in mine}
        here = self.data.fs.boot_id()
        self._lost_possible = boots != {here} or here == "unknown" or self.data.is_poisoned
        self._is_clean = all(clean[line.generation, line.shard] for line in mine)
        if self._is_clean:
            self._lost_possible = False
        if self._lost_possible:
            # A topic whose creation was never durable may have been seen: its epoch stays its own.
            self.core.numbers.skip(epochs=EPOCH_JUMP)

    # -- the new generation ------------------------------------------------------------------

    def open_log(self, generation: int, earlier: dict[marks.Key, Vouch]) -> None:
        """Begins a generation; `earlier` is what is known of those before it."""
        core, settings = self.core, self.core.settings
        fs = self.data.fs
        begun = marks.begin(
            fs, self.data.root, file_id=new_file_id(), generation=generation,
            shards=settings.wal_shards, earlier=earlier,
        )  # fmt: skip
        self._opened.callback(begun.close)
        footings = Footings[Shard]()
        shards = [
            Shard(
                fs, self.data.wal, generation, index, settings, core.clock, self.stats, begun,
                footings,
            )
            for index in range(settings.wal_shards)
        ]  # fmt: skip
        for shard in shards:
            shard.is_routed = self._is_routed or bool(core.routers.recovered)
        open_shards(shards, settings.wal_file_bytes, self._bytes_min())
        for shard in shards:
            self._opened.callback(shard.close)
        syncer = (
            ThreadSyncer(shards, settings.sync_interval_ms / 1000, lambda: core.notify())
            if settings.threads
            else Syncer()
        )
        self._opened.callback(syncer.close)
        core.open_log(generation, Log(shards, syncer, begun))

    def _bytes_min(self) -> int:
        """How large the first file of each shard has to be for all that this start writes to it."""
        needed = [0] * self.core.settings.wal_shards
        overhead = frames.GROUP.size + frames.ENTRY.size

        def need(topic_id: int, size: int) -> None:
            needed[shard_of(topic_id, len(needed))] += size

        for tail in self._tails:
            for row in tail.groups.frames[tail.first :][["topic", "cols", "size"]].tolist():
                need(row[0], frames.padded(overhead + row[1] + row[2]))
            for (groups_id, index), lost in self.replay.bereft.items():
                if groups_id == id(tail.groups):
                    topic_id = int(tail.groups.frames["topic"][index])
                    need(topic_id, frames.padded(len(lost) * LOST_RUN_BYTES))
        for topic in self.core.by_id.values():
            count = NOTES.get(topic.config.durability, int(self._lost_possible))
            need(topic.id, count * frames.ENTRY.size)
        for router in self.core.routers.recovered.values():
            need(router.dest_id, len(router_frames.encode(router)) + frames.ENTRY.size)
        return start_bytes(max(needed))

    def _copy_tails(self) -> None:
        """Copies what may not be durable, byte for byte, into files that we sync ourselves.

        After a failed sync the page cache can show bytes the disk does not have. Of a map whose
        source a crash took, the copy says so: it is as durable as any other from here on.
        """
        for tail in self._tails:
            groups = tail.groups
            table = groups.frames
            for index in range(tail.first, len(table)):
                row = table[index].copy()
                if int(row["topic"]) == 0:
                    continue
                columns, payload = groups.columns_raw(index), bytes(groups.payload(index))
                lost = self.replay.bereft.get((id(groups), index))
                if lost is not None:
                    payload = rederive.without_lost(router_frames.decode_map(payload), lost)
                    row["size"] = len(payload)
                self.core.log.copy(int(row["topic"]), row.tobytes(), columns, payload)
        self._tails.clear()

    def settle_losses(self) -> None:
        for topic in list(self.core.by_id.values()):
            durability = topic.config.durability
            if durability == "disk" and self._lost_possible:
                self._lose_tail(topic)
            elif durability == "memory" and self._lost_possible:
                self.renew_epoch(topic)
            elif durability == "ephemeral":
                self._lose_resident(topic)
            if topic.ceiling.seq > topic.head:
                self.core.watch_ceiling(topic)

    def _lose_tail(self, topic: Topic) -> None:
        # The hole takes no room in the caps: what is durable is not given up for records that are
        # gone, or that never were.
        if topic.ceiling.seq > topic.head:
            self._hole(topic, topic.ceiling.seq, CRASH)

    def _lose_resident(self, topic: Topic) -> None:
        if not self._is_clean:
            self.renew_epoch(topic)
        is_known = bool(topic.live_count or topic.keys)
        self.core.forget_keys(topic)
        forget_producers(self.core, topic)
        if topic.live_count:
            self.core.tally.lost[RESTART] += topic.live_count
            topic.raise_floor(topic.head + 1, RESTART, self.core.segments.spans)
        if is_known:
            # With it a start forgets the keys, also those of a topic that had no record left.
            self.core.committer.stage(
                Op(topic, frames.FLOOR, nothing, gated=False, floor=topic.floor, flags=RESTART)
            )
        if topic.ceiling.seq > topic.head:
            self._hole(topic, topic.ceiling.seq, RESTART)

    def _hole(self, topic: Topic, last: int, state: int) -> None:
        first = topic.head + 1
        self.core.tally.lost[state] += last - topic.head
        topic.add_hole(first, last, state)
        self.core.committer.stage(
            Op(topic, frames.HOLE, nothing, gated=False, first=first, floor=last, flags=state)
        )

    def renew_epoch(self, topic: Topic) -> None:
        topic.renew(self.core.numbers.new_epoch())
        self.core.committer.stage(Op(topic, frames.EPOCH, nothing, gated=False, first=topic.epoch))

    def write_down(self) -> None:
        """Makes durable what was decided."""
        rederive.conclude(self.core)
        for topic in self.core.by_id.values():
            self.core.recount(topic)
            self.core.log_estimates(topic)
        self.core.committer.sync()

    def become_ready(self) -> None:
        """From here on this generation counts: a start that fails has not come here."""
        committer = self.core.committer
        next_epoch = self.core.numbers.next_epoch
        committer.stage(
            Op(self.core.system, frames.RECOVERED, nothing, gated=False, first=next_epoch)
        )
        committer.sync()
        committer.is_starting = False
        self.core.segments.started()
        self.core.log.marks.is_ready = True
        # One slot after the other: whichever is damaged later, the other one says so too.
        for _ in range(2):
            self.core.settle_marks()
        self.data.clear_poison()
