"""How much of what is there a batch takes: a bound on rows, a bound on bytes, over all topics.

Rows are counted in the server's account, a gap as one; bytes are asked of its index, which moves no
data. A batch ends behind a record or behind a whole gap, never inside one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark_topics.accounts import Account
from pyspark_topics.http import Server, topic_path


@dataclass(frozen=True)
class Budget:
    """What a batch may hold; None is no bound."""

    rows_max: int | None = None
    bytes_max: int | None = None

    def after(self, rows: int) -> Budget:
        """What is left when so many rows are told already."""
        if self.rows_max is None:
            return self
        return replace(self, rows_max=max(0, self.rows_max - rows))


def admit(server: Server, pending: dict[str, Account], budget: Budget) -> dict[str, Account]:
    """What of each topic goes into the batch, so that none of them waits for all others."""
    taken = dict(pending)
    if budget.rows_max is not None:
        shares = _shares({name: found.count for name, found in pending.items()}, budget.rows_max)
        for name, rows in shares.items():
            taken[name] = _first(pending[name], rows)
    if budget.bytes_max is not None:
        taken = _by_bytes(server, taken, budget.bytes_max)
    return taken


def _first(found: Account, rows: int) -> Account:
    if rows >= found.count:
        return found
    return found.cut(found.place_after(rows) if rows else found.start)


def _shares(wanted: dict[str, int], left: int) -> dict[str, int]:
    """Splits a number fairly: nobody gets more than wanted, what is left over goes to the rest."""
    shares = {}
    order = sorted(wanted, key=lambda name: (wanted[name], name))
    for index, name in enumerate(order):
        shares[name] = min(wanted[name], left // (len(order) - index))
        left -= shares[name]
    return shares


def _by_bytes(server: Server, taken: dict[str, Account], left: int) -> dict[str, Account]:
    order = sorted(taken, key=lambda name: (taken[name].count, name))
    cut = {}
    for index, name in enumerate(order):
        found = taken[name]
        share = max(1, left // (len(order) - index))
        end, used = (found.start, 0) if left <= 0 else _end_of(server, name, found, share)
        left -= used
        cut[name] = found.cut(end)
    return cut


def _end_of(server: Server, topic: str, found: Account, bytes_max: int) -> tuple[int, int]:
    """Where so many bytes end, and how many they are; the server answers a piece at a time."""
    at, used = found.start, 0
    while at < found.end and used < bytes_max:
        page = server.post(
            topic_path(topic, "range"),
            {
                "from_seq": at, "to_seq": found.end, "max_bytes": bytes_max - used,
                "epoch": found.epoch, "format": "none",
            },
        )  # fmt: skip
        if page["epoch"] != found.epoch or page["next_from_seq"] <= at:
            # Created anew in the meantime: the tasks will tell.
            return found.end, used
        at, used = page["next_from_seq"], used + page["bytes"]
    return at, used
