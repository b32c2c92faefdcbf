"""What the log has deleted leaves the tables, too: its rows now, its bytes with the next vacuum.

The account is stored before the rows go, so that a table whose epoch is over still explains them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topics.client.client import Client
from topics.lake.accounts import DELETED, Account, explained
from topics.lake.dead_letters import DeadLetters
from topics.lake.layout import Lake
from topics.lake.spans import Span, joined
from topics.lake.table import RECORDS, Table

# Seqs that are looked at together, and deleted in one commit.
SEQS = 1_000_000


def propagate(lake: Lake, table: Table, client: Client, *, only: str = "true") -> int:
    """Deletes the rows of what the server deleted, `only` those of which this is so; how many.

    Raises TopicNotFound, EpochOver.
    """
    epoch = client.topic(table.topic, touch=False).epoch
    upto = table.snapshot().ends().get(epoch, 0)
    told = explained(client, table.topic, epoch, 1, upto)
    deleted = joined((first, last) for first, last, state in told if state == DELETED)
    if not deleted:
        return 0
    gone = 0
    with lake.writing(table.topic):
        Account(lake, table.topic, epoch).add(deleted)
        for first in range(1, upto + 1, SEQS):
            held = table.snapshot().seqs(
                epoch, first, min(first + SEQS - 1, upto), f"{RECORDS} AND {only}"
            )
            found = held[_within(held, deleted)]
            if len(found):
                gone += table.delete(epoch, found, RECORDS)
        if gone:
            DeadLetters(lake, table.topic).follow(table.snapshot())
    return gone


def _within(seqs: npt.NDArray[np.int64], spans: list[Span]) -> npt.NDArray[np.bool_]:
    """Which of these numbers are in one of the spans."""
    bounds = np.array(spans, dtype=np.int64)
    at = np.searchsorted(bounds[:, 0], seqs, side="right") - 1
    found: npt.NDArray[np.bool_] = (at >= 0) & (seqs <= bounds[np.maximum(at, 0), 1])
    return found
