"""Append: from a checked write to published records.

A cap that rejects does so before any seq is assigned. `disk` and `memory` are published, and their
owners told, once the bytes are with the kernel; `fsync` after the sync; `ephemeral` at once.
"""

from __future__ import annotations

from typing import Any

from topics.engine.commit.core import Core
from topics.engine.ops import repeats
from topics.engine.ops.growth import charge, check_room, publish
from topics.engine.ops.told import Teller, ToldFrame, appended
from topics.engine.state.batch import Batch
from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns
from topics.types import Appended


def append(
    core: Core,
    topic: Topic,
    batch: Batch,
    owner: Any,
    teller: Teller,
    *,
    key: str | None,
    created: bool,
) -> None:
    """Stages a write of any number of records."""
    now_ms = core.clock.wall_ms()
    digest = b""
    if key is not None:
        digest = repeats.digest(core, key)
        if repeats.is_repeated(core, topic, digest, now_ms, owner, teller):
            return
    core.expire(topic)
    ts = max(now_ms, topic.last_ts)
    count = len(batch.data)
    columns = batch.render(topic.next_seq, ts)
    payload = bytes(columns.payload)
    if core.settings.max_total_bytes or topic.config.discard == "reject":
        records, size = charge(topic, columns)
        if records:
            check_room(core, topic, records, size)
    # Whatever can fail comes before the first trace of the write: its key, its seqs.
    frame = AppendFrame(core, topic, columns, payload, digest, ts, created, owner, teller)
    if digest:
        repeats.remember(core, topic, digest, topic.next_seq, count, ts)
    frame.assign(count, len(payload))
    frame.hand_over()


class AppendFrame(ToldFrame):
    """A write on its way."""

    __slots__ = ("columns", "created", "digest", "owner")

    def __init__(
        self,
        core: Core,
        topic: Topic,
        columns: Columns,
        payload: bytes,
        digest: bytes,
        ts: int,
        created: bool,
        owner: Any,
        teller: Teller,
    ) -> None:
        super().__init__(core, topic, frames.APPEND, ts)
        self.teller = teller
        self.count = len(columns.ends)
        self.payload = payload
        self.columns = columns
        self.created = created
        self.digest = digest
        self.owner = owner
        if topic.durability != "ephemeral":
            self.flags, self.cols = columns_codec.encode(columns, times=False, key=digest)

    def apply(self) -> Appended:
        topic = self.topic
        self.arrive()
        publish(self.core, topic, self.first, self.columns)
        if self.digest:
            repeats.expire(self.core, topic)
        return appended(topic, self.first, self.count, self.ts, created=self.created, deduped=False)

    def tell(self, result: Appended) -> None:
        self.teller.alone(self.owner, result)

    def undo(self) -> None:
        super().undo()
        if self.digest:
            repeats.forget(self.core, self.topic, self.digest)

    def fail(self, error: TopicsError) -> None:
        self.owner.fail(error)
