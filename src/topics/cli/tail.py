"""`topics tail`: the last records of topics, and what comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from topics.cli import server
from topics.client.client import Client
from topics.client.following import RECREATED
from topics.client.values import Gap, RangePage
from topics.storage.fs import shown
from topics.types import Record

LAST_DEFAULT = 10
# Where records were deleted, the last ones are further back than their number says.
WIDER = 4


def register(app: typer.Typer) -> None:
    app.command()(tail)


def tail(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")] = False,
    last: Annotated[
        int | None,
        typer.Option("-n", "--last", min=0, metavar="N", help="So many of each topic; 10."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what is younger: 90s, 10m, 2h, 7d.")
    ] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON array; with -f an object a line.")
    ] = False,
) -> None:
    """Show the last records of topics, and with -f what comes.

    What was lost is shown in its place, in red; with --since, also what may have been of that time.
    With -f interruptions are survived: no record is shown twice and none is left out.

    Example: topics tail -f -n 3 orders payments
    """
    # All that is there is younger than what is longer ago than time is counted.
    since_ms = None if since is None else max(server.now_ms() - server.duration_ms(since), 0)
    # One that is named twice is still one: its records are not shown twice.
    topics = list(dict.fromkeys(topics))
    shown_items: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    with server.connected(url, token, server.PATIENT if follow else server.BRIEF) as client:
        for topic in topics:
            items, places[topic] = last_items(client, topic, last, since_ms)
            for item in items:
                if as_json and not follow:
                    shown_items.append(wire(topic, item))
                else:
                    show(topic, item, as_json=as_json, is_one=len(topics) == 1)
        if as_json and not follow:
            server.write_json(shown_items)
        if follow:
            _follow(client, places, as_json=as_json)


def _follow(client: Client, places: dict[str, int], *, as_json: bool) -> None:
    flush = typer.get_text_stream("stdout").flush
    flush()
    for batch in client.follow(*places, from_seq=places, include_tags=True).batches():
        for item in batch.items:
            show(batch.topic, item, as_json=as_json, is_one=len(places) == 1)
        flush()


def last_items(
    client: Client, topic: str, last: int | None, since_ms: int | None
) -> tuple[Iterable[Record | Gap], int]:
    """The last records of a topic with the gaps between them, and the seq after them."""
    head = client.topic(topic).head_seq
    if since_ms is not None:
        younger = window(client, topic, client.seq_at(topic, since_ms).from_seq, head)
        return (younger if last is None else _last(younger, last)), head
    wanted = LAST_DEFAULT if last is None else last
    width = wanted
    while True:
        start = max(head - width, 0)
        items = list(window(client, topic, start, head))
        records = [index for index, item in enumerate(items) if isinstance(item, Record)]
        if len(records) >= wanted or start == 0:
            first = records[-wanted] if 0 < wanted <= len(records) else 0
            return (items[first:] if wanted else []), head
        width = max(width * WIDER, 1)


def _last(items: Iterable[Record | Gap], wanted: int) -> Iterable[Record | Gap]:
    """The last records of a run that may be long, and the gaps between them."""
    kept: deque[Record | Gap] = deque()
    records = 0
    for item in items:
        kept.append(item)
        records += isinstance(item, Record)
        while records > wanted:
            records -= isinstance(kept.popleft(), Record)
    return kept if wanted else ()


def window(client: Client, topic: str, start: int, head: int) -> Iterator[Record | Gap]:
    """Everything in (start, head], in order, a page at a time."""
    while start < head:
        page: RangePage = client.range(topic, from_seq=start, to_seq=head)
        yield from in_order(page)
        if page.complete or page.next_from_seq <= start:
            return
        start = page.next_from_seq


def in_order(page: RangePage) -> list[Record | Gap]:
    found: list[Record | Gap] = [*page.records, *page.gaps]
    return sorted(found, key=lambda item: item.seq if isinstance(item, Record) else item.gap_from)


def wire(topic: str, item: Record | Gap) -> dict[str, Any]:
    """An item as scripts see it: the names of the API."""
    if isinstance(item, Gap):
        return {
            "topic": topic, "gap_from": item.gap_from, "gap_to": item.gap_to,
            "reason": item.reason,
        }  # fmt: skip
    found: dict[str, Any] = {"topic": topic, "$seq": item.seq, "$ts": item.ts}
    for name, value in (("$node", item.node), ("$tag", item.tag)):
        if value is not None:
            found[name] = value
    found["data"] = item.data
    if item.meta is not None:
        found["meta"] = item.meta
    return found


def show(topic: str, item: Record | Gap, *, as_json: bool, is_one: bool) -> None:
    if as_json:
        server.write_line(server.json_text(wire(topic, item)))
        return
    name = "" if is_one else f"{topic} "
    if isinstance(item, Gap):
        words = f"{item.gap_from}–{item.gap_to} lost: {item.reason}"
        if item.reason == RECREATED:
            # Its seqs are of another life of the topic than those that follow.
            words = f"{RECREATED}: the topic was deleted and made again; it begins anew"
        typer.secho(name + words, fg="red")
        return
    more = "".join(
        f" {shown(word)}" for word in (item.tag and f"#{item.tag}", item.node and f"@{item.node}")
        if word
    )  # fmt: skip
    data = shown(bytes(item.data).decode("utf-8", "replace"))
    server.write_line(f"{name}{item.seq} {server.when(item.ts)}{more} {data}")
