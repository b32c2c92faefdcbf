"""Ceilings: a durable bound on the seqs a `disk` topic may have acknowledged.

A write of class disk is acknowledged before it is synced. So that its loss in a machine crash can
be told, a durable frame says beforehand: no seq above this one was acknowledged. The bound runs
ahead of the head and is renewed in the background; a write that would pass it waits for the sync.
A topic that fell idle is closed (bound = head), so that a crash of the machine raises no alarm for
it; its next write opens it again and waits for one sync.
"""

from __future__ import annotations

from topics.engine.commit import Op
from topics.engine.core import Core, nothing
from topics.engine.topic import Topic
from topics.storage import frames

ALLOWANCE_MIN, ALLOWANCE_MAX = 64, 1 << 20
BUSY_S = 1.0
BYTES_EACH = 1024


def cover(core: Core, topic: Topic, last_seq: int, bytes_total: int) -> bool:
    """Makes sure that a ceiling above `last_seq` is on its way; True when the write must wait."""
    now_s = core.clock.monotonic_s()
    core.open_topics[topic.id] = now_s
    tight = bool(topic.config.cap_bytes)
    over = last_seq > topic.ceiling_seq or (tight and bytes_total > topic.ceiling_bytes)
    ahead = topic.ceiling_seq - last_seq
    low = ahead < topic.allowance // 2 or (
        tight and topic.ceiling_bytes - bytes_total < topic.allowance * BYTES_EACH // 2
    )
    if over or (low and last_seq > topic.asked_seq - topic.allowance // 2):
        busy = now_s - topic.asked_s < BUSY_S
        grown = topic.allowance * 4 if busy else ALLOWANCE_MIN
        topic.allowance = min(max(grown, ALLOWANCE_MIN), ALLOWANCE_MAX)
        topic.asked_s = now_s
        seq = last_seq + topic.allowance
        topic.asked_seq = seq
        _raise(core, topic, seq, bytes_total + topic.allowance * BYTES_EACH)
    return over


def _raise(core: Core, topic: Topic, seq: int, bytes_total: int) -> None:
    def apply() -> None:
        topic.ceiling_seq = max(topic.ceiling_seq, seq)
        topic.ceiling_bytes = max(topic.ceiling_bytes, bytes_total)

    core.committer.stage_aside(
        Op(topic, frames.CEILING, apply, gated=True, first=seq, floor=bytes_total)
    )


def close_idle(core: Core, idle_s: float) -> None:
    """Closes topics that were not written for a while and have nothing on its way."""
    now_s = core.clock.monotonic_s()
    idle = [key for key, last_s in core.open_topics.items() if now_s - last_s >= idle_s]
    for topic_id in idle:
        topic = core.by_id.get(topic_id)
        if topic is None or topic.config.durability != "disk":
            del core.open_topics[topic_id]
        elif not topic.gated and topic.next_seq == topic.head + 1:
            close(core, topic)
            del core.open_topics[topic_id]


def close(core: Core, topic: Topic) -> None:
    topic.ceiling_seq, topic.ceiling_bytes = topic.head, topic.bytes_total
    topic.allowance = topic.asked_seq = 0
    core.committer.stage(
        Op(
            topic, frames.CEILING, nothing, gated=False, first=topic.head,
            floor=topic.bytes_total,
        )
    )  # fmt: skip
