"""Tombstone or silence: the one decision, for every reader.

`decide` is the only place where a cursor meets the floors. Every read path calls it or carries its
result unchanged, so involuntary loss and voluntary removal can not be confused on any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.engine.state.topic import Topic
from topics.types import REASONS, SEQ_BASE, Tombstone


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a read stands: the gap to tell, the cursor to go on from, the last seq it may pass."""

    tombstone: Tombstone | None
    cursor: int
    upto: int


def decide(topic: Topic, from_seq: int, *, epoch: int | None = None) -> Decision:
    """Tombstone or silence for a cursor. The caller has expired the topic to `now` before."""
    head, floor = topic.head, topic.floor
    if from_seq > head or (epoch is not None and epoch != topic.epoch):
        told = Tombstone(
            gap_from=SEQ_BASE, gap_to=head, reason="recreated", missed_estimate=0,
            earliest_seq=floor, head_seq=head,
        )  # fmt: skip
        return Decision(told, floor - 1, _upto(topic, floor - 1))
    if from_seq + 1 >= floor:
        return _at_edge(topic, from_seq)
    told_floor = None
    if from_seq + 1 < topic.evict_floor:
        assert topic.account is not None
        told_floor = Tombstone(
            gap_from=from_seq + 1, gap_to=floor - 1, reason=_reason(topic, from_seq),
            missed_estimate=topic.account.lost(from_seq + 1, floor - 1),
            earliest_seq=floor, head_seq=head,
        )  # fmt: skip
    return Decision(told_floor, floor - 1, _upto(topic, floor - 1))


def _reason(topic: Topic, from_seq: int) -> str:
    """The word for what was lost above `from_seq` and below the floor."""
    words = {REASONS[state] for state, seq in topic.lost if seq > from_seq}
    return words.pop() if len(words) == 1 else "mixed"


def _at_edge(topic: Topic, from_seq: int) -> Decision:
    for first, last, state in topic.holes or ():
        if first <= from_seq + 1 <= last:
            told = Tombstone(
                gap_from=from_seq + 1, gap_to=last, reason=REASONS[state],
                missed_estimate=last - from_seq, earliest_seq=topic.floor, head_seq=topic.head,
            )  # fmt: skip
            return Decision(told, last, _upto(topic, last))
    return Decision(None, from_seq, _upto(topic, from_seq))


def _upto(topic: Topic, cursor: int) -> int:
    """The last seq in front of the next hole."""
    for first, _, _ in topic.holes or ():
        if first > cursor:
            return first - 1
    return topic.head
