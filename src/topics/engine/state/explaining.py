"""What became of every seq of a topic: live, or why it is gone."""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.state.topic import Topic
from topics.types import DELETED, LIVE, SEQ_BASE, STATES, UNASSIGNED, ExplainedRange


def explain(topic: Topic, first: int, last: int) -> Iterator[ExplainedRange]:
    """Disjoint, ordered, covering every seq of [first, last]."""
    merged: list[int] | None = None
    for low, high, state in states(topic, first, last):
        if merged is not None and merged[2] == state:
            merged[1] = high
            continue
        if merged is not None:
            yield ExplainedRange(merged[0], merged[1], STATES[merged[2]])
        merged = [low, high, state]
    if merged is not None:
        yield ExplainedRange(merged[0], merged[1], STATES[merged[2]])


def states(topic: Topic, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Runs (first, last, state) in order; neighbours may have the same state."""
    if first < SEQ_BASE:
        yield first, min(last, SEQ_BASE - 1), UNASSIGNED
    if topic.account is not None and first < topic.floor:
        yield from topic.account.ranges(first, min(last, topic.floor - 1))
    at = max(first, topic.floor)
    holes = list(topic.holes or ())
    index = topic.block_at(at)
    while at <= min(last, topic.head):
        while holes and holes[0][1] < at:
            holes.pop(0)
        if holes and holes[0][0] <= at:
            stop = min(holes[0][1], last)
            yield at, stop, holes[0][2]
            at = stop + 1
            continue
        block = topic.blocks[index]
        index += 1
        stop = min(block.stop, last + 1)
        for start, end in block.live_runs(at - block.first, stop - block.first):
            if block.first + start > at:
                yield at, block.first + start - 1, DELETED
            yield block.first + start, block.first + end - 1, LIVE
            at = block.first + end
        if at < stop:
            yield at, stop - 1, DELETED
            at = stop
    if last > topic.head:
        yield max(first, topic.head + 1, SEQ_BASE), last, UNASSIGNED
