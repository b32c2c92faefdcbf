"""Streaming reads: what a batch takes is decided here, in the driver; tasks only read it.

Nothing that Spark forgets may carry correctness. The first place is not kept by Spark before the
first batch is done, so it follows from the server alone; `commit` comes late or never, and `stop`
hardly ever, so no promise rests on either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_topics import offsets, places, tasks
from pyspark_topics.accounts import Account, State, account, existing, state_of, states
from pyspark_topics.admission import Budget, admit
from pyspark_topics.cursors import NamedCursor
from pyspark_topics.errors import DataLoss
from pyspark_topics.http import Server
from pyspark_topics.offsets import Place, Places, is_known
from pyspark_topics.options import SourceOptions
from pyspark_topics.splits import Part, Planned, split

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. The driver's instance lives as long as the query; tasks get copies of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._server: Server | None = None
        self._cursor: NamedCursor | None = None
        self._seen: dict[str, State] = {}
        self._is_bounded = False
        # Where AvailableNow ends: the heads at its first look, not at its start, as Spark may
        # first run a batch again that was planned before.
        self._target: dict[str, State] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- called in the driver --------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        found = {}
        look = existing if self._options.fail_on_data_loss else states
        for topic, state in look(self._connected(), self._options).items():
            found[topic] = self._begin(topic, state, is_first=True)
        return offsets.encode(found)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_bounded = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = offsets.decode(start)
        self._lead(at)
        now = self._look()
        bases = self._bases(at, now)
        # Each topic that was created anew is told by a gap, which counts as any other.
        recreated = [name for name, base in bases.items() if at.get(name, base).epoch != base.epoch]
        budget = self._budget(limit).after(len(recreated))
        end = dict(at)
        pending = {}
        for topic, base in bases.items():
            if topic not in at:
                # It joins: first its place is kept, the next batch reads from there.
                end[topic] = base
                continue
            found = account(
                self._connected(), topic, now[topic], base.seq, now[topic].head,
                rows_max=budget.rows_max,
            )  # fmt: skip
            # Created anew in between: the next look sees that.
            if found.epoch == base.epoch:
                pending[topic] = found
        for topic, taken in admit(self._connected(), pending, budget).items():
            self._check_gaps(topic, bases[topic], taken)
            lost = sum(last - first + 1 for first, last in taken.gaps)
            if taken.end > taken.start or at[topic].epoch != taken.epoch:
                end[topic] = bases[topic].moved(taken.end, now[topic].head, lost)
        if end != at:
            return offsets.encode(end)
        if self._is_bounded and self._cursor is not None:
            # The query ends here, and Spark ends its process without a word.
            self._cursor.rest()
        return start

    def reportLatestOffset(self) -> dict[str, Any]:
        heads = {name: Place(seen.epoch, seen.head, seen.head) for name, seen in self._seen.items()}
        return offsets.encode(heads)

    def stop(self) -> None:
        """Called when the query fails, hardly ever otherwise: a courtesy to whoever comes next."""
        if self._cursor is not None:
            self._cursor.rest()
        if self._server is not None:
            self._server.close()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = offsets.decode(start), offsets.decode(end)
        parts: list[InputPartition] = []
        planned = []
        for topic, place in after.items():
            old = before.get(topic, place)
            first = old.seq
            if old.epoch != place.epoch:
                missed = max(old.seq, old.head)
                parts.append(Part(topic, old.epoch, old.seq, missed, is_recreated=True))
                first = 0
            if place.seq > first:
                found = self._account(topic, place, first)
                planned.append(Planned(topic, found, old.known, old.growing))
        options = self._options
        return parts + list(
            split(
                planned,
                partitions_min=options.partitions_min,
                rows_max=options.partition_records_max,
            )
        )

    # -- called in tasks -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return iter(())
        return tasks.read(partition, self._options)

    # -- of the driver's own ---------------------------------------------------------------------

    def _connected(self) -> Server:
        if self._server is None:
            self._server = Server(self._options.access)
            if self._options.cursor is not None:
                self._cursor = NamedCursor(self._server, self._options, self._options.cursor)
        return self._server

    def _lead(self, at: Places) -> None:
        """Spark asks for the next batch: everything up to here is done."""
        self._connected()
        if self._cursor is not None:
            self._cursor.go_on(at)

    def _look(self) -> dict[str, State]:
        """The topics as they are, or as AvailableNow saw them first."""
        self._seen = states(self._connected(), self._options)
        if not self._is_bounded:
            return self._seen
        if self._target is None:
            self._target = self._seen
        return {
            topic: self._target[topic]
            for topic, seen in self._seen.items()
            if topic in self._target and self._target[topic].epoch == seen.epoch
        }

    def _begin(self, topic: str, state: State, *, is_first: bool) -> Place:
        first = places.start_of if is_first else places.joined
        place = first(self._connected(), self._options, topic, state)
        return place if self._cursor is None else self._cursor.begin(topic, place)

    def _bases(self, at: Places, now: dict[str, State]) -> Places:
        """Where the next batch begins in each topic that is there. Raises DataLoss."""
        fails = self._options.fail_on_data_loss
        for topic in at:
            if topic not in self._seen and fails:
                raise DataLoss(
                    f"topic {topic!r} is gone. With failOnDataLoss=false the stream waits for it"
                )
        bases = {}
        for topic, state in now.items():
            place = at.get(topic)
            if place is None:
                bases[topic] = self._begin(topic, state, is_first=False)
            elif place.epoch == state.epoch:
                bases[topic] = place
            elif fails:
                raise tasks.lost(
                    topic, place.epoch, place.seq + 1, max(place.seq, place.head), tasks.RECREATED
                )
            else:
                missed = max(0, place.head - place.seq)
                bases[topic] = Place(state.epoch, 0, state.head, place.lost + missed)
        return bases

    def _budget(self, limit: ReadLimit) -> Budget:
        """Spark passes one limit; the other one is ours to keep, unless all is asked for."""
        if isinstance(limit, ReadAllAvailable):
            return Budget()
        return Budget(self._options.records_max, self._options.bytes_max)

    def _check_gaps(self, topic: str, base: Place, taken: Account) -> None:
        """What is already known to be lost fails here, before a batch is planned with it."""
        if not self._options.fail_on_data_loss:
            return
        for gap in taken.losses:
            if gap.first != base.growing and not is_known(base.known, gap.first, gap.last):
                raise tasks.lost(topic, taken.epoch, gap.first, gap.last, gap.why)

    def _account(self, topic: str, place: Place, first: int) -> Account:
        """What a planned range will tell; as one piece when the topic is no longer that one."""
        whole = Account(place.epoch, first, place.seq)
        options = self._options
        if options.partitions_min == 1 and options.partition_records_max is None:
            return whole
        server = self._connected()
        state = state_of(server, topic)
        if state is None or state.epoch != place.epoch:
            return whole
        found = account(server, topic, state, first, place.seq)
        return found if found.epoch == place.epoch else whole
