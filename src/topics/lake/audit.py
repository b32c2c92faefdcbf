"""The audit: every seq from 1 to the table's position is told exactly once, or deleted.

Only rows and the server's account explain a seq; absence explains nothing. Of the epoch that lasts
the server is asked, of those that are over the lake has the account that sync stored. A record that
the server has deleted since it was read is no finding: the row tells what was there. Where a schema
judges records, each one that it rejected is among the dead letters exactly once, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias, TypedDict

import numpy as np

from topics.client.client import Client
from topics.client.values import TopicState
from topics.errors import NotFound, TopicNotFound
from topics.lake import dead_letters
from topics.lake.accounts import DELETED, LIVE, Account, EpochOver, explained
from topics.lake.layout import Lake
from topics.lake.spans import Span, common, joined, of_seqs, within, without
from topics.lake.table import RECREATED, Snapshot, Table

# Seqs that are looked at together.
SEQS = 1_000_000

MISSING = "missing: the server has these records, the table does not"
UNTOLD = "lost without a gap: the server says {}, the table says nothing"
UNACCOUNTED = "unaccounted: neither a row nor an account"
NO_ACCOUNT = "the epoch is over, and its account is not in the lake"
UNKEPT = "the account of this epoch is not in the lake"
NO_TABLE = "the table is not there: nothing tells of what was committed"
NOT_ENDED = "the epoch is over, and no gap says so"
DOUBLE = "duplicate: more than one row for a seq"
DOUBLE_GAP = "duplicate: gaps that overlap"
BOTH = "both a record and in a gap"
LIVE_GAP = "a gap over records that the server has"
BEYOND = "beyond the head of the topic"

# What the server says of seqs: spans by state.
States: TypeAlias = dict[str, list[Span]]


class Problem(TypedDict):
    topic: str
    epoch: str
    first: int
    last: int
    problem: str


def audit(lake: Lake, client: Client, topic: str) -> list[Problem]:
    """What is wrong with a topic's table. Raises NotFound, Unreachable."""
    while True:
        try:
            looked = _Audit(lake, client, topic).epochs()
            found = [(epoch, span, words) for epoch, each in looked for span, words in each]
        except (EpochOver, TopicNotFound):
            # Deleted or created anew in the middle.
            continue
        except NotFound:
            found = list(_without_table(lake, topic))
            if not found:
                raise
        return [
            {"topic": topic, "epoch": epoch, "first": first, "last": last, "problem": words}
            for epoch, (first, last), words in found
        ]


def _without_table(lake: Lake, topic: str) -> Iterator[tuple[str, Span, str]]:
    """Sync makes the table before the first account: where there is one, the other was there."""
    for epoch in sorted(lake.epochs(topic), key=int):
        yield epoch, (1, Account(lake, topic, epoch).committed), NO_TABLE


class _Audit:
    """One look at a table and its topic."""

    def __init__(self, lake: Lake, client: Client, topic: str) -> None:
        self._lake, self._client, self._topic = lake, client, topic
        # Before the table: what they say is done, it has. And the table before the topic.
        self._accounts = {epoch: Account(lake, topic, epoch) for epoch in lake.epochs(topic)}
        self._letters = dead_letters.found_in(lake, topic)
        self._table = Table(lake, topic).snapshot()
        self._gaps = self._table.gaps()
        self._ends = self._table.ends()
        # Up to where the dead letters have followed.
        self._followed: dict[str, int] = {}
        for epoch, account in self._accounts.items():
            # Rows at the end that are gone would else take the position along.
            if account.committed and not self._table.is_restored_since(account.version):
                self._ends[epoch] = max(self._ends.get(epoch, 0), account.committed)
                self._followed[epoch] = account.committed
        # Sync has come to this epoch, and so it is through with those before.
        self._newest = max(self._ends, key=int, default=None)
        self._now = self._state()

    def _state(self) -> TopicState | None:
        try:
            return self._client.topic(self._topic, touch=False)
        except TopicNotFound:
            return None

    def epochs(self) -> Iterator[tuple[str, Iterator[tuple[Span, str]]]]:
        """What was found in each epoch that the table tells of, or has passed."""
        if self._newest is None:
            return
        met = [epoch for epoch in self._accounts if int(epoch) < int(self._newest)]
        for epoch in sorted({*self._ends, *met}, key=int):
            if self._now is not None and self._now.epoch == epoch:
                yield epoch, self._lasting(epoch, self._now.head_seq)
            else:
                yield epoch, self._over(epoch)

    def _lasting(self, epoch: str, head: int) -> Iterator[tuple[Span, str]]:
        upto = self._ends[epoch]
        if epoch not in self._accounts:
            yield (1, upto), UNKEPT
        if upto > head:
            yield (head + 1, upto), BEYOND
            upto = head
        states: States = {}
        for first, last, state in explained(self._client, self._topic, epoch, 1, upto):
            states.setdefault(state, []).append((first, last))
        yield from self._found(epoch, upto, states)

    def _over(self, epoch: str) -> Iterator[tuple[Span, str]]:
        account = self._accounts.get(epoch)
        upto = self._ends.get(epoch, 0)
        if account is None:
            yield (1, upto), NO_ACCOUNT
            account = Account(self._lake, self._topic, epoch)
        if epoch != self._newest:
            upto = max(upto, account.head)
            if not any(gap["reason"] == RECREATED for gap in self._gaps_of(epoch)):
                yield (upto + 1, upto), NOT_ENDED
        yield from self._found(epoch, upto, {DELETED: account.deleted})

    def _gaps_of(self, epoch: str) -> list[dict[str, Any]]:
        return [gap for gap in self._gaps if gap["epoch"] == epoch]

    def _found(self, epoch: str, upto: int, states: States) -> Iterator[tuple[Span, str]]:
        told = [(gap["first"], gap["last"]) for gap in self._gaps_of(epoch)]
        told = sorted(span for span in told if span[0] <= span[1])
        gaps = joined(told)
        for before, after in pairwise(told):
            if after[0] <= before[1]:
                yield (after[0], min(before[1], after[1])), DOUBLE_GAP
        for span in common(gaps, states.get(LIVE, [])):
            yield span, LIVE_GAP
        for first in range(1, upto + 1, SEQS):
            span = first, min(first + SEQS - 1, upto)
            near = {state: within(spans, *span) for state, spans in states.items()}
            yield from _compared(self._table, epoch, span, within(gaps, *span), near)
            yield from dead_letters.differences(
                self._table, self._letters, epoch, span, self._followed.get(epoch, 0),
                near.get(DELETED, []),
            )  # fmt: skip


def _compared(
    table: Snapshot, epoch: str, span: Span, gaps: list[Span], states: States
) -> Iterator[tuple[Span, str]]:
    """What is wrong from the first to the last seq of a span."""
    seqs = table.seqs(epoch, *span)
    doubled = seqs[np.flatnonzero(np.diff(seqs) == 0)]
    for found in of_seqs(np.unique(doubled)):
        yield found, DOUBLE
    held = of_seqs(np.unique(seqs))
    for found in common(held, gaps):
        yield found, BOTH
    left = list(without([span], joined([*held, *gaps])))
    left = list(without(left, states.get(DELETED, [])))
    for state in sorted(states.keys() - {DELETED}):
        for found in common(left, states[state]):
            yield found, MISSING if state == LIVE else UNTOLD.format(state)
        left = list(without(left, states[state]))
    for found in left:
        yield found, UNACCOUNTED
