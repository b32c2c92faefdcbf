"""Filters of a batch read: how much less has to be read for them.

Spark applies every filter again, so what is read here may be too much and never too little. A bound
is never placed inside a gap: with and without `pushdown` a query gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyspark_topics.accounts import Account, Item
from pyspark_topics.http import Server, topic_path


@dataclass(frozen=True)
class Wanted:
    """What the filters leave: seqs and times (ms) from and to, both inclusive, and tags."""

    seq_from: float = 0
    seq_to: float = inf
    ms_from: float = -inf
    ms_to: float = inf
    match: list[str] | None = None


def wanted(filters: Iterable[Filter]) -> Wanted:
    """What the filters leave; one that says nothing about seq, ts or tag changes nothing."""
    low: dict[str, float] = {"seq": 0, "ts": -inf}
    high: dict[str, float] = {"seq": inf, "ts": inf}
    match = None
    for one in filters:
        column = ".".join(getattr(one, "attribute", ()))
        value = getattr(one, "value", None)
        if column == "tag" and isinstance(value, str) and value:
            if isinstance(one, EqualTo):
                match = ["tag", "Eq", value]
            elif isinstance(one, StringStartsWith) and match is None and "*" not in value:
                match = ["tag", "Glob", value + "*"]
        number = _number(value)
        if column not in low or number is None:
            continue
        # Bounds that are not included become ones that are: too much, and Spark takes it away.
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            low[column] = max(low[column], number)
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            high[column] = min(high[column], number)
    return Wanted(low["seq"], high["seq"], low["ts"], high["ts"], match)


def _number(value: object) -> float | None:
    if isinstance(value, datetime):
        # Spark hands over an instant; one without a zone is in the session's, which is ours.
        return (value if value.tzinfo else value.astimezone(UTC)).timestamp() * 1000
    return value if type(value) is int else None


def narrowed(server: Server, topic: str, found: Account, want: Wanted) -> Account:
    """The part of an account that the filters leave, with whole gaps at both ends."""
    low: float = want.seq_from
    high: float = want.seq_to
    if want.ms_from > -inf:
        low = max(low, _seq_at(server, topic, want.ms_from) or inf)
    if want.ms_to < inf:
        after = _seq_at(server, topic, want.ms_to + 1)
        high = min(high, inf if after is None else after - 1)
    kept = [_within(item, low, high) for item in found.items]
    items = [item for item in kept if item is not None]
    if len(items) == len(found.items) and items == found.items:
        return found
    if not items:
        return Account(found.epoch, found.start, found.start)
    first = items[0].first
    start = found.start if items[0] is found.items[0] else first - 1
    return Account(found.epoch, start, items[-1].last, items)


def _within(item: Item, low: float, high: float) -> Item | None:
    if item.last < low or item.first > high:
        return None
    if item.is_gap:
        return item
    return Item(int(max(item.first, low)), int(min(item.last, high)))


def _seq_at(server: Server, topic: str, ms: float) -> int | None:
    seq = server.get(topic_path(topic, "seq-at"), ts=max(0, int(ms)))["seq"]
    return None if seq is None else int(seq)
