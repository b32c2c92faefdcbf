"""`topics cursor`: the named places of readers."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import exits, server
from topics.types import Hold

group = typer.Typer(no_args_is_help=True, help="List, set and remove the named places of readers.")
Name = Annotated[str, typer.Argument(metavar="CURSOR", help="The name of the reader.")]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="cursor")


@group.command()
def ls(
    topic: server.Topic,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """List the cursors of a topic with their lag.

    Example: topics cursor ls orders
    """
    with server.connected(url, token) as client:
        found = client.cursors(topic).cursors
    if as_json:
        server.write_json(found)
        return
    rows = [(one.cursor, one.seq, one.lag, one.epoch, server.when(one.updated_ts)) for one in found]
    server.print_table(("cursor", "seq", "lag", "epoch", "set"), rows)


@group.command("set")
def put(
    topic: server.Topic,
    cursor: Name,
    seq: Annotated[
        int, typer.Argument(metavar="SEQ", min=0, help="The last seq that was consumed.")
    ],
    reset: Annotated[bool, typer.Option("--reset", help="Backwards, too.")] = False,
    hold_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep unread records, up to so many bytes.")
    ] = None,
    hold_age: Annotated[
        str | None, typer.Option(metavar="TIME", help="Keep unread records, up to so old.")
    ] = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Say how far a reader has come.

    Example: topics cursor set orders billing 480231
    """
    hold = None
    if hold_bytes is not None or hold_age is not None:
        hold = Hold(
            max_bytes=None if hold_bytes is None else server.size_bytes(hold_bytes),
            max_age_ms=None if hold_age is None else server.duration_ms(hold_age),
        )
    with server.connected(url, token) as client:
        state = client.set_cursor(topic, cursor, seq, reset=reset or None, hold=hold)
    if as_json:
        server.write_json(state)
    else:
        server.tell(f"{cursor} of {topic} is at {state.seq}, lag {state.lag}")


@group.command()
def rm(
    topic: server.Topic,
    cursor: Name,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Forget a cursor and what it holds. Exits 1 when there was none.

    Example: topics cursor rm orders billing
    """
    with server.connected(url, token) as client:
        answer = client.delete_cursor(topic, cursor)
    if as_json:
        server.write_json(answer)
    server.tell(f"{cursor} of {topic} {'removed' if answer.deleted else 'was not there'}")
    if not answer.deleted:
        raise typer.Exit(exits.NOT_SO)
