"""Ceilings: a durable bound on the seqs a `disk` topic may have acknowledged.

A write of class disk is acknowledged before it is synced. So that its loss in a machine crash can
be told, a durable frame says beforehand: no seq above this one was acknowledged. The bound runs
ahead of the head and is renewed in the background; a write that would pass it waits for the sync.
A topic begins with a bound in the frame that creates it, which is synced anyway. One that fell idle
is closed (bound = head), so that a crash of the machine raises no alarm for it; its next write
opens it again and waits for one sync.
"""

from __future__ import annotations

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.state.topic import Topic
from topics.storage import frames

LOOKS_MAX = 200


def begin(core: Core, topic: Topic) -> int:
    """The bound that a new topic has as soon as its creation is durable."""
    core.watch_ceiling(topic)
    return topic.ceiling.ask(topic.head, core.clock.monotonic_s())


def cover(core: Core, topic: Topic, last_seq: int) -> bool:
    """Makes sure that a ceiling above `last_seq` is on its way; True when the write must wait."""
    ceiling = topic.ceiling
    over = last_seq > ceiling.seq
    if last_seq > ceiling.ask_seq:
        promised = _ask(core, topic, last_seq)
        open_routed(core, topic, promised - topic.head)
    # One that was asked for is perhaps not durable yet.
    return over


def open_ahead(core: Core, topic: Topic) -> None:
    """Opens a topic of class disk that is closed, so that its next record need not wait."""
    _open(core, topic, 1)
    open_routed(core, topic, 1)


def open_routed(core: Core, topic: Topic, count: int) -> None:
    """Copies of its next records come where its routers lead, and should find room there."""
    seen, waiting = {topic.id}, [topic]
    while waiting:
        for router in core.routers.from_topic(waiting.pop()):
            if router.dest.id not in seen:
                seen.add(router.dest.id)
                waiting.append(router.dest)
                _open(core, router.dest, count)


def _open(core: Core, topic: Topic, count: int) -> None:
    # With a class on its way the ceiling would stand in the log behind it.
    is_changing = topic.version_staged > topic.config_version
    asked_seq = max(topic.ceiling.seq, topic.ceiling.ask_seq)
    wanted_seq = topic.next_seq - 1 + count
    if topic.durability == "disk" and not is_changing and wanted_seq > asked_seq:
        _ask(core, topic, wanted_seq)


def is_below(topic: Topic, seq: int) -> bool:
    """Whether a write may be acknowledged before it is synced, as far as the ceiling goes."""
    return topic.durability != "disk" or seq <= topic.ceiling.seq


def _ask(core: Core, topic: Topic, last_seq: int) -> int:
    core.watch_ceiling(topic)
    promised = topic.ceiling.ask(last_seq, core.clock.monotonic_s())
    _raise(core, topic, promised)
    return promised


def _raise(core: Core, topic: Topic, seq: int) -> None:
    ceiling = topic.ceiling
    op = Op(
        topic, frames.CEILING, lambda: ceiling.rise(seq), gated=True, undo=ceiling.refuse, first=seq
    )
    core.committer.stage_aside(op)


def close_idle(core: Core, idle_s: float) -> None:
    """Closes topics that were not written for a while and have nothing on its way.

    Not even a ceiling: one that is still to become durable stands in front of the closing frame in
    the log, and would be taken for the last word in memory.

    Looks at a bounded number of them, the ones it has not looked at for longest.
    """
    now_s = core.clock.monotonic_s()
    waiting = core.open_topics
    for _ in range(min(len(waiting), LOOKS_MAX)):
        topic = core.by_id.get(waiting.popleft())
        if topic is None:
            continue
        topic.ceiling.is_watched = False
        if topic.config.durability != "disk":
            continue
        is_idle = topic.ceiling.is_idle(topic.head, now_s, idle_s)
        moves = topic.gated or topic.ceiling.moving
        if is_idle and not moves and topic.next_seq == topic.head + 1:
            close(core, topic)
        else:
            core.watch_ceiling(topic)


def close(core: Core, topic: Topic) -> None:
    """Takes the bound back to the head. At once in memory, whatever a crash leaves of the frame."""
    topic.ceiling.close(topic.head)
    core.committer.stage(Op(topic, frames.CEILING, nothing, gated=False, first=topic.head))
