"""Sync: from the log to the table, rows and position in one commit.

One step reads what comes after the table's position, up to a bound, in as many tasks as there are
cores, and appends it. A step that is cut short has done nothing or all of it; the next one looks at
the table again. Records and gaps come as the server tells them; what was deleted before it was read
leaves no row, and the server's account of it is stored.

Where users gave a schema its columns are made on the way, and what it rejects follows into the dead
letters when the rows are there, before the step is remembered as done.

A topic that was created anew is one gap of the old epoch, then the new epoch from its first seq.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_topics.accounts import Account as Planning
from pyspark_topics.accounts import State, account
from pyspark_topics.http import Server
from pyspark_topics.options import SourceOptions, source_options
from pyspark_topics.ranges import frame
from pyspark_topics.splits import Planned, split
from topics.client.client import Client
from topics.client.values import TopicState
from topics.errors import NotFound
from topics.lake.accounts import Account, EpochOver
from topics.lake.dead_letters import DeadLetters, is_judged
from topics.lake.layout import Lake
from topics.lake.schemas import Extras, settled
from topics.lake.sessions import for_commits
from topics.lake.spans import without
from topics.lake.table import RECREATED, Snapshot, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of one commit; of one task where there are enough for several.
ROWS_MAX, BYTES_MAX = 2_000_000, 1 << 30
TASK_ROWS_MIN = 20_000
NO_EXTRAS = Extras()
# Of one call of a task: the loop around has the patience.
_RETRIES = 4


@dataclass(frozen=True)
class Moved:
    """What a step did: where the table stands in which epoch, and where it was to come.

    `state` is the topic as it was when the step began.
    """

    epoch: str
    seq: int
    head: int
    state: TopicState
    rows: int = 0
    rejected: int = 0


@dataclass
class _Known:
    """What the last step left, true while the table has this version and the topic this epoch."""

    version: int
    account: Account
    seq: int


class TopicSync:
    """One topic and its table."""

    def __init__(
        self,
        lake: Lake,
        topic: str,
        client: Client,
        spark: Callable[[], SparkSession],
        *,
        by_day: bool = False,
        extras: Extras = NO_EXTRAS,
    ) -> None:
        self.topic = topic
        self.table = Table(lake, topic)
        self._lake = lake
        self._client = client
        self._spark = spark
        self._by_day = by_day
        # What is asked for; then, with what the lake keeps, what holds.
        self._asked = extras
        self._extras: Extras | None = None
        self._letters = DeadLetters(lake, topic)
        self._known: _Known | None = None
        # A read that failed is not cut again: what grew over a cut once may do so twice.
        self._is_whole = False

    def step(self, upto: int | None = None) -> Moved:
        """Brings the table further, at most to `upto`.

        Raises TopicNotFound, Unreachable, Conflicting, and what Spark raises.
        """
        with self._lake.writing(self.topic):
            state = self._client.topic(self.topic, touch=False)
            now = self._opened()
            known = self._placed(now, state)
            if known is None:
                return Moved(state.epoch, 0, 1, state)
            head = state.head_seq if upto is None else min(upto, state.head_seq)
            # A loss that goes on behind it is told as a whole.
            head = max(head, state.earliest_seq - 1)
            if head <= known.seq:
                return Moved(state.epoch, known.seq, head, state)
            return self._read_on(now, known, state, head)

    def _opened(self) -> Snapshot:
        try:
            now = self.table.snapshot()
        except NotFound:
            self.table.make(by_day=self._by_day)
            now = self.table.snapshot()
        if self._extras is None:
            self._extras = settled(self._lake, self.topic, self._asked, now)
            if self._extras.shape is not None:
                # Before the first row: dead letters that are not there were taken away.
                self._letters.make()
        return now

    def _placed(self, now: Snapshot, state: TopicState) -> _Known | None:
        """Where the table stands; None when epochs had to be ended first."""
        known = self._known
        if known is None or known.version != now.version or known.account.epoch != state.epoch:
            self._known = None
            self._letters.follow(now)
            ends = now.ends()
            if self._end_epochs(now, ends, state.epoch):
                return None
            account = Account(self._lake, self.topic, state.epoch)
            seq = ends.get(state.epoch, 0)
            # What somebody that was killed read and did not account for.
            account.ask(self._client, seq)
            known = self._known = _Known(now.version, account, account.place(seq))
        known.account.see(state.head_seq)
        return known

    def _end_epochs(self, now: Snapshot, ends: dict[str, int], current: str) -> bool:
        """Tells of every epoch but the current one that it is over, once each."""
        over = {*ends, *self._lake.epochs(self.topic)} - {current}
        if over:
            over -= {gap["epoch"] for gap in now.gaps() if gap["reason"] == RECREATED}
        gaps = []
        for epoch in sorted(over, key=int):
            account = Account(self._lake, self.topic, epoch)
            seq = account.place(ends.get(epoch, 0))
            account.see(seq)
            gaps.append(
                {"epoch": epoch, "seq": seq + 1, "_gap_to": account.head, "_gap_reason": RECREATED}
            )
        if gaps:
            self.table.append_gaps(gaps, now)
        return bool(gaps)

    def _read_on(self, now: Snapshot, known: _Known, state: TopicState, head: int) -> Moved:
        options = _options(self._client, self.topic)
        plan = self.plan(options, known.seq, state, head)
        known.account.add(without([(plan.start + 1, plan.end)], _told(plan)))
        end = plan.end
        if plan.items:
            self.append(now, plan, options)
            # Somebody else may have been faster: the table alone says how far it is.
            now = self.table.snapshot()
            rejected = 0
            if is_judged(now):
                what = f"epoch = '{state.epoch}' AND seq > {known.seq}"
                rejected = self._letters.follow(now, what)
            rows, seq = now.after(state.epoch, known.seq)
            if rows != plan.count:
                known.account.ask(self._client, plan.end)
            end = known.account.place(seq)
            known.account.upto = max(known.account.upto, end)
            known.account.commit(now.version, seq)
        else:
            rows = rejected = 0
        self._known = _Known(now.version, known.account, end)
        return Moved(state.epoch, end, head, state, rows, rejected)

    def plan(self, options: SourceOptions, at: int, state: TopicState, head: int) -> Planning:
        """What a step will read, at most up to `head`. Raises EpochOver."""
        size = state.bytes // max(state.count, 1)
        rows_max = max(1, min(ROWS_MAX, BYTES_MAX // max(size, 1)))
        seen = State(state.epoch, head, min(state.earliest_seq, head + 1))
        with Server(options.access) as server:
            found = account(server, self.topic, seen, at, head, rows_max=rows_max)
        if found.epoch != state.epoch:
            raise EpochOver(f'topic "{self.topic}" of epoch {state.epoch} is no more')
        if found.count > rows_max:
            found = found.cut(found.place_after(rows_max))
        return found

    def append(self, now: Snapshot, plan: Planning, options: SourceOptions) -> None:
        """Reads what was planned and commits it, unless somebody was there since `now`."""
        spark = for_commits(self._spark())
        parts = 1
        if not self._is_whole:
            cores = spark.sparkContext.defaultParallelism
            parts = max(1, min(cores, plan.count // TASK_ROWS_MIN))
        cut = split([Planned(self.topic, plan, (), None)], partitions_min=parts, rows_max=None)
        self._is_whole = True
        extras = self._extras or NO_EXTRAS
        self.table.append_frame(extras.added(frame(spark, cut, options, extras.shape)), now)
        self._is_whole = False


def _told(plan: Planning) -> list[tuple[int, int]]:
    return [(item.first, item.last) for item in plan.items]


def _options(client: Client, topic: str) -> SourceOptions:
    given = {
        "url": client.options.url, "subscribe": topic, "failOnDataLoss": "false",
        "fetch.numRetries": str(_RETRIES),
    }  # fmt: skip
    if client.options.token:
        given["token"] = client.options.token
    return source_options(given, is_stream=False)
