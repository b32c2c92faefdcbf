"""The calls of durable readers: named cursors, ranges, the seq of a time."""

from __future__ import annotations

from collections.abc import Generator

from msgspec import UNSET, UnsetType

from topics.engine.commit.ticket import Ticket
from topics.engine.lifecycle import Lifecycle
from topics.engine.ops import cursors
from topics.engine.reading import ranges
from topics.engine.reading.ranges import RangePage
from topics.engine.state.tags import parse_match
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest
from topics.types import U64_MAX, CursorState, Hold


class ReaderCalls(Lifecycle):
    """A mixin of Engine."""

    # -- cursors -----------------------------------------------------------------------------

    def put_cursor(
        self,
        name: str,
        cursor: str,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        if_absent: bool = False,
        reset: bool = False,
        hold: Hold | UnsetType | None = UNSET,
    ) -> CursorState:
        """Sets a reader's place; durable on return. A hold of None ends the one that stands."""
        given = cursors.Given(seq=seq, epoch=epoch, if_absent=if_absent, reset=reset, hold=hold)
        return self._wait(self.submit_put_cursor(name, cursor, given))

    def submit_put_cursor(
        self, name: str, cursor: str, given: cursors.Given
    ) -> Ticket[CursorState]:
        """`put_cursor`, begun."""
        self._check_writable()
        ticket: Ticket[CursorState] = Ticket()
        cursors.put(self.core, self._topic(name), cursor, given, ticket)
        return ticket

    def delete_cursor(self, name: str, cursor: str) -> bool:
        """Forgets a reader's place; False when there was none. Durable on return."""
        return self._wait(self.submit_delete_cursor(name, cursor))

    def submit_delete_cursor(self, name: str, cursor: str) -> Ticket[bool]:
        """`delete_cursor`, begun."""
        self._check_writable()
        ticket: Ticket[bool] = Ticket()
        cursors.delete(self.core, self._topic(name), cursor, ticket)
        return ticket

    def cursor(self, name: str, cursor: str) -> CursorState:
        """One cursor. Raises NotFound."""
        return cursors.find(self._topic(name), cursor)

    def cursors(self, name: str) -> list[CursorState]:
        """All cursors of a topic, in byte order of their names."""
        return cursors.page(self._topic(name))

    # -- ranges ------------------------------------------------------------------------------

    def range(
        self,
        name: str,
        *,
        from_seq: int = 0,
        to_seq: int | None = None,
        epoch: int | None = None,
        records_max: int = 0,
        bytes_max: int = 0,
        match: object = None,
        keeps_records: bool = True,
    ) -> RangePage:
        """Records and gaps of (from_seq, to_seq] in order; waits for cold reads.

        `match` is as in a delete. Without `keeps_records` they are only counted.
        """
        predicate = None if match is None else parse_match(match)
        asked = ranges.Asked(
            from_seq, to_seq, epoch, records_max, bytes_max, predicate, keeps_records
        )
        return self._fetching(lambda: self.range_now(name, asked))

    def range_now(self, name: str, asked: ranges.Asked) -> RangePage:
        """Like `range`, but raises ColdMiss instead of waiting for the cold store."""
        steps = self.range_steps(name, asked)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                page: RangePage = done.value
                return page

    def range_steps(self, name: str, asked: ranges.Asked) -> Generator[None, None, RangePage]:
        """`range_now` in pieces, each short for everybody else: what is large is large."""
        asked.check()
        return ranges.read(self.core, self._consumed(name), asked)

    def seq_at(self, name: str, ts: int) -> tuple[int, int] | None:
        """Seq and time of the first live record at or after `ts`; None past the head."""
        if type(ts) is not int or not 0 <= ts <= U64_MAX:
            raise InvalidRequest("ts must be milliseconds from 0 to 2^64 - 1")
        return ranges.seq_at(self._consumed(name), ts, self.core.segments.exact_spans)

    def place_at(self, name: str, ts: int) -> int:
        """The seq to read on from a time, after the last live record before `ts`.

        When a record that was lost was written nobody knows: what is gone between that record and
        the first one at or after `ts` may have been of that time, and is told to whoever reads on.
        """
        found = self.seq_at(name, ts)
        topic = self._topic(name)
        return ranges.live_before(topic, topic.head + 1 if found is None else found[0])

    def _consumed(self, name: str) -> Topic:
        """A topic as it is now, for a read that counts as one."""
        topic, core = self._topic(name), self.core
        core.expire(topic)
        core.committer.flush()
        topic.note_read(core.clock.wall_ms())
        return topic
