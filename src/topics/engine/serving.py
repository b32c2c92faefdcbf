"""What a server asks of its engine beside the calls of its clients.

Nothing here waits, writes or brings a topic up to date, and all of it is cheap: it says how things
stand, tells what happens, and lets somebody else's threads read the cold store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol

from topics.engine import gauges
from topics.engine.gauges import Gauges, Measure, Sums, TopicGauges
from topics.engine.lifecycle import Lifecycle
from topics.engine.reading import priority
from topics.engine.reading.feeds import Feeds, Fetch
from topics.engine.reading.scheduler import Scheduler
from topics.engine.state.segments import ColdMiss, Request
from topics.engine.state.topic import Topic
from topics.errors import Poisoned
from topics.storage.columns import Columns
from topics.storage.register import Register
from topics.types import TopicConfig

_NO_TOPIC = TopicConfig()


class LogTimes(Protocol):
    """How long the log took for what ends now: its write, and its sync if that was waited for."""

    @property
    def write_s(self) -> float: ...

    @property
    def sync_s(self) -> float: ...


class Serving(Lifecycle):
    """A mixin of Engine."""

    # -- what happens ------------------------------------------------------------------------

    def on_published(self, told: Callable[[Topic], None]) -> None:
        """`told` is called whenever a topic's head moved or the topic is gone.

        It may not call the engine. Those who are told before stay so.
        """
        self.core.on_published.append(told)

    def open_feeds(self, scheduler: Scheduler, fetch: Fetch) -> Feeds:
        """The feeds of those who watch topics, told of everything that is published."""
        feeds = Feeds(self.core, scheduler, fetch)
        self.on_published(feeds.published)
        return feeds

    @property
    def log_times(self) -> LogTimes:
        """Valid while tickets end: it is the same for all that were written together."""
        return self.core.committer

    @property
    def poison(self) -> Poisoned | None:
        """Why nothing more is written, if so: the process has to end and recover."""
        return self.core.committer.poison

    def rests_beside(self, has_company: Callable[[], bool]) -> None:
        """Rewrites and backups rest while others are there. Called from their threads."""
        self.core.background.has_company = has_company

    @property
    def is_waiting(self) -> bool:
        """Whether background work waits for a thread: more of it now would do nothing."""
        return self.core.background.is_waiting

    # -- topics ------------------------------------------------------------------------------

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of this name."""
        return name in self.core.by_name

    @property
    def topic_count(self) -> int:
        return len(self.core.by_name)

    def names(self, prefixes: Iterable[str], *, after: str, limit: int) -> list[str]:
        """Names of topics after `after` that begin with one of the prefixes, in byte order."""
        return self.core.names.page(prefixes, after=after, limit=limit)

    def config_of(self, name: str) -> TopicConfig | None:
        """The config of a topic as it stands; None when there is none of this name."""
        topic = self.core.by_name.get(name)
        return None if topic is None else topic.config

    def lag_of(self, name: str, seq: int, epoch: int) -> int:
        """How many seqs are after a reader's place; none where there is no topic."""
        topic = self.core.by_name.get(name)
        if topic is None:
            return 0
        return max(0, topic.head - seq) if topic.epoch == epoch else topic.head

    def epoch_of(self, name: str) -> int:
        """The epoch of a topic that is known to be there."""
        return self.core.by_name[name].epoch

    def priority_of(self, name: str, now_ms: int, *, waited_ms: int = 0) -> int:
        """How much a topic matters to the scheduler now; one that is not there, the least."""
        topic = self.core.by_name.get(name)
        return priority.effective(
            _NO_TOPIC if topic is None else topic.config,
            consumed_ms=None if topic is None else topic.last_read_ts,
            now_ms=now_ms, waited_ms=waited_ms,
        )  # fmt: skip

    # -- routers -----------------------------------------------------------------------------

    def router_names(self, prefixes: Iterable[str], *, after: str, limit: int) -> list[str]:
        """As `names`, of routers."""
        return self.core.routers.names.page(prefixes, after=after, limit=limit)

    def routers_of(self, name: str) -> list[str]:
        """The names of the routers from and to a topic, which go when it does."""
        topic = self.core.by_name.get(name)
        touching = () if topic is None else self.core.routers.touching(topic)
        return [router.name for router in touching]

    # -- counts ------------------------------------------------------------------------------

    @property
    def frames_on_their_way(self) -> int:
        """Frames that are to be written or synced: a measure of pressure."""
        return self.core.committer.frames_on_their_way

    def gauges(self) -> Gauges:
        """What the metrics show of the whole log."""
        return gauges.of_engine(self.core, self.wal_stats)

    def topic_gauges(self, name: str) -> TopicGauges:
        """Those of a topic that is known to be there."""
        return gauges.of_topic(self.core, name)

    def cursor_lags(self, names: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """(topic, cursor, seqs between it and the head), of topics that are known to be there."""
        return gauges.lags(self.core, names)

    def add_up(self) -> Generator[None, None, Sums]:
        """Adds up over all topics, a slice of them at each step, so that nobody waits for it."""
        return gauges.add_up(self.core)

    def largest(
        self, prefixes: Sequence[str], by: Measure, *, after: tuple[int, str] | None, limit: int
    ) -> Generator[None, None, list[tuple[int, str]]]:
        """Topics with what they measure, the largest first, a slice of them at each step."""
        return gauges.largest(self.core, prefixes, by, after, limit)

    # -- what a server keeps beside the log ----------------------------------------------------

    def open_register(self, name: str) -> Register:
        """A register in the data directory, to be loaded. Whoever opens it closes it."""
        return Register(self.core.data.fs, self.core.data.root, name)

    # -- the cold store ----------------------------------------------------------------------

    def ask(self, miss: ColdMiss) -> Request:
        """A request for what a read missed, which any thread may read from the cold store."""
        return self.core.segments.ask(miss.ahead)

    def admit(self, request: Request, fetched: list[Columns]) -> None:
        """Keeps what was fetched, so that the read can be repeated."""
        self.core.segments.admit_all(request.ahead, fetched)
