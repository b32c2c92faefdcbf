"""Ceilings: a durable bound on the seqs a `disk` topic may have acknowledged.

A write of class disk is acknowledged before it is synced. So that its loss in a machine crash can
be told, a durable frame says beforehand: no seq above this one was acknowledged. The bound runs
ahead of the head and is renewed in the background; a write that would pass it waits for the sync.
A topic that fell idle is closed (bound = head), so that a crash of the machine raises no alarm for
it; its next write opens it again and waits for one sync.
"""

from __future__ import annotations

from itertools import islice

from topics.engine.commit.core import Core, nothing
from topics.engine.commit.frame import Op
from topics.engine.state.topic import Topic
from topics.storage import frames

ALLOWANCE_MIN, ALLOWANCE_MAX = 64, 1 << 20
BUSY_S = 1.0
LOOKS_MAX = 500


def cover(core: Core, topic: Topic, last_seq: int) -> bool:
    """Makes sure that a ceiling above `last_seq` is on its way; True when the write must wait."""
    over = last_seq > topic.ceiling_seq
    if last_seq <= topic.ask_seq:
        # Asked for, but perhaps not durable yet.
        return over
    now_s = core.clock.monotonic_s()
    busy = now_s - topic.asked_s < BUSY_S
    grown = topic.allowance * 4 if busy else ALLOWANCE_MIN
    topic.allowance = allowance = min(max(grown, ALLOWANCE_MIN), ALLOWANCE_MAX)
    topic.asked_s = now_s
    # Ask again when half of what is asked for now is used up, well before anything has to wait.
    topic.ask_seq = last_seq + allowance // 2
    core.open_topics[topic.id] = None
    _raise(core, topic, last_seq + allowance)
    return over


def is_below(topic: Topic, seq: int) -> bool:
    """Whether a write may be acknowledged before it is synced, as far as the ceiling goes."""
    return topic.durability != "disk" or seq <= topic.ceiling_seq


def _raise(core: Core, topic: Topic, seq: int) -> None:
    topic.ceilings_moving += 1

    def apply() -> None:
        topic.ceilings_moving -= 1
        topic.ceiling_seq = max(topic.ceiling_seq, seq)

    def undo() -> None:
        # The disk is full: the next write asks again.
        topic.ceilings_moving -= 1
        topic.ask_seq = 0

    core.committer.stage_aside(Op(topic, frames.CEILING, apply, gated=True, undo=undo, first=seq))


def close_idle(core: Core, idle_s: float) -> None:
    """Closes topics that were not written for a while and have nothing on its way.

    Not even a ceiling: one that is still to become durable stands in front of the closing frame in
    the log, and would be taken for the last word in memory.

    Looks at a bounded number of them, the ones it has not looked at for longest.
    """
    now_s = core.clock.monotonic_s()
    waiting = core.open_topics
    for topic_id in list(islice(waiting, LOOKS_MAX)):
        del waiting[topic_id]
        topic = core.by_id.get(topic_id)
        if topic is None or topic.config.durability != "disk":
            continue
        if topic.head != topic.idle_head:
            topic.idle_head, topic.idle_since_s = topic.head, now_s
        moves = topic.gated or topic.ceilings_moving
        quiet = not moves and topic.next_seq == topic.head + 1
        if quiet and now_s - topic.idle_since_s >= idle_s:
            close(core, topic)
        else:
            waiting[topic_id] = None


def close(core: Core, topic: Topic) -> None:
    """Takes the bound back to the head. At once in memory, whatever a crash leaves of the frame."""
    assert not topic.ceilings_moving
    topic.ceiling_seq = topic.head
    topic.allowance = topic.ask_seq = 0
    core.committer.stage(Op(topic, frames.CEILING, nothing, gated=False, first=topic.head))
