"""Where a read begins and where a batch read ends: words, seqs and times become places."""

from __future__ import annotations

from pyspark_topics.accounts import State, account
from pyspark_topics.errors import BadOption, DataLoss
from pyspark_topics.http import Server, topic_path
from pyspark_topics.offsets import Place
from pyspark_topics.options import LATEST, SourceOptions


def start_of(server: Server, options: SourceOptions, topic: str, state: State) -> Place:
    """The first place in a topic. Raises DataLoss for one above the head.

    Gaps that are there now are known, unless the place was named by its seq: whoever names one
    counts on it.
    """
    is_named = isinstance(options.start, dict) and options.start_ts is None
    seq = _start_seq(server, options, topic, state)
    if seq > state.head:
        raise DataLoss(
            f"topic {topic!r} begins at seq {seq + 1} by the option startingOffsets, but its head "
            f"is {state.head}: it is not the topic that this place is of"
        )
    known: list[tuple[int, int]] = []
    if options.fail_on_data_loss and not is_named:
        known = account(server, topic, state, seq, state.head).gaps
    return Place(state.epoch, seq, state.head, 0, tuple(known))


def joined(server: Server, options: SourceOptions, topic: str, state: State) -> Place:
    """The first place in a topic that joins a running stream: its beginning."""
    known = account(server, topic, state, 0, state.head).gaps if options.fail_on_data_loss else []
    return Place(state.epoch, 0, state.head, 0, tuple(known))


def end_of(server: Server, options: SourceOptions, topic: str, state: State) -> int:
    """The last seq that a batch reads. Raises DataLoss for one above the head."""
    if options.end_ts is not None:
        found = _seq_at(server, topic, options.end_ts)
        return state.head if found is None else found - 1
    if not isinstance(options.end, dict) or topic not in options.end:
        return state.head
    last = options.end[topic] - 1
    if last > state.head:
        raise DataLoss(
            f"topic {topic!r} is to be read up to seq {last} by the option endingOffsets, but its "
            f"head is {state.head}"
        )
    return max(last, 0)


def check_order(options: SourceOptions, topic: str, start: int, end: int) -> int:
    """The end of a batch, not before its start. Raises BadOption where the seqs were named."""
    by_seq = options.start_ts is None and options.end_ts is None
    if start > end and by_seq and isinstance(options.end, dict):
        raise BadOption("endingOffsets", f"{end + 1} of {topic!r} is before its start, {start + 1}")
    return max(start, end)


def _start_seq(server: Server, options: SourceOptions, topic: str, state: State) -> int:
    if options.start_ts is not None:
        # In front of what was lost and may have been of that time: the read tells it.
        found = server.get(topic_path(topic, "seq-at"), ts=options.start_ts)
        return min(int(found["from_seq"]), state.head)
    if options.start == LATEST:
        return state.head
    if isinstance(options.start, dict):
        # A topic of a pattern that is not named is new to whoever named the others.
        return max(options.start.get(topic, 1) - 1, 0)
    return 0


def _seq_at(server: Server, topic: str, ts: int) -> int | None:
    seq = server.get(topic_path(topic, "seq-at"), ts=ts)["seq"]
    return None if seq is None else int(seq)
