"""The engine: one directory, one owner, plain calls. No HTTP and no event loop needed.

    with Engine.open("./data") as engine:
        engine.append("orders", [{"data": {"n": 1}}])
        page = engine.diff("orders", from_seq=0)

All calls come from one thread. `submit_*` return a ticket at once and leave the writing to `flush`;
the others wait until the ticket has ended.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

from topics.clock import Clock, SystemClock
from topics.engine import append, catalog, deletes, reading
from topics.engine.ceilings import close as close_ceiling
from topics.engine.commit import Ticket
from topics.engine.core import Core
from topics.engine.maintenance import Maintenance, write_mark
from topics.engine.reading import View
from topics.engine.recovery import Recovery
from topics.engine.resident import write_account
from topics.engine.scrub import Scrubbed, scrub
from topics.engine.segments import ColdMiss, Segments
from topics.engine.topic import Topic
from topics.engine.write import Batch, Request, decode_write, request_of
from topics.errors import (
    Closed,
    DiskFull,
    InvalidRequest,
    Poisoned,
    StorageError,
    TopicNotFound,
    TopicsError,
)
from topics.settings import MIB, Settings, check
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, OsFs, join, make_directory, owner_name
from topics.storage.tiers import open_store
from topics.storage.wal import WalStats, typed
from topics.types import (
    U64_MAX,
    Appended,
    Deleted,
    Page,
    Range,
    TopicConfig,
    TopicState,
    check_name,
    clamp,
    config_input,
    resolve_config,
)

LIMIT_DEFAULT = 256
BATCH_BYTES_DEFAULT = 1 * MIB
BATCH_BYTES_MAX = 8 * MIB
SLICE_S = 0.002


class Engine:
    def __init__(self, core: Core, recovery: Recovery, lock: Any) -> None:
        self.core = core
        self.wal_stats = recovery.stats
        self._recovery = recovery
        self._lock = lock
        self._maintenance = Maintenance(core)
        self._is_closed = False

    # -- life --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        settings: Settings | None = None,
    ) -> Engine:
        """Opens or creates a data directory and recovers it.

        Raises DirectoryLocked, FormatMismatch or CorruptData, with the directory as it was.
        """
        steps = cls.opening(path, clock=clock, fs=fs, settings=settings)
        while True:
            try:
                next(steps)
            except StopIteration as ready:
                engine: Engine = ready.value
                break
        engine.finish_recovery()
        return engine

    @classmethod
    def opening(
        cls,
        path: str,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        settings: Settings | None = None,
    ) -> Generator[float, None, Engine]:
        """Opens in steps: yields the progress of recovery, returns the engine.

        Topics of class memory may still be on their way when it returns (`finish_recovery`).
        """
        if not __debug__:
            raise Poisoned("topics checks itself with assertions; do not run python with -O")
        fs, clock = fs or OsFs(), clock or SystemClock()
        settings = check(settings or Settings())
        data = DataDir(fs, path)
        lock = None
        try:
            make_directory(fs, path)
            lock = fs.lock(join(path, "LOCK"), f"{owner_name()}, since {clock.wall_ms()} ms")
            # The directory is ours: a server may listen now.
            yield 0.0
            data.prepare()
            store = open_store(settings.cold_dir, fs) if settings.cold_dir else None
            segments = Segments(fs, data.segments, store, settings.block_cache_bytes)
            core = Core(data, clock, settings, segments)
            recovery = Recovery(core, WalStats())
            yield from recovery.steps()
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise typed(error, f"{path} can not be opened") from error
            raise
        return cls(core, recovery, lock)

    @property
    def is_recovering(self) -> bool:
        """Whether topics of class memory are still to be brought back."""
        return bool(self._recovery.replay.deferred)

    def recover_one(self) -> None:
        """Brings back one topic of class memory that was left for after readiness."""
        for topic_id in self._recovery.replay.deferred:
            self._finish_topic(topic_id)
            return

    def finish_recovery(self) -> None:
        """Brings back the topics of class memory that were left for after readiness."""
        while self.is_recovering:
            self.recover_one()
        if self.core.settings.gc_freeze:
            gc.collect()
            gc.freeze()

    def _finish_topic(self, topic_id: int) -> None:
        self._recovery.replay.finish_deferred(topic_id)
        topic = self.core.by_id.get(topic_id)
        if topic is not None:
            self.core.recount(topic)

    def close(self) -> None:
        """Makes everything durable, marks the log as cleanly ended, lets go of the directory."""
        if self._is_closed:
            return
        self._is_closed = True
        core = self.core
        try:
            self._maintenance.close()
            if core.committer.poison is None:
                self._close_log()
        finally:
            core.syncer.close()
            for lane in core.committer.lanes:
                lane.shard.close()
            core.segments.close()
            self._lock.release()

    def _close_log(self) -> None:
        core = self.core
        self.finish_recovery()
        resident = [topic for topic in core.by_id.values() if topic.durability == "ephemeral"]
        written = [write_account(core, topic) for topic in resident]
        core.committer.sync()
        # All of it is durable: a machine that crashes later on has nothing of it to tell.
        for topic in [core.by_id[key] for key in core.open_topics if key in core.by_id]:
            if topic.config.durability == "disk":
                close_ceiling(core, topic)
        core.committer.sync()
        # On a full disk it is no clean end: nobody would know the heads of the ephemeral topics.
        is_clean = all(ticket.error is None for ticket in written)
        for lane in core.committer.lanes:
            write_mark(core, lane.shard.index, is_clean=is_clean)
        for lane in core.committer.lanes:
            core.syncer.wait(lane.shard, lane.shard.position)
        core.committer.poll()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- driving -----------------------------------------------------------------------------

    def on_durable(self, notify: Callable[[], None]) -> None:
        """`notify` is called from a sync thread whenever `poll` may have something to do."""
        self.core.notify = notify

    def flush(self) -> None:
        """Writes what was submitted; ungated tickets have ended when it returns."""
        self._guard(self.core.committer.flush)

    def poll(self) -> None:
        """Ends the tickets of what has become durable."""
        self._guard(self.core.committer.poll)

    def sync(self) -> None:
        """Makes everything submitted so far durable."""
        self._guard(self.core.committer.sync)

    def maintain(self, budget_s: float = SLICE_S) -> bool:
        """A slice of background work; True when there is more to do at once."""
        more = False

        def run() -> None:
            nonlocal more
            more = self._maintenance.run(budget_s)

        self._guard(run)
        return more

    def checkpoint(self) -> None:
        """Seals, snapshots and trims now."""
        self._guard(self._maintenance.checkpoint_now)

    def scrub(self, *, keep_aside: bool = False) -> Scrubbed:
        """Erases from the disk what was deleted, evicted or expired so far."""
        done = Scrubbed()
        work = scrub(self.core, done, keep_aside=keep_aside)
        self._guard(lambda: self._maintenance.finish(work))
        return done

    def _guard(self, call: Callable[[], None]) -> None:
        """Runs a call that touches the log; a failed sync leaves a note for the next start."""
        self._check_writable()
        try:
            call()
        except Poisoned as error:
            self.core.data.poison(str(error))
            raise

    def _wait(self, ticket: Ticket) -> Any:
        result = None

        def wait() -> None:
            nonlocal result
            result = self.core.committer.wait(ticket)

        self._guard(wait)
        if self._maintenance.due():
            # What fails here is not this operation, which has ended well: the next one is told.
            with contextlib.suppress(DiskFull, StorageError):
                self.maintain()
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the engine is closed")

    def _check_writable(self) -> None:
        self._check_open()
        poison = self.core.committer.poison
        if poison is not None:
            raise Poisoned(f"storage failed and nothing more is written; restart to recover: {poison}")

    def _topic(self, name: str) -> Topic:
        self._check_open()
        topic = self.core.topic(name)
        if topic.id in self._recovery.replay.deferred:
            self._finish_topic(topic.id)
        return topic

    # -- topics ------------------------------------------------------------------------------

    def put_topic(self, name: str, config: catalog.Given = None) -> tuple[TopicConfig, bool]:
        """Creates a topic or replaces its config; (config as it stands, whether it is new)."""
        topic, created, ticket = self.submit_put(name, config)
        self._wait(ticket)
        return topic.config, created

    def submit_put(self, name: str, config: catalog.Given) -> tuple[Topic, bool, Ticket]:
        self._check_writable()
        if check_name(name) in self.core.by_name:
            self._topic(name)
        return catalog.put(self.core, name, config)

    def delete_topic(self, name: str, *, if_empty: bool = False) -> bool:
        """Removes a topic and all its records for good; False when there was none."""
        deleted, ticket = self.submit_drop(name, if_empty=if_empty)
        self._wait(ticket)
        return deleted

    def submit_drop(self, name: str, *, if_empty: bool) -> tuple[bool, Ticket]:
        self._check_writable()
        if check_name(name) in self.core.by_name:
            self._topic(name)
        return catalog.drop(self.core, name, if_empty=if_empty)

    def list_topics(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        """Names in byte order behind `after`."""
        self._check_open()
        return self.core.names.page([prefix], after=after, limit=limit)

    def state(self, name: str, *, touch: bool = True) -> TopicState:
        topic = self._topic(name)
        self.core.expire(topic)
        if touch:
            topic.last_read_ts = self.core.clock.wall_ms()
        self.core.committer.flush()
        return catalog.state_of(topic)

    # -- writing -----------------------------------------------------------------------------

    def append(
        self,
        name: str,
        records: Sequence[Mapping[str, Any]],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Appended:
        """Appends records; durable on return as the topic's class promises."""
        request = request_of(records, node=node, idempotency_key=idempotency_key, create=create)
        request.config = None if config is None else config_input(config)
        return self._wait(self.submit_append(name, request))  # type: ignore[no-any-return]

    def append_json(self, name: str, body: bytes) -> Appended:
        """Appends the records of a JSON write body, data kept verbatim."""
        request = decode_write(body, self.core.settings)
        return self._wait(self.submit_append(name, request))  # type: ignore[no-any-return]

    def submit_append(self, name: str, request: Request) -> Ticket:
        """Checks and stages a write. Nothing has happened when it raises."""
        self._check_writable()
        topic = self.core.by_name.get(name)
        batch = Batch(request.records, request.node, self.core.settings)
        ticket = Ticket()
        created = topic is None
        if topic is None:
            topic = self._create_for(name, request)
        elif topic.id in self._recovery.replay.deferred:
            self._finish_topic(topic.id)
        try:
            append.append(
                self.core, topic, batch, key=request.idempotency_key, created=created, ticket=ticket
            )
        except TopicsError:
            if created:
                catalog.uncreate(self.core, topic)
            raise
        return ticket

    def _create_for(self, name: str, request: Request) -> Topic:
        check_name(name)
        config = resolve_config(request.config, topic=name, type_now=None)
        wanted = config.auto_create if request.create is None else request.create
        if not wanted:
            raise TopicNotFound(
                f'topic "{name}" does not exist and this write may not create it', topic=name
            )
        return catalog.create(self.core, name, config, None)[0]

    def delete(self, name: str, *, before_seq: int | None = None, match: object = None) -> Deleted:
        """Removes existing records for good: below a seq, by tag, or both. Silent for readers."""
        return self._wait(self.submit_delete(name, before_seq=before_seq, match=match))  # type: ignore[no-any-return]

    def submit_delete(self, name: str, *, before_seq: object, match: object) -> Ticket:
        self._check_writable()
        before = deletes.parse_before(before_seq)
        predicate = None if match is None else deletes.parse_match(match)
        if before is None and predicate is None:
            raise InvalidRequest("a delete needs before_seq or match or both")
        ticket = Ticket()
        deletes.delete(self.core, self._topic(name), before, predicate, ticket)
        return ticket

    # -- reading -----------------------------------------------------------------------------

    def diff(self, name: str, **options: Any) -> Page:
        """Records behind a cursor, with the tombstone for what was lost; waits for cold reads.

        Options: from_seq, limit, node, include_tags, include_meta, include_data, epoch, bytes_max.
        """
        while True:
            try:
                return self.diff_now(name, **options)
            except ColdMiss as miss:
                segments = self.core.segments
                fetched = list(zip(miss.ahead, segments.fetch(miss.ahead), strict=True))
                # The first one last: it is needed next, and the cache may be small.
                for block, columns in reversed(fetched):
                    segments.admit(block, columns)

    def diff_now(
        self,
        name: str,
        *,
        from_seq: int = 0,
        limit: int = 0,
        node: str | Sequence[str] = (),
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
        epoch: int | None = None,
        bytes_max: int = 0,
        touch: bool = True,
    ) -> Page:
        """Like `diff`, but raises ColdMiss instead of waiting for the cold store."""
        if type(from_seq) is not int or not 0 <= from_seq <= U64_MAX:
            raise InvalidRequest("from_seq must be from 0 to 2^64 - 1")
        topic = self._topic(name)
        core = self.core
        if topic.config.ttl_ms or core.estimates_bytes(topic):
            core.expire(topic)
            core.committer.flush()
        if touch:
            topic.last_read_ts = core.clock.wall_ms()
        nodes = frozenset((node,) if isinstance(node, str) else node)
        if not topic.config.dedupe_node:
            nodes = frozenset()
        return reading.page(
            topic, from_seq, epoch, View(nodes, include_tags, include_meta, include_data),
            limit=clamp(limit or LIMIT_DEFAULT, 1, core.settings.max_limit),
            bytes_max=clamp(bytes_max or BATCH_BYTES_DEFAULT, 1, BATCH_BYTES_MAX),
            load_now=core.segments.columns,
        )  # fmt: skip

    def explain(
        self, name: str, first: int = 1, last: int | None = None, *, ranges_max: int | None = None
    ) -> list[Range]:
        """What became of every seq of [first, last]: live, or why it is gone."""
        topic = self._topic(name)
        self.core.expire(topic)
        self.core.committer.flush()
        ranges = topic.explain(first, topic.head if last is None else last)
        return list(islice(ranges, ranges_max))
