"""`topics diff`: one page of a topic, as a consumer reads it."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import server
from topics.cli.tail import show
from topics.client.values import Gap


def register(app: typer.Typer) -> None:
    app.command()(diff)


def diff(
    topic: server.Topic,
    from_seq: Annotated[int, typer.Option("--from", min=0, help="After this seq.")] = 0,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", min=1, help="At most so many.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="Leave out what this node wrote.")] = None,
    wait: Annotated[str | None, typer.Option(metavar="TIME", help="Wait for records.")] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Read one page of a topic, as a consumer does.

    What was lost in front of it comes first, in red; where to go on is said on standard error.

    Example: topics diff orders --from 480000 -n 100
    """
    with server.connected(url, token) as client:
        page = client.diff(
            topic, from_seq=from_seq, limit=limit, node=node or None, include_tags=True,
            wait_ms=None if wait is None else server.duration_ms(wait),
        )  # fmt: skip
    if as_json:
        server.write_json(page)
        return
    lost = page.tombstone
    if lost is not None:
        gap = Gap(gap_from=lost.gap_from, gap_to=lost.gap_to, reason=lost.reason)
        show(topic, gap, as_json=False, is_one=True)
    for record in page.records:
        show(topic, record, as_json=False, is_one=True)
    more = "nothing more" if page.caught_up else f"{page.lag} more"
    server.tell(f"next: --from {page.next_from_seq} ({more})")
