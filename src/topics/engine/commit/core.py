"""What the parts of the engine share: the topics, the log, the disk, the clock."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterator

from topics.clock import Clock, WallAt
from topics.engine.commit.background import Background
from topics.engine.commit.committer import Committer
from topics.engine.commit.frame import floor_frame, nothing
from topics.engine.commit.leaving import Leaving
from topics.engine.commit.log import Log
from topics.engine.commit.preparing import Preparing
from topics.engine.commit.stage_files import StageFiles
from topics.engine.commit.tiering import Tiering
from topics.engine.state import retention
from topics.engine.state.block import Block
from topics.engine.state.names import Names
from topics.engine.state.numbers import Numbers
from topics.engine.state.routers import Routers
from topics.engine.state.segments import ColdMiss, Segments
from topics.engine.state.stages import Stages
from topics.engine.state.tags import TagIndex
from topics.engine.state.tally import Tally
from topics.engine.state.topic import Topic
from topics.engine.state.unsealed import Unsealed
from topics.errors import Poisoned, StorageError, TopicNotFound
from topics.settings import Settings
from topics.storage.columns import Columns
from topics.storage.datadir import DataDir
from topics.types import EVICTED, EXPIRED, TopicConfig, check_name

TIDY_AT_ONCE_PIECES = 4


class Core:
    """Owns the topics of one engine by name and by id, and what they have in common.

    There is one for each directory that is open, and nothing of it outlives it. Totals over all
    topics (live bytes, keys, what is unsealed) are true after every operation. Its parts have
    owners of their own: the log, what is committed, what is prepared, numbers that are given once.
    """

    def __init__(self, data: DataDir, clock: Clock, settings: Settings, segments: Segments) -> None:
        self.data = data
        self.clock = clock
        self.wall_at = WallAt(clock)
        self.settings = settings
        self.segments = segments
        self.background = Background(threads=settings.threads)
        self.committer: Committer
        self.log: Log
        self.generation = 0
        # Removes the unfinished files of a checkpoint that is given up.
        self.abandon: Callable[[], None] = nothing
        # How often the log was cut for a checkpoint.
        self.checkpoints_begun = 0
        # Called from the sync threads when something has become durable.
        self.notify: Callable[[], None] = nothing
        # Called when a topic's head moved or the topic was dropped; may not call the engine.
        self.on_published: list[Callable[[Topic], None]] = []
        self.by_name: dict[str, Topic] = {}
        self.names = Names(self.by_name)
        self.by_id: dict[int, Topic] = {}
        self.routers = Routers()
        self.leaving = Leaving()
        self.numbers = Numbers()
        # Frames that belong to no topic are written under this one.
        self.system = Topic(0, "", 0, TopicConfig())
        self.live_bytes = 0
        # Bytes that are assigned and not published yet.
        self.pending_bytes = 0
        self.unsealed = Unsealed()
        # Topics and states whose floor a full disk had no room to write down.
        self.unsaid: dict[tuple[Topic, int], None] = {}
        self.tally = Tally()
        self.idempotency_keys = 0
        self.keys_swept_s = 0.0
        # Disk topics with an open ceiling, in the order in which they are looked at. Not a dict:
        # one from which the first are taken and put behind the last is gone through from its very
        # beginning each time, and made anew as a whole now and then.
        self.open_topics: deque[int] = deque()
        # Topics whose tag index has work left over for maintenance.
        self.unfolded: set[int] = set()
        self.preparing = Preparing()
        # What tidies up after deletes.
        self.tidying: deque[Iterator[None]] = deque()
        # Whether a checkpoint is under way; see `sealing`.
        self.is_sealing = False
        # Whether somebody copies what the snapshots name: nothing of it may leave the directory.
        self.is_pinned = False
        self.tiering = Tiering(data, clock, settings, segments, self.background, self._is_bucket)
        self.stages = Stages()
        self.stage_files = StageFiles(data, self.background, lambda: self.notify())

    def open_log(self, generation: int, log: Log) -> None:
        """From here on this generation is written."""
        self.generation, self.log, self.committer = generation, log, Committer(log)
        self.numbers.begin_generation(generation)

    def on_durable(self, notify: Callable[[], None]) -> None:
        self.notify = notify

    def until_durable(self) -> Iterator[None]:
        """Waits, a step at a time, until all that was written so far is durable and applied."""
        for shard, mark in zip(self.log.shards, self.log.positions, strict=True):
            if shard.synced < mark:
                self.log.syncer.kick(shard)
            while shard.synced < mark:
                if shard.poison is not None:
                    raise Poisoned(f"sync of the write-ahead log failed: {shard.poison}")
                yield from self.background.wait()
        while self.committer.poll():
            yield

    def settle_marks(self) -> None:
        """Makes MARKS durable now; a failure is one of the log."""
        self.log.settle()
        self.committer.poll()

    def _is_bucket(self, topic_id: int) -> bool:
        topic = self.by_id.get(topic_id)
        return topic is not None and topic.config.is_bucket

    @property
    def is_deleting(self) -> bool:
        """Whether deletes that are too much for a turn have something left to do."""
        return bool(self.preparing.deletions or self.tidying or self.committer.is_holding)

    def tidy(self, work: Iterator[None]) -> None:
        """Does work that nobody waits for: at once when it is little, else in slices."""
        for _ in range(TIDY_AT_ONCE_PIECES):
            if next(work, self) is self:
                return
        self.tidying.append(work)

    # -- topics ------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            check_name(name)
            raise TopicNotFound(f'topic "{name}" does not exist', topic=name)
        return topic

    def published(self, topic: Topic) -> None:
        """A topic's head moved, or the topic is gone."""
        for told in self.on_published:
            told(topic)

    def enter(self, topic: Topic) -> None:
        self.by_id[topic.id] = topic
        self.by_name[topic.name] = topic
        self.names.add(topic.name)
        self.numbers.pass_topic_id(topic.id)
        self.numbers.pass_epoch(topic.epoch)

    def watch_ceiling(self, topic: Topic) -> None:
        """Its ceiling is open: it is closed when the topic falls idle."""
        if not topic.ceiling.is_watched:
            topic.ceiling.is_watched = True
            self.open_topics.append(topic.id)

    def remember_key(self, topic: Topic, digest: bytes, first: int, count: int, ts: int) -> None:
        self.idempotency_keys += topic.remember(digest, first, count, ts)

    def forget_keys(self, topic: Topic) -> None:
        """Idempotency keys go with the records they stood for."""
        self.idempotency_keys -= topic.forget_keys()

    def leave(self, topic: Topic) -> None:
        """Forgets a topic; its segments become garbage."""
        self.by_id.pop(topic.id, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            self.names.discard(topic.name)
        topic.drop()
        self.live_bytes -= topic.counted_bytes
        self.idempotency_keys -= len(topic.keys or ())
        self.unfolded.discard(topic.id)
        self.routers.drop(topic)
        self.stages.forget(topic.id)

    @property
    def taken_bytes(self) -> int:
        """Of all that the quota is for: live, on its way, or in stages."""
        stages = self.stages
        return self.live_bytes + self.pending_bytes + stages.bytes + stages.arriving_bytes

    def recount(self, topic: Topic) -> None:
        """Carries a change of a topic's live bytes into the total of the instance."""
        if topic.dropped:
            # Something of it was still on its way.
            return
        self.live_bytes += topic.recount()

    def tags_of(self, topic: Topic) -> TagIndex:
        """The tag index, entering the tags of blocks that recovery left for later.

        Raises ColdMiss for the next of them that is out of reach; what was entered stays so.
        """
        for _ in self.index_tags(topic):
            pass
        return topic.tags or TagIndex()

    def index_tags(self, topic: Topic) -> Iterator[None]:
        """Enters the tags of unindexed blocks, one block at a time; raises ColdMiss."""
        while topic.untagged:
            block = topic.untagged[-1]
            if not block.is_ghost and block.stop > topic.floor:
                columns = self.segments.columns(block)
                if columns.tags is not None:
                    topic.add_tags(columns.tags, block.first)
            topic.untagged.pop()
            yield

    def index_all_tags(self) -> Iterator[bool]:
        """Enters the tags that recovery left for later; False while a block has to be fetched."""
        for topic in [topic for topic in self.by_id.values() if topic.untagged]:
            # A topic with a block that can not be read is left to its next delete, which is told.
            with contextlib.suppress(StorageError):
                while topic.untagged and not topic.dropped:
                    block = topic.untagged[-1]
                    is_gone = block.is_ghost or block.stop <= topic.floor
                    is_here = is_gone or self.segments.holds(block)
                    if is_here:
                        next(self.index_tags(topic), None)
                    else:
                        self.tiering.want(block)
                    yield is_here

    def index_more_tags(self, topic: Topic) -> Iterator[None]:
        """Enters the tags of one more block, fetching it beside the caller; raises StorageError."""
        try:
            next(self.index_tags(topic), None)
        except ColdMiss as miss:
            yield from self.bring(miss.ahead[0])
        yield

    def bring(self, block: Block) -> Generator[None, None, Columns]:
        """Fetches a cold block beside the caller; raises what the store raised.

        The cache may be small: who needs several at once holds on to what this returns.
        """
        found: list[Columns] = []
        request = self.segments.ask([block])
        try:
            yield from self.background.run(lambda: found.extend(request.read()))
        except StorageError:
            if request.is_outdated and block.segment is not None:
                # It was written anew meanwhile.
                return self.segments.columns_waiting(block)
            raise
        self.segments.admit(block, found[0])
        return found[0]

    # -- checkpoints -------------------------------------------------------------------------

    def cut_log(self) -> list[tuple[int, int]]:
        """Begins a checkpoint: everything before these files and frames is to be sealed."""
        self.checkpoints_begun += 1
        return self.log.rotate()

    @contextlib.contextmanager
    def abandoning(self, abandon: Callable[[], None]) -> Iterator[None]:
        """`abandon` removes the unfinished files of what is done here, if it does not end well.

        What is given up half way is abandoned by who closes the engine.
        """
        self.abandon = abandon
        try:
            yield
        except Exception:
            abandon()
            raise
        self.abandon = nothing

    @contextlib.contextmanager
    def sealing(self) -> Iterator[None]:
        """From before the log is cut for a checkpoint until no segment moves any more.

        Copies that are made meanwhile are logged in their own right. Every other map was applied
        before the first topic was captured, or copies what was live when all of them had been: so
        a snapshot, its segments and the log after it have what its maps are about, whatever was
        deleted, dropped or moved to the cold store in between.
        """
        self.is_sealing = True
        try:
            yield
        finally:
            self.is_sealing = False

    # -- time --------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        return round(self.clock.monotonic_s() * 1000)

    def expire(self, topic: Topic) -> None:
        """Brings a topic's TTL floor up to now, and writes down that it moved.

        The frame is what keeps the floor from going back when the clock does, restarts included.
        """
        if not topic.config.ttl_ms and not topic.holds:
            return
        if topic.version_staged > topic.config_version:
            # The config in the log may be another one by now, and a crash would leave only that:
            # what this one would take meanwhile came back.
            return
        now_ms, load, floor = self.clock.wall_ms(), self.segments.spans, topic.floor
        moved = [EXPIRED] if self.expire_at(topic, now_ms) else []
        # What holds kept from the caps and have become too old for.
        live = topic.live_count
        if topic.holds and retention.evict(topic, load, now_ms=now_ms):
            self.tally.evicted += live - topic.live_count
            moved.append(EVICTED)
        self.recount(topic)
        if topic.durability != "ephemeral" and self.committer.poison is None:
            for state in moved:
                self._log_floor(topic, state, floor)

    def expire_at(self, topic: Topic, now_ms: int) -> bool:
        """Raises a topic's TTL floor as of a time; True when it moved."""
        live = topic.live_count
        moved = retention.expire(topic, now_ms, self.segments.spans)
        self.tally.expired += live - topic.live_count
        return moved

    def evict(self, topic: Topic) -> None:
        """Lets the caps evict. Replay comes to the same, unless bytes had to be estimated."""
        floor, live = topic.floor, topic.live_count
        moved = retention.evict(topic, self.segments.spans)
        self.recount(topic)
        if moved:
            self.tally.evicted += live - topic.live_count
            self._log_estimate(topic, floor)

    def refit(self, topic: Topic, config_before: TopicConfig, now_ms: int) -> None:
        """Makes a topic fit the config that it was just given, as replay will."""
        floor, before = topic.floor, dict(topic.lost).get(EVICTED)
        self.expire_at(topic, now_ms)
        live = topic.live_count
        retention.reconfigure(topic, config_before, now_ms, self.segments.spans)
        self.tally.evicted += live - topic.live_count
        self.recount(topic)
        if dict(topic.lost).get(EVICTED) != before:
            self._log_estimate(topic, floor)

    def _log_estimate(self, topic: Topic, first: int) -> None:
        if not self.segments.is_exact and topic.durability != "ephemeral":
            self._log_floor(topic, EVICTED, first)

    def log_estimates(self, topic: Topic) -> None:
        """Writes down how far replay evicted by estimates: a later one may count exactly."""
        is_asked = not self.segments.is_exact and topic.durability != "ephemeral"
        if is_asked and EVICTED in dict(topic.lost):
            self._log_floor(topic, EVICTED, topic.floor)

    def _log_floor(self, topic: Topic, state: int, first: int) -> None:
        """Writes down how far records from `first` on were lost to `state`."""
        op = floor_frame(topic, state, undo=lambda: self.unsaid.setdefault((topic, state)))
        overtakes = self.committer.has_staged(topic)
        if (overtakes or topic.gated) and topic.account is not None:
            # The frame stands behind what is on its way and took effect before it: what that would
            # have removed, for another reason, was lost for this one.
            op.payload = topic.account.runs(first, op.floor - 1, state).tobytes()
        if overtakes or not self.committer.is_durable(topic):
            self.committer.stage(op)
            return
        # It may be seen at once and nothing else asks for a sync: so this does, and nobody waits.
        op.gated = True
        self.committer.stage_aside(op)

    def log_unsaid(self) -> None:
        """Tries again; until it is there, a clock that goes back would bring records back."""
        unsaid, self.unsaid = self.unsaid, {}
        for topic, state in unsaid:
            if not topic.dropped:
                self._log_floor(topic, state, topic.floor)
