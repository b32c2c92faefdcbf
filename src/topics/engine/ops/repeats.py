"""Writes that come again: one with the idempotency key of an earlier one is answered with that."""

from __future__ import annotations

from collections.abc import Callable, Container

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.ops.told import Teller, appended, ticket_for
from topics.engine.state.batch import utf8
from topics.engine.state.idempotency import Keys, digest_of
from topics.engine.state.topic import Topic
from topics.errors import InvalidRequest, Throttled
from topics.storage import frames

KEYS_SWEEP_S = 1.0
# Keys that are forgotten with a write, besides as many as it brought.
EXPIRED_MAX = 64


def digest(core: Core, key: str) -> bytes:
    """What is kept of a key. Raises InvalidRequest."""
    limit = core.settings.max_idempotency_key_chars
    if not 1 <= len(key) <= limit:
        raise InvalidRequest(f"idempotency_key must have 1 to {limit} characters")
    return digest_of(utf8(key, "idempotency_key"))


def is_repeated(
    core: Core, topic: Topic, digest: bytes, now_ms: int, owner: object, teller: Teller
) -> bool:
    """Answers a repeated write with the first one's result, once that one has been applied."""
    if topic.keys is None or _find(topic, topic.keys, digest, now_ms) is None:
        return False
    # The first one may still be on its way, and a full disk may reject it even now.
    core.committer.flush()
    earlier = _find(topic, topic.keys, digest, now_ms)
    if earlier is None:
        return False
    first, count, ts = earlier
    ticket = ticket_for(owner, teller)
    core.committer.answer(
        topic, lambda: appended(topic, first, count, ts, created=False, deduped=True), ticket
    )
    return True


def known_count(topic: Topic, digest: bytes, now_ms: int) -> int | None:
    """How many records the write with this key has, there or on its way; None: there is none."""
    found = None if topic.keys is None else _find(topic, topic.keys, digest, now_ms)
    return None if found is None else found[1]


def note_empty(core: Core, topic: Topic, digest: bytes) -> None:
    """Keeps the key of a call that had nothing to write, as long as that of any other.

    It is as durable as a record would be. Raises Throttled.
    """
    first, now_ms = topic.next_seq, max(core.clock.wall_ms(), topic.last_ts)
    remember(core, topic, digest, first, 0, now_ms)
    frame = _repeat(topic, digest, first, 0, now_ms, lambda: forget(core, topic, digest))
    if topic.durability == "ephemeral":
        core.committer.apply_resident(frame)
    else:
        core.committer.stage(frame)


def repeat_frames(topic: Topic, carried: Container[bytes]) -> list[Op]:
    """The keys of a topic of which the log knows nothing, but for those that its records carry."""
    held = () if topic.keys is None else topic.keys.dump()
    return [
        _repeat(topic, key, first, count, ts, nothing)
        for key, first, count, ts in held
        if key not in carried
    ]


def _repeat(
    topic: Topic, digest: bytes, first: int, count: int, ts: int, undo: Callable[[], None]
) -> Op:
    frame = Op(
        topic, frames.REPEAT, nothing, gated=topic.durability == "fsync", first=first,
        payload=digest, undo=undo,
    )  # fmt: skip
    frame.count, frame.ts = count, ts
    return frame


def _find(topic: Topic, keys: Keys, digest: bytes, now_ms: int) -> tuple[int, int, int] | None:
    # By the topic's own time, which does not go back: a clock that was ahead for a while neither
    # forgets a key that nothing was written after, nor brings one back.
    window_ms = topic.config.idempotency_window_ms
    return keys.find(digest, expired_before=max(now_ms, topic.last_ts) - window_ms)


def remember(core: Core, topic: Topic, digest: bytes, first: int, count: int, ts: int) -> None:
    """Keeps a key for its window. Raises Throttled where there are too many."""
    limit = core.settings.max_idempotency_keys
    if limit and core.idempotency_keys >= limit:
        expire(core, topic)
        _expire_all(core)
        if core.idempotency_keys >= limit:
            raise Throttled(
                f"{limit} idempotency keys are remembered, the most this server keeps; nothing was "
                "written. Retry when older keys have left their window, or without a key.",
                limit="max_idempotency_keys", max=limit,
            )  # fmt: skip
    core.remember_key(topic, digest, first, count, ts)


def forget(core: Core, topic: Topic, digest: bytes) -> None:
    """The write with this key did not happen."""
    if topic.keys is not None:
        topic.keys.remove(digest)
        core.idempotency_keys -= 1


def expire(core: Core, topic: Topic, count: int = 0) -> None:
    """Forgets some of the topic's keys that have left their window, more than `count`.

    By the time of the last write that arrived: one that is on its way may yet be rejected, and the
    topic's time goes back with it.
    """
    if topic.keys is not None and topic.last_write_ts is not None:
        before = topic.last_write_ts - topic.config.idempotency_window_ms
        core.idempotency_keys -= topic.keys.expire(
            expired_before=before, keys_max=EXPIRED_MAX + count
        )


def _expire_all(core: Core) -> None:
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
