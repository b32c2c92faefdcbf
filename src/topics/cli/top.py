"""`topics top`: a server at work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from topics.cli import server
from topics.client.client import Client
from topics.client.values import TopicSummary

SHOWN = 20
# How many lags are asked for, which is a page; a topic that is not there shows none.
LAGS = 1000


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

    The largest topics, with writes a second between two looks, and how far the slowest named cursor
    of each is behind (of a queue at least the jobs that are ready). Above them, what the server has
    to do and what keeps it back. Ctrl-C ends it.

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


@dataclass(frozen=True, slots=True)
class _Look:
    topics: list[TopicSummary]
    # Of those that are furthest behind, which need not be the largest.
    lags: dict[str, int | None]
    metrics: dict[str, Any]
    at_s: float


def _look(client: Client, count: int) -> _Look:
    behind = client.topics(sort="lag", page_size=LAGS).topics
    return _Look(
        client.topics(sort="bytes", page_size=count).topics,
        {one.topic: one.lag for one in behind}, client.metrics(), time.monotonic(),
    )  # fmt: skip


def _rows(before: _Look, now: _Look) -> list[dict[str, Any]]:
    took_s = max(now.at_s - before.at_s, 1e-9)
    heads = {one.topic: one.head_seq for one in before.topics}
    return [
        {
            "topic": one.topic, "type": one.type, "count": one.count, "bytes": one.bytes,
            "head_seq": one.head_seq,
            "writes_per_s": round(
                (one.head_seq - heads.get(one.topic, one.head_seq)) / took_s, 1
            ),
            "lag": now.lags.get(one.topic),
        }
        for one in now.topics
    ]  # fmt: skip


def _drawn(before: _Look, now: _Look) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for heading in ("topic", "type", "records", "size", "head", "writes/s", "lag"):
        table.add_column(heading, justify="left" if heading in ("topic", "type") else "right")
    for row in _rows(before, now):
        table.add_row(
            # Not as markup: a name with `:a:` in it would be shown with a picture.
            Text(row["topic"]), row["type"], f"{row['count']:,}", server.amount(row["bytes"]),
            f"{row['head_seq']:,}", f"{row['writes_per_s']:,.1f}",
            "–" if row["lag"] is None else f"{row['lag']:,}",
        )  # fmt: skip
    return Group(*(Text(line) for line in _summary(before, now)), table)


def _summary(before: _Look, now: _Look) -> list[str]:
    """What stands above the table; whatever of it the server offers."""
    took_s = max(now.at_s - before.at_s, 1e-9)

    def a_second(name: str) -> str:
        return f"{(_number(now, name) - _number(before, name)) / took_s:,.1f}/s"

    at_work = [
        f"topics {_number(now, 'topics_topics'):,}",
        f"records {_number(now, 'topics_records_live'):,}",
        f"written {a_second('topics_records_appended_total')}",
        f"read {a_second('topics_records_read_total')}",
        f"streams {_number(now, 'topics_sse_connections'):,}",
        f"leases {_number(now, 'topics_queue_leases_in_flight'):,}",
    ]
    refused = _throttled(now) - _throttled(before)
    pressure = [
        f"queue {_number(now, 'topics_wal_queue_depth'):,}",
        f"throttled {refused / took_s:,.1f}/s",
        f"slow {_number(now, 'topics_slow_consumers'):,}",
        f"unsent {server.amount(_number(now, 'topics_unsent_bytes'))}",
        f"disk free {server.amount(_number(now, 'topics_disk_free_bytes'))}",
    ]
    if _number(now, "topics_wal_read_only"):
        pressure.insert(0, "READ ONLY")
    return ["  ".join(at_work), "pressure  " + "  ".join(pressure)]


def _number(look: _Look, name: str) -> int:
    found = look.metrics.get(name)
    return int(found) if isinstance(found, int | float) else 0


def _throttled(look: _Look) -> int:
    """Requests that were answered 429."""
    routes = look.metrics.get("topics_http_requests_total") or {}
    return sum(
        int(statuses.get("429", 0)) for methods in routes.values() for statuses in methods.values()
    )
