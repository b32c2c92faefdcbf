"""`topics explain`: what became of every seq, drawn."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import server
from topics.types import STATES, ExplainedRange

# Voluntary removal is quiet, involuntary loss is red.
COLOURS = {"live": "green", "deleted": "bright_black", "unassigned": "bright_black"}
LOSS = "red"
LETTERS = {"live": "█", "deleted": "·", "unassigned": " "}
LOST = "×"
WIDTH = 60


def register(app: typer.Typer) -> None:
    app.command()(explain)


def explain(
    topic: server.Topic,
    first: Annotated[int, typer.Option("--from", min=1, help="The first seq.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, help="The last seq; the head.")] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Draw what became of every seq: live, deleted, or lost and why.

    Example: topics explain orders --from 1 --to 100000
    """
    ranges: list[ExplainedRange] = []
    epoch = ""
    with server.connected(url, token) as client:
        at: int | None = first
        while at is not None:
            page = client.explain(topic, at, last)
            ranges += page.ranges
            epoch, at = page.epoch, page.next_from
    if as_json:
        server.write_json({"topic": topic, "epoch": epoch, "ranges": ranges})
        return
    if not ranges:
        server.tell(f"{topic} has no seqs there")
        return
    _draw(ranges)
    for found in ranges:
        count = found.last - found.first + 1
        colour = COLOURS.get(found.state, LOSS)
        typer.secho(f"{found.first:>12} – {found.last:<12} {count:>12,}  {found.state}", fg=colour)


def _draw(ranges: list[ExplainedRange]) -> None:
    """A bar of all seqs. Where a cell stands for several states, loss is shown before anything."""
    start, end = ranges[0].first, ranges[-1].last
    span = max(end - start + 1, 1)
    width = min(WIDTH, span)
    cells: list[str | None] = [None] * width
    for found in ranges:
        low = (found.first - start) * width // span
        high = (found.last - start) * width // span
        for cell in range(low, high + 1):
            before = cells[cell]
            if before is None or _weight(found.state) > _weight(before):
                cells[cell] = found.state
    text = "".join(
        typer.style(LETTERS.get(state or "unassigned", LOST), fg=COLOURS.get(state or "", LOSS))
        for state in cells
    )
    typer.echo(f"{start} {text} {end}")
    typer.echo(f"{LETTERS['live']} live  {LETTERS['deleted']} deleted  {LOST} lost")


def _weight(state: str) -> int:
    return {"unassigned": 0, "deleted": 1, "live": 2}.get(state, 3 + STATES.index(state))
