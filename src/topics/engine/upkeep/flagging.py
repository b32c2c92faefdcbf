"""Setting the delete flags of sealed records, and what the log must know before.

A flag says that a record is gone, not since when, and a snapshot knows its topics as of one moment.
Flags that are younger than it make replay see fewer live records than there were: an append that
evicted then would not evict again, and what was evicted would come back, or be taken by a delete
that comes later. So before any flag is written, the log says, durably, what the caps of each topic
concerned had evicted by then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial

import numpy as np

from topics.engine.commit.core import Core
from topics.engine.commit.frame import floor_frame
from topics.engine.commit.ticket import Ticket
from topics.engine.state.block import Segment
from topics.engine.state.topic import Topic
from topics.types import EVICTED, SEQ_BASE

# Runs of evicted seqs in one frame, and ranges that are looked at in one step.
RUNS_MAX = 256
RANGES_MAX = 16 * RUNS_MAX


def write_flags(core: Core, segment: Segment) -> Iterator[None]:
    """Makes the deletes made so far durable in the segment itself, a step at a time."""
    if not segment.unflagged:
        return
    indexes, segment.unflagged = segment.unflagged, array("I")
    try:
        yield from _log_floors(core, _evicted_topics(core, segment, indexes))
        yield from core.background.run(partial(core.segments.write_flags, segment, indexes))
    except BaseException:
        # Still due: the log must not be trimmed before they are durable.
        segment.unflagged.extend(indexes)
        raise


def _evicted_topics(core: Core, segment: Segment, indexes: array[int]) -> list[Topic]:
    """The topics of these flags whose caps have evicted anything."""
    rows = segment.info.rows
    starts = np.fromiter((row.flag_at for row in rows), np.int64, len(rows))
    places = np.unique(np.searchsorted(starts, np.frombuffer(indexes, np.uint32), side="right") - 1)
    found = {rows[place].topic_id: None for place in places.tolist()}
    topics = [core.by_id[topic_id] for topic_id in found if topic_id in core.by_id]
    return [t for t in topics if t.durability != "ephemeral" and EVICTED in dict(t.lost)]


def _log_floors(core: Core, topics: list[Topic]) -> Iterator[None]:
    if not topics:
        return
    committer = core.committer
    # What was staged before is not to share the fate of these, which may use the log's reserve.
    committer.flush()
    for topic in topics:
        for tickets in _stage_evicted(core, topic):
            # It may be much: the log takes it as it comes.
            committer.flush()
            for ticket in tickets:
                # One that is not done waits for its turn behind a delete in pieces.
                if ticket.error is not None:
                    raise ticket.error
            yield
    yield from core.until_durable()


def _stage_evicted(core: Core, topic: Topic) -> Iterator[list[Ticket[None]]]:
    """Stages what the caps of a topic have evicted by now, a step at a time."""
    account, last = topic.account, dict(topic.lost)[EVICTED]
    assert account is not None
    for low, high in account.pieces(SEQ_BASE, last, RANGES_MAX):
        if topic.dropped:
            return
        runs = account.runs(low, high, EVICTED)
        tickets: list[Ticket[None]] = []
        for at in range(0, len(runs), 2 * RUNS_MAX):
            payload = runs[at : at + 2 * RUNS_MAX].tobytes()
            tickets.append(Ticket())
            frame = floor_frame(topic, EVICTED, payload, tickets[-1])
            # Not what was evicted since: a delete may be on its way that comes first in the log.
            frame.floor = last + 1
            core.committer.stage(frame)
        yield tickets
