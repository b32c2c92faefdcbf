"""What a lake holds, for people and scripts: its gaps, and how far it is."""

from __future__ import annotations

from typing import Any

from topics.client.client import Client
from topics.errors import TopicNotFound
from topics.lake.accounts import Account
from topics.lake.layout import Lake
from topics.lake.table import Table


def gaps(lake: Lake, topics: list[str]) -> list[dict[str, Any]]:
    """Every gap of these topics: the ledger."""
    return [gap for topic in topics for gap in Table(lake, topic).snapshot().gaps()]


def status(lake: Lake, client: Client, topics: list[str]) -> list[dict[str, Any]]:
    """Where each table stands beside its topic; no head and no lag where there is no topic."""
    found = []
    for topic in topics:
        ends = Table(lake, topic).snapshot().ends()
        last = max({*ends, *lake.epochs(topic)}, key=int, default=None)
        seq = 0 if last is None else Account(lake, topic, last).place(ends.get(last, 0))
        try:
            now = client.topic(topic, touch=False)
        except TopicNotFound:
            found.append(_line(topic, last, seq, None, None))
            continue
        # Created anew since: nothing of the new one is here yet.
        behind = now.head_seq if last not in (None, now.epoch) else max(0, now.head_seq - seq)
        found.append(_line(topic, last or now.epoch, seq, now.head_seq, behind))
    return found


def cursor_of(lake: Lake) -> str:
    """The cursor that shows how far this lake is."""
    return f"lake-{lake.id}"


def _line(
    topic: str, epoch: str | None, seq: int, head: int | None, lag: int | None
) -> dict[str, Any]:
    return {"topic": topic, "epoch": epoch, "seq": seq, "head_seq": head, "lag": lag}
