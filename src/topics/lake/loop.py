"""The loop of a sync: which topics, how often, and for how long without the server.

Topics that match are looked for again and again; each is brought further by a thread, so that a
long one keeps nobody waiting. What can pass (the server away, another sync that was faster, a topic
created anew in the middle) is tried again; all else ends the sync with its error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from topics.client.client import Client
from topics.client.values import TopicState, TopicSummary
from topics.errors import (
    Closed,
    Conflicting,
    NotFound,
    NotReady,
    Overloaded,
    Throttled,
    TopicNotFound,
    TopicsError,
    Unreachable,
)
from topics.lake import deletes, latest
from topics.lake.freshness import Freshness
from topics.lake.layout import Lake, matching
from topics.lake.reports import cursor_of
from topics.lake.schemas import Extras
from topics.lake.sync import NO_EXTRAS, Moved, TopicSync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 4
# Topics that are written now and then: side by side each step of them would only take longer.
FEW_ROWS = 20_000
FEW_AT_ONCE = max(2, os.cpu_count() or 1)
NOTHING = {"rows": 0, "rejected": 0}
PAUSE_S, AWAY_PAUSE_S = 0.5, 1.0
# How often what follows the rows is done while a topic is written.
AFTER_S = 5.0
_PASSING = (Unreachable, NotReady, Closed, Throttled, Overloaded, Conflicting)
# The reader's codes that pass by themselves, Delta's word for a sync that was faster, and Spark's
# for a worker that took longer than ten seconds to start.
_PASSING_WORDS = (
    "TOPIC_SERVER_UNREACHABLE", "TOPIC_DATA_LOSS", "DELTA_CONCURRENT", "failed to connect back",
)  # fmt: skip

T = TypeVar("T")
Told = Callable[[str, Moved], None]
# What of a topic is different when there is something to do.
Seen: TypeAlias = tuple[str, int, int, int]


@dataclass(frozen=True)
class Wishes:
    """What a sync does beyond the rows."""

    propagates: bool = False
    latest: bool = False
    by_day: bool = False
    extras: Extras = NO_EXTRAS

    @property
    def has_more(self) -> bool:
        return self.propagates or self.latest


@dataclass
class _Course:
    """A topic on its way: what of it was seen when its table was last as far as it."""

    sync: TopicSync
    done: Seen | None = None
    reported: tuple[str, int] | None = None
    after_s: float = 0.0
    work: Future[None] | None = None


class SyncLoop:
    """A sync of the topics that match. `results` says what became of each."""

    def __init__(
        self,
        lake: Lake,
        client: Client,
        patterns: list[str],
        spark: Callable[[], SparkSession],
        *,
        give_up_after_s: float,
        wishes: Wishes,
        told: Told,
        says: Callable[[str], None],
    ) -> None:
        self._lake, self._client, self._patterns, self._spark = lake, client, patterns, spark
        self._give_up_after_s = give_up_after_s
        self._wishes = wishes
        self._told, self._says = told, says
        self._freshness = Freshness(min(THREADS, FEW_AT_ONCE), PAUSE_S, says)
        self._courses: dict[str, _Course] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.stopping = threading.Event()

    def once(self) -> None:
        """Up to the heads that are there now. Raises NotFound, Unreachable."""
        found = self._patiently(self._found)
        with ThreadPoolExecutor(THREADS) as threads:
            drain = self._drain
            self._wait_for([threads.submit(drain, each.topic, each.head_seq) for each in found])

    def forever(self) -> None:
        """Until `stopping` is set. Raises NotFound, Unreachable."""
        found = self._patiently(self._found)
        # Those that have little to read wait in a row of their own, each for its turn.
        with ThreadPoolExecutor(THREADS) as threads, ThreadPoolExecutor(FEW_AT_ONCE) as few:
            try:
                while not self.stopping.is_set():
                    for each in found:
                        self._begin(few if self._has_few(each) else threads, each)
                    self.stopping.wait(PAUSE_S)
                    self._freshness.tell_if_due()
                    found = self._patiently(self._listed)
            finally:
                self.stopping.set()
        self._freshness.tell()
        self._wait_for([course.work for course in self._courses.values() if course.work])

    def _begin(self, threads: ThreadPoolExecutor, found: TopicSummary) -> None:
        course = self._course(found.topic)
        if course.work is not None:
            if not course.work.done():
                return
            course.work.result()
            course.work = None
        if course.done != _seen(found):
            self._freshness.seen(found.topic)
            course.work = threads.submit(self._timed_drain, found.topic)

    def _wait_for(self, works: list[Future[None]]) -> None:
        try:
            for work in works:
                work.result()
        except BaseException:
            self.stopping.set()
            raise

    # -- topics ------------------------------------------------------------------------------

    def _found(self) -> list[TopicSummary]:
        found = self._listed()
        if not found:
            raise NotFound(f"no topic matches {' or '.join(map(repr, self._patterns))}")
        return found

    def _listed(self) -> list[TopicSummary]:
        found = list(self._client.all_topics())
        wanted = set(matching(self._patterns, (each.topic for each in found)))
        return [each for each in found if each.topic in wanted]

    def _course(self, topic: str) -> _Course:
        if topic not in self._courses:
            sync = TopicSync(
                self._lake, topic, self._client, self._spark, by_day=self._wishes.by_day,
                extras=self._wishes.extras,
            )  # fmt: skip
            self._courses[topic] = _Course(sync)
        return self._courses[topic]

    def _timed_drain(self, topic: str) -> None:
        begun_s, rows = time.monotonic(), self._rows_of(topic)
        # To where the topic is by then: what came while it waited for a thread goes along.
        self._drain(topic, None)
        if self._rows_of(topic) > rows:
            self._freshness.committed(topic, time.monotonic() - begun_s)
        else:
            self._freshness.unchanged(topic)

    def _has_few(self, found: TopicSummary) -> bool:
        before = self.results.get(found.topic)
        return before is not None and 0 <= found.head_seq - before["seq"] <= FEW_ROWS

    def _rows_of(self, topic: str) -> int:
        found: int = self.results.get(topic, NOTHING)["rows"]
        return found

    def _drain(self, topic: str, upto: int | None) -> None:
        """Steps until a table is at `upto`, or where its topic was, or the topic is gone."""
        course = self._course(topic)
        while not self.stopping.is_set():
            moved = self._patiently(partial(self._step, course.sync, upto))
            if moved is None:
                return
            self._count(topic, moved)
            # No further: a topic that is written faster than it is read keeps no thread for good.
            upto = moved.state.head_seq if upto is None else upto
            if moved.seq >= moved.head:
                if self._end(course, moved):
                    course.done = _seen(moved.state)
                return

    def _step(self, sync: TopicSync, upto: int | None) -> Moved | None:
        try:
            return sync.step(upto)
        except TopicNotFound:
            return None

    def _count(self, topic: str, moved: Moved) -> None:
        before = self.results.get(topic, NOTHING)
        self.results[topic] = {
            "topic": topic, "epoch": moved.epoch, "seq": moved.seq, "head_seq": moved.head,
            "lag": max(0, moved.head - moved.seq), "rows": moved.rows + before["rows"],
            "rejected": moved.rejected + before["rejected"],
        }  # fmt: skip
        if moved.rows:
            self._told(topic, moved)

    def _end(self, course: _Course, moved: Moved) -> bool:
        """What follows the rows; whether all of it was done."""
        if self._wishes.has_more:
            if time.monotonic() - course.after_s < AFTER_S:
                return False
            self._patiently(lambda: self._do_more(course.sync))
            course.after_s = time.monotonic()
        place = (moved.epoch, moved.seq)
        if course.reported != place and moved.seq:
            course.reported = place
            try:
                self._client.set_cursor(
                    course.sync.topic, cursor_of(self._lake), moved.seq, epoch=moved.epoch,
                    reset=True,
                )  # fmt: skip
            except TopicsError:
                # It shows lag and carries nothing else.
                pass
        return True

    def _do_more(self, sync: TopicSync) -> None:
        if self._wishes.propagates:
            try:
                deletes.propagate(self._lake, sync.table, self._client)
            except TopicNotFound:
                pass
        if self._wishes.latest:
            with self._lake.writing(sync.topic):
                latest.refresh(self._lake, sync.topic)

    # -- patience ----------------------------------------------------------------------------

    def _patiently(self, call: Callable[[], T]) -> T:
        """Calls, and again while what fails can pass."""
        failing_s: float | None = None
        while True:
            try:
                return call()
            except Exception as error:
                if not _is_passing(error):
                    if isinstance(error, PySparkException | Py4JError):
                        raise TopicsError(f"Spark failed: {_words(error)}") from error
                    raise
                now_s = time.monotonic()
                failing_s = now_s if failing_s is None else failing_s
                if now_s - failing_s >= self._give_up_after_s or self.stopping.is_set():
                    raise Unreachable(
                        f"given up after {now_s - failing_s:.0f} s: {_words(error)}"
                    ) from None
                self._says(f"trying again: {_words(error)}")
            self.stopping.wait(min(AWAY_PAUSE_S, self._give_up_after_s))


def _words(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _is_passing(error: Exception) -> bool:
    if isinstance(error, TopicsError):
        return isinstance(error, _PASSING)
    return any(word in str(error) for word in _PASSING_WORDS)


def _seen(found: TopicSummary | TopicState) -> Seen:
    return found.epoch, found.head_seq, found.earliest_seq, found.count
