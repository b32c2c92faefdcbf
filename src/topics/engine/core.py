"""What the parts of the engine share: the topics, the log, the disk, the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from topics.clock import Clock
from topics.engine import retention
from topics.engine.background import Jobs, ThreadJobs
from topics.engine.block import Block
from topics.engine.commit import Committer, Op, Syncer
from topics.engine.names import Names
from topics.engine.routers import Routers
from topics.engine.segments import Segments
from topics.engine.tags import TagIndex
from topics.engine.topic import Topic
from topics.errors import DiskFull, TopicNotFound
from topics.settings import Settings
from topics.storage import frames
from topics.storage.columns import Columns
from topics.storage.datadir import DataDir
from topics.types import EVICTED, EXPIRED, TopicConfig, check_name

if TYPE_CHECKING:
    from topics.engine.promotion import Promotion

# Frames that belong to no topic are written under this one.
SYSTEM = Topic(0, "", 0, TopicConfig())


class Core:
    def __init__(self, data: DataDir, clock: Clock, settings: Settings, segments: Segments) -> None:
        self.data = data
        self.clock = clock
        self.settings = settings
        self.segments = segments
        self.jobs: Jobs = ThreadJobs() if settings.threads else Jobs()
        self.committer: Committer
        self.syncer: Syncer
        self.generation = 0
        # Removes the unfinished files of a checkpoint that is given up.
        self.abandon: Callable[[], None] = nothing
        self.snapshot_number = 0
        # Called from the sync threads when something has become durable.
        self.notify: Callable[[], None] = nothing
        # Called when a topic's head moved or the topic was dropped; may not call the engine.
        self.published: Callable[[Topic], None] = unheard
        self.by_name: dict[str, Topic] = {}
        self.names = Names(self.by_name)
        self.by_id: dict[int, Topic] = {}
        self.routers = Routers()
        self.next_topic_id = 1
        self.next_epoch = 1
        self.next_segment = 1
        # Of all queues together, and different in every generation.
        self.next_lease = 0
        self.live_bytes = 0
        # Assigned but not published yet.
        self.pending_bytes = 0
        # Published since the last checkpoint began.
        self.unsealed_records = 0
        self.unsealed_bytes = 0
        self.idempotency_keys = 0
        self.keys_swept_s = 0.0
        # Disk topics with an open ceiling, in the order in which they are looked at.
        self.open_topics: dict[int, None] = {}
        # Topics whose tag index has work left over for maintenance.
        self.unfolded: set[int] = set()
        # Ephemeral topics on their way to another class, by id.
        self.promotions: dict[int, Promotion] = {}
        # How often the log was cut for a checkpoint.
        self.checkpoints_begun = 0
        # Sealed blocks that are still in memory, oldest first.
        self.resident: deque[tuple[Block, int]] = deque()
        self.resident_bytes = 0
        # Whether sliced work waits for a thread: then more slices now would do nothing.
        self.is_waiting = False

    def in_background(self, call: Callable[[], None]) -> Iterator[None]:
        """Runs a blocking call beside the caller; raises what it raised."""
        job = self.jobs.start(call)
        try:
            while not job.done:
                yield from self.waiting()
        finally:
            # Whoever gives up the work still waits for what is under way.
            while not job.done:
                self.jobs.pause()
        job.result()
        yield

    def waiting(self) -> Iterator[None]:
        """A turn of sliced work that only a thread can bring on."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    # -- topics ------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None:
            check_name(name)
            raise TopicNotFound(f'topic "{name}" does not exist', topic=name)
        return topic

    def enter(self, topic: Topic) -> None:
        self.by_id[topic.id] = topic
        self.by_name[topic.name] = topic
        self.names.add(topic.name)
        self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        self.next_epoch = max(self.next_epoch, topic.epoch + 1)

    def forget_keys(self, topic: Topic) -> None:
        """Idempotency keys go with the records they stood for."""
        self.idempotency_keys -= len(topic.keys or ())
        topic.keys = None

    def leave(self, topic: Topic) -> None:
        """Forgets a topic; its segments become garbage."""
        topic.dropped = True
        self.by_id.pop(topic.id, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            self.names.discard(topic.name)
        for block in topic.blocks:
            topic.release(block)
        topic.blocks = []
        topic.live_count = topic.live_bytes = 0
        self.live_bytes -= topic.counted_bytes
        self.idempotency_keys -= len(topic.keys or ())
        self.open_topics.pop(topic.id, None)
        self.unfolded.discard(topic.id)
        self.routers.drop(topic)

    def recount(self, topic: Topic) -> None:
        """Carries a change of a topic's live bytes into the total of the instance."""
        if topic.dropped:
            # Something of it was still on its way.
            return
        self.live_bytes += topic.live_bytes - topic.counted_bytes
        topic.counted_bytes = topic.live_bytes

    def tags_of(self, topic: Topic) -> TagIndex:
        """The tag index, entering the tags of blocks that recovery left for later.

        Raises ColdMiss for the next of them that is out of reach; what was entered stays so.
        """
        if topic.tags is None:
            topic.tags = TagIndex()
        for _ in self.index_tags(topic):
            pass
        return topic.tags

    def index_tags(self, topic: Topic) -> Iterator[None]:
        """Enters the tags of unindexed blocks, one block at a time; raises ColdMiss."""
        while topic.untagged:
            block = topic.untagged[-1]
            if not block.is_ghost and block.stop > topic.floor:
                columns = self.segments.columns(block)
                if columns.tags is not None:
                    topic.tags = topic.tags or TagIndex()
                    topic.tags.add(columns.tags, block.first)
            topic.untagged.pop()
            yield

    def index_all_tags(self) -> Iterator[None]:
        """Enters the tags that recovery left for later, fetching cold blocks beside the caller."""
        for topic in [topic for topic in self.by_id.values() if topic.untagged]:
            while topic.untagged and not topic.dropped:
                block = topic.untagged[-1]
                if not block.is_ghost and self.segments.columns_or_none(block) is None:
                    yield from self.bring(block)
                next(self.index_tags(topic), None)
                yield

    def bring(self, block: Block) -> Iterator[None]:
        """Fetches a cold block beside the caller; raises what the store raised."""
        found: list[Columns] = []
        yield from self.in_background(lambda: found.extend(self.segments.fetch([block])))
        self.segments.admit(block, found[0])

    # -- routers -----------------------------------------------------------------------------

    def route_log(self) -> None:
        """From now on the log says that there are routers; raises DiskFull with nothing changed."""
        for lane in self.committer.lanes:
            if not lane.shard.is_routed:
                lane.shard.is_routed = True
                try:
                    lane.shard.rotate()
                except DiskFull:
                    lane.shard.is_routed = False
                    raise

    # -- memory ------------------------------------------------------------------------------

    def note_resident(self, block: Block) -> None:
        """A sealed block whose columns are still in memory; the oldest of them go at the bound."""
        self.resident.append((block, block.size))
        self.resident_bytes += block.size
        while self.resident_bytes > self.settings.resident_bytes and self.resident:
            oldest, size = self.resident.popleft()
            self.resident_bytes -= size
            if oldest.segment is not None:
                oldest.columns = None

    # -- time --------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        return round(self.clock.monotonic_s() * 1000)

    def expire(self, topic: Topic, *, log: bool = True) -> None:
        """Brings a topic's TTL floor up to now, and writes down that it moved.

        The frame is what keeps the floor from going back when the clock does, restarts included.
        """
        if not topic.config.ttl_ms and not topic.holds:
            return
        now_ms, load = self.clock.wall_ms(), self.segments.columns_or_none
        moved = [EXPIRED] if retention.expire(topic, now_ms, load) else []
        if topic.holds and retention.let_go(topic, now_ms, load):
            moved.append(EVICTED)
        self.recount(topic)
        if log and topic.durability != "ephemeral" and self.committer.poison is None:
            for state in moved:
                self.log_floor(topic, state)

    def evict(self, topic: Topic) -> None:
        """Lets the caps evict. What depended on an estimate of cold bytes is written down."""
        moved = retention.evict(topic, self.segments.columns_or_none)
        self.recount(topic)
        if moved and self.estimates_bytes(topic) and topic.durability != "ephemeral":
            self.log_floor(topic, EVICTED)

    def estimates_bytes(self, topic: Topic) -> bool:
        is_asked = bool(topic.config.cap_bytes or topic.holds)
        return is_asked and self.segments.store is not None

    def log_floor(self, topic: Topic, state: int) -> None:
        """Writes down how far records were lost to `state`."""
        floor = dict(topic.lost).get(state, 0) + 1
        op = Op(topic, frames.FLOOR, nothing, gated=False, floor=floor, flags=state)
        lane = self.committer.lane_of(topic)
        if lane.staged or lane.shard.is_dirty:
            self.committer.stage(op)
            return
        # It may be seen at once and nothing else asks for a sync: so this does, and nobody waits.
        op.gated = True
        self.committer.stage_aside(op)


def nothing() -> None:
    pass


def unheard(_topic: Topic) -> None:
    pass
