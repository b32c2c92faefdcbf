"""Voluntary removal: permanent, silent, of what exists when it is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from topics.engine.commit import Op, Ticket
from topics.engine.core import Core
from topics.engine.tags import TagIndex
from topics.engine.topic import Topic
from topics.errors import InvalidRequest
from topics.storage import frames
from topics.types import DELETED, U64_MAX, Deleted, convert

Match = tuple[str, bool]

encode = msgspec.msgpack.Encoder().encode


class DeleteFrame(msgspec.Struct, array_like=True):
    """What a DELETE frame says: everything below a seq, and these runs of (first, last)."""

    before_seq: int
    runs: bytes


def parse_match(match: object) -> Match:
    """(text, is a prefix) of a match predicate; a bare string means equality."""
    if isinstance(match, str):
        return match, False
    parts = convert(match, list[str], "match") if isinstance(match, (list, tuple)) else None
    if parts is None or len(parts) != 3 or parts[0] != "tag" or parts[1] not in ("Eq", "Glob"):
        raise InvalidRequest('match must be "tag", ["tag","Eq","X"] or ["tag","Glob","X*"]')
    if parts[1] == "Eq":
        return parts[2], False
    if not parts[2].endswith("*") or "*" in parts[2][:-1]:
        raise InvalidRequest("Glob takes a literal prefix and a single * at its end")
    return parts[2][:-1], True


def parse_before(before_seq: object) -> int | None:
    if before_seq is None:
        return None
    value: int = convert(before_seq, int, "before_seq")
    if not 0 <= value <= U64_MAX:
        raise InvalidRequest("before_seq must be from 0 to 2^64 - 1")
    return value


def delete(
    core: Core, topic: Topic, before: int | None, predicate: Match | None, ticket: Ticket
) -> None:
    """Stages a delete of what exists now; the ticket ends in a Deleted."""
    core.expire(topic)
    bound = topic.head + 1 if before is None else min(before, topic.head + 1)
    if predicate is None:
        frame = DeleteFrame(bound, b"")
    else:
        frame = DeleteFrame(0, runs_of(matching(core, topic, predicate, bound)))

    def apply() -> Deleted:
        deleted = apply_delete(core, topic, frame)
        if predicate is not None:
            prune(topic, predicate)
        return Deleted(
            topic=topic.name, deleted=deleted, earliest_seq=topic.floor, head_seq=topic.head,
            count=topic.live_count, bytes=topic.live_bytes,
        )  # fmt: skip

    if topic.durability == "ephemeral":
        core.committer.apply_resident(topic, apply, ticket)
        return
    # Gated in every class that promises anything: an acknowledged delete does not come back.
    core.committer.stage(
        Op(
            topic, frames.DELETE, apply, gated=topic.durability != "memory", ticket=ticket,
            first=topic.head, payload=encode(frame),
        )
    )  # fmt: skip


def matching(core: Core, topic: Topic, match: Match, before: int) -> list[int]:
    """Live seqs below `before` whose tag matches; work in proportion to what matches."""
    index = core.tags_of(topic)
    return sorted(
        {
            seq
            for tag in _tags(index, match)
            for seq in index.exact(tag)
            if seq < before and is_live(topic, seq)
        }
    )


def prune(topic: Topic, match: Match) -> None:
    """Takes what is gone out of the index, so that the next delete does not look at it again."""
    index = topic.tags
    if index is None:
        return
    for tag in _tags(index, match):
        index.forget(tag, [seq for seq in index.exact(tag) if is_live(topic, seq)])


def _tags(index: TagIndex, match: Match) -> list[str]:
    text, is_prefix = match
    return list(index.under(text)) if is_prefix else [text]


def is_live(topic: Topic, seq: int) -> bool:
    if seq < topic.floor:
        return False
    position = topic.block_at(seq)
    if position >= len(topic.blocks):
        return False
    block = topic.blocks[position]
    return block.first <= seq and not block.is_dead(seq - block.first)


def runs_of(seqs: Sequence[int]) -> bytes:
    """Ascending seqs, each once, as runs of (first, last)."""
    runs: array[int] = array("Q")
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1:
        return array("Q", (seqs[0], seqs[-1])).tobytes()
    for seq in seqs:
        if runs and runs[-1] == seq - 1:
            runs[-1] = seq
        else:
            runs.extend((seq, seq))
    return runs.tobytes()


def apply_delete(core: Core, topic: Topic, frame: DeleteFrame) -> int:
    """Removes the records for good; returns how many were live. Idempotent."""
    if topic.dropped:
        # It was on its way while the topic went, with all of its records.
        return 0
    before = topic.live_count
    if frame.before_seq > topic.floor:
        topic.raise_floor(frame.before_seq, DELETED, core.segments.spans)
    runs = array("Q", frame.runs)
    for first, last in zip(runs[0::2], runs[1::2], strict=True):
        _kill(core, topic, first, last)
    topic.settle()
    core.recount(topic)
    return before - topic.live_count


def _kill(core: Core, topic: Topic, first: int, last: int) -> None:
    seq = max(first, topic.floor)
    while seq <= min(last, topic.head):
        position = topic.block_at(seq)
        if position >= len(topic.blocks):
            return
        block = topic.blocks[position]
        seq = max(seq, block.first)
        stop = min(last, block.stop - 1)
        # All of them first: the runs are found in the flags that the marking changes.
        for start, end in list(block.live_runs(seq - block.first, stop + 1 - block.first)):
            span = block.span(start, end, core.segments.spans)
            block.mark_run_dead(start, end)
            block.live_bytes -= span
            topic.live_bytes -= span
            topic.live_count -= end - start
            if topic.queue is not None:
                topic.queue.gone(block.first + start, block.first + end)
            if block.segment is not None and block.row is not None:
                at = block.row.flag_at
                block.segment.unflagged.extend(range(at + start, at + end))
        if block.dead_count == block.count:
            topic.release(block)
            block.ghost()
        seq = stop + 1
