"""A replica of a bucket in another bucket, here or on another server.

The follower's place is a named cursor of the source's topic, so that no marker goes before the
replica has it. It is set before anything is read, and moved after what it passes was applied.
Changes are applied in their order and several at once, each with its source seq in `meta`: after an
interruption the replica itself says how far it is, and nothing is applied again that would take a
key back. A follower that is new, or whose place is below what was compacted, that met a loss or
found its cursor gone, begins anew with a snapshot: what the snapshot lacks is deleted here, what
differs is put.

What is to be asked of whom is said here, and no call is made: `follow` and `follow_async` do that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Raw

from topics.client import kv_calls, log_calls, reader_calls
from topics.client.kv_calls import KeyEntry
from topics.client.request import Request
from topics.client.values import RecordFields
from topics.errors import (
    BucketNotFound,
    Compacted,
    InvalidRequest,
    NotFound,
    SnapshotNotFound,
    TopicFull,
    TopicNotFound,
    TopicsError,
)
from topics.types import Record

if TYPE_CHECKING:
    from topics.client.kv import AsyncKv, Kv

WAIT_MS = 20_000
# How long the snapshot is open that tells whether source and replica are one.
LOOK_MS = 60_000
PAGE_RECORDS = 1000
# What one write to the replica has at most, but for one record that is larger.
BATCH_RECORDS, BATCH_BYTES = 500, 1 << 20
# The name in `meta` under which a change says where it is from: epoch and seq in the source.
FROM = "kv_from"


class Asked(NamedTuple):
    """A call to be made, of the source or of the replica."""

    request: Request[Any]
    is_source: bool


T = TypeVar("T")
Steps = Generator[Asked, Any, T]


class Entries:
    """Live keys of one of the two, with their values, a page at a time."""

    def __init__(self, bucket: str, *, is_source: bool, snapshot: str | None = None) -> None:
        self._bucket = bucket
        self._is_source = is_source
        self._snapshot = snapshot
        self._held: deque[KeyEntry] = deque()
        self._cursor: str | None = ""

    def next(self) -> Steps[KeyEntry | None]:
        while not self._held and self._cursor is not None:
            call = kv_calls.keys(
                self._bucket, page_size=PAGE_RECORDS, cursor=self._cursor or None, values=True,
                snapshot=self._snapshot,
            )  # fmt: skip
            try:
                page = yield Asked(call, self._is_source)
            except BucketNotFound:
                return None
            self._held.extend(page.keys)
            self._cursor = page.next_cursor
        return self._held.popleft() if self._held else None


class Replica:
    """`steps` applies what comes until it is caught up, or for ever."""

    def __init__(
        self,
        source: str,
        into: str,
        cursor: str | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`progress` is called with how far it is of how much: keys of a copy, or seqs."""
        self._progress = progress
        self._source = source
        self._into = into
        self._topic, self._copy = f"kv:{source}", f"kv:{into}"
        self._cursor = cursor or f"kv-follow-{into}"[:255]
        self._batch: list[RecordFields] = []
        self._batch_bytes = 0
        # Changes that were applied, and how often it began anew.
        self.applied = 0
        self.resynced = 0

    def steps(self, *, until_caught_up: bool) -> Steps[None]:
        yield from self._refuse_itself()
        place, epoch = yield from self._begin()
        while True:
            page = yield Asked(
                reader_calls.diff(
                    self._topic, from_seq=place, limit=PAGE_RECORDS, include_tags=True,
                    epoch=epoch, wait_ms=None if until_caught_up else WAIT_MS,
                ), is_source=True,
            )  # fmt: skip
            if page.tombstone is not None or page.epoch != epoch:
                place, epoch = yield from self._resync()
                continue
            for record in page.records:
                yield from self._apply(record, epoch)
            yield from self._flush()
            if page.next_from_seq > place:
                place = page.next_from_seq
                if (yield from self._move(place, epoch)):
                    # Nobody held the markers while it was gone.
                    place, epoch = yield from self._resync()
            self._tell(place, page.head_seq)
            if page.caught_up and until_caught_up:
                return

    # -- where to begin ----------------------------------------------------------------------

    def _refuse_itself(self) -> Steps[None]:
        """Raises InvalidRequest where the replica is the source: each change would bring another.

        A server has many addresses, so it is asked for a snapshot that only the source can know.
        """
        if self._source != self._into:
            return
        asked = kv_calls.open_snapshot(self._source, ttl_ms=LOOK_MS)
        made = yield Asked(asked, is_source=True)
        look = kv_calls.keys(self._into, page_size=1, snapshot=made.snapshot)
        try:
            yield Asked(look, is_source=False)
            is_itself = True
        except (BucketNotFound, SnapshotNotFound):
            is_itself = False
        yield Asked(kv_calls.close_snapshot(self._source, made.snapshot), is_source=True)
        if is_itself:
            raise InvalidRequest(
                f'bucket "{self._source}" can not follow itself: name another server or bucket'
            )

    def _begin(self) -> Steps[tuple[int, str]]:
        """The place to go on from; whatever is older was applied."""
        try:
            held = yield Asked(reader_calls.cursor(self._topic, self._cursor), is_source=True)
        except TopicNotFound:
            raise BucketNotFound(
                f'bucket "{self._source}" does not exist', bucket=self._source
            ) from None
        except NotFound:
            # Before the first look: from here on no marker goes without us.
            state = yield Asked(kv_calls.bucket(self._source), is_source=True)
            first = reader_calls.set_cursor(self._topic, self._cursor, state.head_seq)
            yield Asked(first, is_source=True)
            return (yield from self._resync())
        state = yield Asked(kv_calls.bucket(self._source), is_source=True)
        applied = yield from self._applied(held.epoch)
        if held.seq < state.compacted_seq:
            return (yield from self._resync())
        return max(held.seq, applied), held.epoch

    def _applied(self, epoch: str) -> Steps[int]:
        """The newest change of the source that is among the last ones of the replica; 0: none."""
        try:
            state = yield Asked(kv_calls.bucket(self._into), is_source=False)
        except BucketNotFound:
            return 0
        newest, place = 0, max(state.head_seq - PAGE_RECORDS, 0)
        while place < state.head_seq:
            call = reader_calls.diff(self._copy, from_seq=place, limit=PAGE_RECORDS)
            page = yield Asked(call, is_source=False)
            for record in page.records:
                from_epoch, _, seq = (record.meta or {}).get(FROM, "").partition("/")
                if from_epoch == epoch and seq.isdigit():
                    newest = max(newest, int(seq))
            place = page.next_from_seq
        return newest

    # -- beginning anew ----------------------------------------------------------------------

    def _resync(self) -> Steps[tuple[int, str]]:
        self._batch, self._batch_bytes = [], 0
        while True:
            try:
                return (yield from self._copy_all())
            except (SnapshotNotFound, Compacted):
                # It took longer than the snapshot lived.
                continue

    def _copy_all(self) -> Steps[tuple[int, str]]:
        state = yield Asked(log_calls.topic(self._topic), is_source=True)
        size = (yield Asked(kv_calls.bucket(self._source), is_source=True)).size
        made = yield Asked(kv_calls.open_snapshot(self._source), is_source=True)
        close = Asked(kv_calls.close_snapshot(self._source, made.snapshot), is_source=True)
        try:
            wanted = Entries(self._source, is_source=True, snapshot=made.snapshot)
            yield from self._make_equal(wanted, Entries(self._into, is_source=False), size)
        except TopicsError:
            yield close
            raise
        yield close
        yield from self._move(made.seq, state.epoch)
        self.resynced += 1
        return made.seq, state.epoch

    def _make_equal(self, wanted: Entries, held: Entries, size: int) -> Steps[None]:
        """Two runs in byte order, side by side."""
        done = 0
        mine = yield from held.next()
        while (entry := (yield from wanted.next())) is not None:
            done += 1
            self._tell(done, max(size, done))
            while mine is not None and mine.key < entry.key:
                yield from self._correct(mine.key, None)
                mine = yield from held.next()
            is_same = mine is not None and mine.key == entry.key
            if not is_same or (mine is not None and bytes(mine.data) != bytes(entry.data)):
                yield from self._correct(entry.key, entry.data)
            if is_same:
                mine = yield from held.next()
        while mine is not None:
            yield from self._correct(mine.key, None)
            mine = yield from held.next()
        yield from self._flush()

    def _correct(self, key: str, data: Raw | None) -> Steps[None]:
        """Puts a key, or deletes it."""
        self.applied += 1
        if data is not None:
            yield from self._add({"data": data, "tag": key})
        else:
            yield from self._add({"data": None, "tag": key, "meta": {"kv": "delete"}})

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    # -- writing -----------------------------------------------------------------------------

    def _apply(self, record: Record, epoch: str) -> Steps[None]:
        kind = (record.meta or {}).get("kv")
        if record.tag or kind == "delete_prefix":
            meta = {FROM: f"{epoch}/{record.seq}"}
            fields: RecordFields = {"data": record.data, "meta": meta}
            if isinstance(kind, str):
                meta["kv"] = kind
            if record.tag:
                fields["tag"] = record.tag
            yield from self._add(fields)
        self.applied += 1

    def _add(self, fields: RecordFields) -> Steps[None]:
        size = len(bytes(fields["data"] or b""))
        if len(self._batch) == BATCH_RECORDS or self._batch_bytes + size > BATCH_BYTES:
            yield from self._flush()
        self._batch.append(fields)
        self._batch_bytes += size

    def _flush(self) -> Steps[None]:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return
        try:
            yield Asked(log_calls.append(self._copy, batch), is_source=False)
        except TopicFull:
            if len(batch) == 1:
                raise
            # Markers have room in a full bucket: those in front of the first put that has none.
            for fields in batch:
                yield Asked(log_calls.append(self._copy, [fields]), is_source=False)

    def _move(self, seq: int, epoch: str) -> Steps[bool]:
        """Whether the cursor was not there."""
        call = reader_calls.set_cursor(self._topic, self._cursor, seq, epoch=epoch, reset=True)
        moved = yield Asked(call, is_source=True)
        return bool(moved.created)


class _Calls:
    """The calls of a replica, one after the other; what became of one is told to the next."""

    def __init__(self, steps: Steps[None]) -> None:
        self._steps = steps
        self.answer: Any = None
        self.error: TopicsError | None = None

    def next(self) -> Asked | None:
        answer, error = self.answer, self.error
        self.answer = self.error = None
        try:
            return self._steps.send(answer) if error is None else self._steps.throw(error)
        except StopIteration:
            return None


def follow(replica: Replica, source: Kv, into: Kv, *, until_caught_up: bool) -> int:
    """Makes the calls of a replica; how many changes it applied."""
    calls = _Calls(replica.steps(until_caught_up=until_caught_up))
    while (asked := calls.next()) is not None:
        client = source.client if asked.is_source else into.client
        try:
            calls.answer = client.send(asked.request)
        except TopicsError as error:
            calls.error = error
    return replica.applied


async def follow_async(
    replica: Replica, source: AsyncKv, into: AsyncKv, *, until_caught_up: bool
) -> int:
    """As `follow`, awaited."""
    calls = _Calls(replica.steps(until_caught_up=until_caught_up))
    while (asked := calls.next()) is not None:
        client = source.client if asked.is_source else into.client
        try:
            calls.answer = await client.send(asked.request)
        except TopicsError as error:
            calls.error = error
    return replica.applied
