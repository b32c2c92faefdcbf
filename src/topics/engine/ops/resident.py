"""What an ephemeral topic writes down: nothing while it runs, its account when it must.

Its appends, deletes and floors leave no frames. When the process ends cleanly, one HOLE frame for
each range of its seqs says what became of them, and so it is when the topic becomes durable (see
promotion.py). So nothing that was removed in that time comes back, and nothing that was deleted is
told as lost.
"""

from __future__ import annotations

from topics.engine.commit.core import Core
from topics.engine.commit.frame import Op, nothing
from topics.engine.commit.ticket import Ticket
from topics.engine.ops.deletes import DeleteFrame, apply_delete, runs_of
from topics.engine.state.explaining import explain
from topics.engine.state.topic import Topic
from topics.storage import frames
from topics.types import DELETED, EVICTED, EXPIRED, LIVE, RESTART, SEQ_BASE, STATES


def write_account(core: Core, topic: Topic) -> Ticket[None]:
    """Stages the account of every seq up to the head; live records will be gone by `restart`."""
    ticket: Ticket[None] = Ticket()
    hole = None
    for part in explain(topic, SEQ_BASE, topic.head):
        state = STATES.index(part.state)
        state = RESTART if state == LIVE else state
        # With the last time: times do not go back either.
        hole = hole_frame(topic, part.first, part.last, state, topic.last_ts)
        core.committer.stage(hole)
    if hole is None:
        ticket.resolve(None)
    else:
        hole.ticket = ticket
    return ticket


def hole_frame(topic: Topic, first: int, last: int, state: int, ts: int) -> Op:
    """Says that a range is gone, and why, to a log that does not know it."""
    hole = Op(topic, frames.HOLE, nothing, gated=False, first=first, floor=last, flags=state)
    hole.ts = ts
    return hole


def replay_hole(core: Core, topic: Topic, first: int, last: int, state: int, ts: int) -> None:
    """Folds one range: what the log holds of it keeps its records unless they were removed."""
    load = core.segments.spans
    topic.pass_time(ts)
    known = min(last, topic.head)
    if first <= known:
        if state == DELETED:
            apply_delete(core, topic, DeleteFrame(0, runs_of(range(first, known + 1))))
        elif state in (EVICTED, EXPIRED):
            topic.raise_floor(known + 1, state, load)
    first = max(first, topic.head + 1)
    if first > last:
        return
    if state == DELETED:
        # The topic may be later already than the records that are logged after these.
        topic.add_ghost(first, last, ts)
    else:
        topic.add_hole(first, last, state)
