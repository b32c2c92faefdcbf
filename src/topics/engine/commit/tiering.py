"""The cold store's side of tiering: what is to be done there, one call at a time, and how it goes.

The store may be slow, or away, for any length of time and at any call. That costs cold reads and
relocation and nothing else: its calls run in a thread of their own, one at a time; a failed one is
counted, told and repeated after a while. Nothing here is an error of the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial

from topics.clock import Clock
from topics.engine.commit.background import Background, Job
from topics.engine.state import places
from topics.engine.state.block import Block, Segment
from topics.engine.state.segments import Segments
from topics.errors import CorruptData, TopicsError
from topics.settings import Settings
from topics.storage import cold
from topics.storage import segment as codec
from topics.storage.columns import Columns
from topics.storage.datadir import DataDir
from topics.storage.fs import join, opened
from topics.storage.segment import FileBytes, Row, SegmentInfo

LOG = logging.getLogger("topics.engine")

BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 60.0
DELETES_MAX = 100


class Tiering:
    """What is to be done in the cold store, and how that goes."""

    def __init__(
        self,
        data: DataDir,
        clock: Clock,
        settings: Settings,
        segments: Segments,
        background: Background,
        is_bucket: Callable[[int], bool],
    ) -> None:
        self._data = data
        self._clock = clock
        self._settings = settings
        self._segments = segments
        self._background = background
        # Whether a topic is one, by its id: its keys stay here when its records go.
        self._is_bucket = is_bucket
        self.failures_total = 0
        # What the store said last, while it fails.
        self.error = ""
        self._backoff_s = 0.0
        self._retry_s = 0.0
        # The call under way, and what follows when it has ended well.
        self._job: Job | None = None
        self._ended: Callable[[], None]
        # A block that somebody waits for without waiting: routers, the tag indexes.
        self._wanted: Block | None = None
        # Whether hot segments may have outgrown their bound since the last look at them.
        self._looks = False
        # Segments that are stored whole, with the encoded spans of their blocks: they may switch.
        self.stored: dict[int, list[bytes]] = {}
        # Segments with a damaged block stay where they are.
        self._damaged: set[int] = set()
        # Objects of segments that are gone.
        self.unneeded: list[int] = []
        # Whether somebody else has the store to himself.
        self._is_held = False

    @property
    def is_waiting(self) -> bool:
        """Whether a call to the store is under way."""
        return self._job is not None

    def failed(self, error: BaseException) -> None:
        """Notes that a call failed; the next is made after a while."""
        self.failures_total += 1
        self._backoff_s = min(max(self._backoff_s * 2, BACKOFF_MIN_S), BACKOFF_MAX_S)
        self._retry_s = self._clock.monotonic_s() + self._backoff_s
        self.error = str(error.__cause__ or error)
        LOG.error(
            "the cold store fails, next try in %d s; nothing is lost: %s",
            self._backoff_s, self.error,
        )  # fmt: skip

    def answered(self) -> None:
        if self.error:
            LOG.warning("the cold store answers again")
        self.error = ""
        self._backoff_s = self._retry_s = 0.0

    @property
    def may_try(self) -> bool:
        """Whether the store answered last time, or that was long enough ago."""
        return self._clock.monotonic_s() >= self._retry_s

    def want(self, block: Block) -> None:
        """Asks for a cold block; it is in the cache some time, unless others are asked for."""
        self._wanted = self._wanted or block

    def forget(self, number: int) -> None:
        """A segment's local files are gone; its object follows when the store is there.

        Until then snapshots go on to name it as garbage, so that no restart forgets it.
        """
        self.stored.pop(number, None)
        if self._segments.store is not None:
            self.unneeded.append(number)

    def look(self) -> None:
        """A checkpoint has been taken: there may be segments to move."""
        self._looks = True

    # -- work --------------------------------------------------------------------------------

    def tend(self) -> None:
        """Takes note of the call that has ended, and makes the next one that is due."""
        job = self._job
        if job is not None and job.done:
            self._job = None
            try:
                job.result()
            except (OSError, TopicsError) as error:
                self._wanted = None
                self.failed(error)
            else:
                self.answered()
                self._ended()
        has_store = self._segments.store is not None and not self._is_held
        if self._job is None and has_store and self.may_try:
            self._begin()

    def _begin(self) -> None:
        block = self._wanted
        if block is not None:
            columns: list[Columns] = []
            held = block.segment
            if held is None or not held.is_cold or held.number not in self._segments.live:
                # It is gone, or somewhere else by now.
                self._wanted = None
                return
            request = self._segments.ask([block])
            self._start(
                lambda: columns.extend(request.read()),
                lambda: self._admit(block, columns[0]),
            )
        elif self.unneeded:
            numbers = self.unneeded[:DELETES_MAX]
            self._start(partial(self._delete, numbers), partial(self._deleted, numbers))
        elif self._looks:
            held = next((s for s in self.surplus() if s.number not in self.stored), None)
            self._looks = held is not None
            if held is not None:
                spans: list[bytes] = []
                owners = {row.topic_id for row in held.info.rows}
                buckets = frozenset(filter(self._is_bucket, owners))
                self._start(
                    lambda: spans.extend(self._store(held.info, buckets)),
                    lambda: self._keep(held, spans),
                )

    def _start(self, call: Callable[[], None], ended: Callable[[], None]) -> None:
        self._ended = ended
        self._job = self._background.jobs.start(call)

    def surplus(self) -> Iterator[Segment]:
        """The segments that have to go for the hot tier to fit, oldest first."""
        hot = [held for held in self._segments.live.values() if not held.is_cold]
        total = sum(held.info.size for held in hot)
        # A segment may have been written anew: what counts is how old its records are.
        for held in sorted(hot, key=lambda held: (held.last_ts, held.number)):
            if total <= self._settings.hot_bytes:
                return
            if held.number not in self._damaged:
                total -= held.info.size
                yield held

    @property
    def wants_switch(self) -> bool:
        """Whether everything that has to go is stored, and waits for a checkpoint only."""
        return bool(self.stored) and not self._looks

    def _admit(self, block: Block, columns: Columns) -> None:
        self._wanted = None
        self._segments.admit(block, columns)

    def _store(self, info: SegmentInfo, buckets: frozenset[int]) -> list[bytes]:
        """Stores a segment whole; the spans of its blocks, each of which was read and is sound."""
        data, name = self._data, codec.file_name(info.number)
        store = self._segments.store
        assert store is not None
        with opened(data.fs, join(data.segments, name), writable=False) as file:
            source = FileBytes(file)
            try:
                spans = [_spans(source, row, info.number, buckets) for row in info.rows]
            except CorruptData as error:
                LOG.error("not moved to the cold store: %s", error)
                return []
            size = file.size()
            store.put(name, codec.checked_parts(source, info, size))
        if store.size(name) != size:
            raise OSError(f"cold copy of {name} is not whole")
        return spans

    def _keep(self, held: Segment, spans: list[bytes]) -> None:
        if not spans:
            self._damaged.add(held.number)
        elif held.number in self._segments.live:
            self.stored[held.number] = spans

    def _delete(self, numbers: list[int]) -> None:
        store = self._segments.store
        assert store is not None
        for number in numbers:
            store.delete(codec.file_name(number))

    def _deleted(self, numbers: list[int]) -> None:
        self.unneeded = [number for number in self.unneeded if number not in numbers]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No call is made meanwhile; `finish` waits for the one that is under way."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def finish(self) -> Iterator[None]:
        """Waits for the call under way, and forgets what it stored."""
        while self._job is not None and not self._job.done:
            yield from self._background.wait()
        self._job = None
        self.stored.clear()


def _spans(source: FileBytes, row: Row, number: int, buckets: frozenset[int]) -> bytes:
    columns = codec.read_block(source, row, number)
    beside = places.beside(columns, row.first, 0, row.count)
    return cold.encode_spans(columns, beside, with_keys=row.topic_id in buckets)
