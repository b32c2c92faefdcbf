"""`topics top`: a server at work."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from topics.cli import server
from topics.client.client import Client
from topics.client.values import TopicSummary

SHOWN = 20


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    every: Annotated[str, typer.Option(metavar="TIME", help="How often it is drawn.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Once, and no more.")] = False,
    count: Annotated[int, typer.Option("-n", min=1, help="So many topics.")] = SHOWN,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Watch a server: topics, rates, lag, pressure.

    The largest topics, with writes a second between two looks. Ctrl-C ends it.

    Example: topics top --every 5s
    """
    from rich.console import Console
    from rich.live import Live

    pause_s = server.duration_ms(every) / 1000
    with server.connected(url, token, server.BRIEF if once else server.PATIENT) as client:
        if once or as_json:
            before = _look(client, count)
            time.sleep(min(pause_s, 1.0))
            now = _look(client, count)
            if as_json:
                server.write_json(_rows(before, now))
            else:
                Console().print(_drawn(before, now))
            return
        before = _look(client, count)
        with Live(_drawn(before, before), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(pause_s)
                now = _look(client, count)
                live.update(_drawn(before, now), refresh=True)
                before = now


class _Look:
    def __init__(self, topics: list[TopicSummary], metrics: dict[str, Any], at_s: float) -> None:
        self.topics = topics
        self.metrics = metrics
        self.at_s = at_s
        self.heads = {one.topic: one.head_seq for one in topics}


def _look(client: Client, count: int) -> _Look:
    return _Look(
        client.topics(sort="bytes", page_size=count).topics, client.metrics(), time.monotonic()
    )


def _rows(before: _Look, now: _Look) -> list[dict[str, Any]]:
    took_s = max(now.at_s - before.at_s, 1e-9)
    return [
        {
            "topic": one.topic, "type": one.type, "count": one.count, "bytes": one.bytes,
            "head_seq": one.head_seq,
            "writes_per_s": round(
                (one.head_seq - before.heads.get(one.topic, one.head_seq)) / took_s, 1
            ),
            "lag": one.lag,
        }
        for one in now.topics
    ]  # fmt: skip


def _drawn(before: _Look, now: _Look) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for heading in ("topic", "type", "records", "size", "head", "writes/s"):
        table.add_column(heading, justify="left" if heading in ("topic", "type") else "right")
    for row in _rows(before, now):
        table.add_row(
            row["topic"], row["type"], f"{row['count']:,}", server.amount(row["bytes"]),
            f"{row['head_seq']:,}", f"{row['writes_per_s']:,.1f}",
        )  # fmt: skip
    return Group(Text(_summary(now.metrics)), table)


def _summary(metrics: dict[str, Any]) -> str:
    """What stands above the table; whatever of it the server offers."""
    shown = {
        "topics": "topics_topics", "records": "topics_records_live",
        "streams": "topics_sse_connections", "leases": "topics_queue_leases_in_flight",
        "pressure": "topics_pressure",
    }  # fmt: skip
    parts = [
        f"{label} {metrics[name]:,}" for label, name in shown.items()
        if isinstance(metrics.get(name), int | float)
    ]  # fmt: skip
    return "  ".join(parts)
