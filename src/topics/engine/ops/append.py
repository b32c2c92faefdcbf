"""Append: from a checked write to published records.

A cap that rejects does so before any seq is assigned. `disk` and `memory` are published, and their
tickets resolved, once the bytes are with the kernel; `fsync` after the sync; `ephemeral` at once.
"""

from __future__ import annotations

from topics.engine.commit.core import Core
from topics.engine.commit.ticket import Ticket
from topics.engine.ops.growth import Growth, check_room, publish
from topics.engine.state.idempotency import Keys, digest_of
from topics.engine.state.topic import Topic
from topics.engine.state.write_request import Batch, utf8
from topics.errors import InvalidRequest, Throttled
from topics.storage import columns as columns_codec
from topics.storage import frames
from topics.storage.columns import Columns
from topics.types import Appended

KEYS_SWEEP_S = 1.0


def append(
    core: Core,
    topic: Topic,
    batch: Batch,
    *,
    key: str | None,
    created: bool,
    ticket: Ticket[Appended],
) -> None:
    """Stages a write; the ticket ends in an Appended."""
    now_ms = core.clock.wall_ms()
    digest = b""
    if key is not None:
        digest = _digest(core, key)
        if _repeated(core, topic, digest, now_ms, ticket):
            return
    core.expire(topic)
    ts = max(now_ms, topic.last_ts)
    first = topic.next_seq
    count = len(batch.data)
    columns = batch.render(first, ts)
    payload = bytes(columns.payload)
    if core.settings.max_total_bytes or topic.config.discard == "reject":
        check_room(core, topic, count, len(payload))
    # Whatever can fail comes before the first trace of the write: its key, its seqs.
    frame = AppendFrame(core, topic, columns, payload, digest, ts, created, ticket)
    if digest:
        _remember(core, topic, digest, first, count, ts)
    frame.assign(count, len(payload))
    frame.hand_over()


class AppendFrame(Growth):
    """A write on its way."""

    __slots__ = ("columns", "created", "digest")

    def __init__(
        self,
        core: Core,
        topic: Topic,
        columns: Columns,
        payload: bytes,
        digest: bytes,
        ts: int,
        created: bool,
        ticket: Ticket[Appended],
    ) -> None:
        super().__init__(core, topic, frames.APPEND, ts, ticket)
        self.count = len(columns.ends)
        self.payload = payload
        self.columns = columns
        self.created = created
        self.digest = digest
        if topic.durability != "ephemeral":
            self.flags, self.cols = columns_codec.encode(columns, times=False, key=digest)

    def apply(self) -> Appended:
        topic = self.topic
        self.arrive()
        publish(self.core, topic, self.first, self.columns)
        return appended(topic, self.first, self.count, self.ts, created=self.created, deduped=False)

    def undo(self) -> None:
        super().undo()
        topic = self.topic
        if self.digest and topic.keys is not None:
            topic.keys.remove(self.digest)
            self.core.idempotency_keys -= 1


def appended(
    topic: Topic, first: int, count: int, ts: int, *, created: bool, deduped: bool
) -> Appended:
    return Appended(
        topic=topic.name, epoch=topic.epoch, first_seq=first, last_seq=first + count - 1,
        head_seq=max(topic.head, first + count - 1), count=count, ts=ts, created=created,
        deduped=deduped,
    )  # fmt: skip


# -- idempotency ---------------------------------------------------------------------------------


def _digest(core: Core, key: str) -> bytes:
    limit = core.settings.max_idempotency_key_chars
    if not 1 <= len(key) <= limit:
        raise InvalidRequest(f"idempotency_key must have 1 to {limit} characters")
    return digest_of(utf8(key, "idempotency_key"))


def _find_key(core: Core, topic: Topic, digest: bytes, now_ms: int) -> tuple[int, int, int] | None:
    if topic.keys is None:
        return None
    # By the topic's own time, which does not go back: a clock that was ahead for a while neither
    # forgets a key that nothing was written behind, nor brings one back.
    window_ms = topic.config.idempotency_window_ms
    core.idempotency_keys -= topic.keys.expire(expired_before=topic.last_ts - window_ms)
    return topic.keys.find(digest, expired_before=max(now_ms, topic.last_ts) - window_ms)


def _repeated(
    core: Core, topic: Topic, digest: bytes, now_ms: int, ticket: Ticket[Appended]
) -> bool:
    """Answers a repeated write with the first one's result, once that one has been applied."""
    if _find_key(core, topic, digest, now_ms) is None:
        return False
    # The first one may still be on its way, and a full disk may reject it even now.
    core.committer.flush()
    earlier = _find_key(core, topic, digest, now_ms)
    if earlier is None:
        return False
    first, count, ts = earlier
    core.committer.apply_resident(
        topic, lambda: appended(topic, first, count, ts, created=False, deduped=True), ticket
    )
    return True


def _remember(core: Core, topic: Topic, digest: bytes, first: int, count: int, ts: int) -> None:
    limit = core.settings.max_idempotency_keys
    if limit and core.idempotency_keys >= limit:
        _expire_keys(core)
    if limit and core.idempotency_keys >= limit:
        raise Throttled(
            f"{limit} idempotency keys are remembered, the most this server keeps; nothing was "
            "written. Retry when older keys have left their window, or without a key.",
            limit="max_idempotency_keys", max=limit,
        )  # fmt: skip
    topic.keys = topic.keys or Keys()
    before = len(topic.keys)
    topic.keys.add(digest, first, count, ts)
    core.idempotency_keys += len(topic.keys) - before


def _expire_keys(core: Core) -> None:
    """Forgets what has left its window in topics that nobody writes any more; now and then."""
    now_s = core.clock.monotonic_s()
    if now_s - core.keys_swept_s < KEYS_SWEEP_S:
        return
    core.keys_swept_s = now_s
    now_ms = core.clock.wall_ms()
    for topic in core.by_id.values():
        if topic.keys is not None:
            core.idempotency_keys -= topic.keys.expire(
                expired_before=now_ms - topic.config.idempotency_window_ms, keys_max=len(topic.keys)
            )
