"""What the server said of an epoch, kept in the lake for the time when that epoch is over.

While an epoch lasts the server is asked. When a topic was created anew nobody can be asked about
the old one any more: its account is what sync had stored by then. What is left out of a commit is
stored before the commit, and what was deleted while it was read after it, so that the account
covers whatever was deleted before it was read. An epoch has an account as soon as sync has met it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topics.client.client import Client
from topics.errors import Conflicting
from topics.lake.layout import Lake
from topics.lake.spans import Span, end_from, joined

DELETED, LIVE = "deleted", "live"


class EpochOver(Conflicting):
    """The topic was created anew in the middle: whoever asked looks again."""


def explained(
    client: Client, topic: str, epoch: str, first: int, last: int
) -> Iterator[tuple[int, int, str]]:
    """The server's account of these seqs. Raises EpochOver."""
    asked: int | None = first
    while asked is not None and asked <= last:
        page = client.explain(topic, asked, last)
        if page.epoch != epoch:
            raise EpochOver(f'topic "{topic}" of epoch {epoch} is no more')
        for part in page.ranges:
            yield part.first, part.last, part.state
        asked = page.next_from


class Account:
    """The stored account of one epoch."""

    def __init__(self, lake: Lake, topic: str, epoch: str) -> None:
        self._lake, self._topic, self.epoch = lake, topic, epoch
        found = lake.account(topic, epoch)
        self.is_stored = found is not None
        found = found or {}
        self.deleted: list[Span] = [(first, last) for first, last in found.get("deleted", ())]
        # Up to where the server was asked.
        self.upto: int = found.get("upto", 0)
        # The last head that was seen: what a topic that is gone had.
        self.head: int = found.get("head", 0)
        # The last seq that a commit of sync brought, and the version of the table after it.
        self.committed: int = found.get("committed", 0)
        self.version: int = found.get("version", 0)

    def see(self, head: int) -> None:
        """Remembers a head that is not read yet, and that the epoch was met."""
        if head > self.head or not self.is_stored:
            self.head = max(self.head, head)
            self.store()

    def commit(self, version: int, seq: int) -> None:
        """Remembers how far a commit came, so that rows that vanish are missed."""
        self.version, self.committed = version, seq
        self.store()

    def place(self, seq: int) -> int:
        """Where a table stands whose last row is at `seq`: what was deleted leaves no row."""
        return end_from(self.deleted, seq)

    def ask(self, client: Client, upto: int) -> None:
        """Asks the server about what was not asked yet."""
        if upto > self.upto:
            told = explained(client, self._topic, self.epoch, self.upto + 1, upto)
            self.add((first, last) for first, last, state in told if state == DELETED)
            self.upto = upto

    def add(self, deleted: Iterable[Span]) -> None:
        merged = joined([*self.deleted, *deleted])
        if merged != self.deleted:
            self.deleted = merged
            self.store()

    def store(self) -> None:
        self._lake.keep_account(
            self._topic, self.epoch,
            {
                "epoch": self.epoch, "head": self.head, "committed": self.committed,
                "version": self.version, "upto": self.upto, "deleted": self.deleted,
            },
        )  # fmt: skip
        self.is_stored = True
