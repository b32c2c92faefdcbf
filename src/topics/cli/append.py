"""`topics append`: lines of JSON into a topic."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import server
from topics.cli.sending import Files, Records, Sender, Text, lines_of


def register(app: typer.Typer) -> None:
    app.command()(append)


def append(
    topic: server.Topic,
    files: Files = None,
    records: Records = False,
    text: Text = False,
    node: Annotated[str | None, typer.Option(help="The node that writes.")] = None,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Make the topic if there is none.")
    ] = True,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Append lines of JSON to a topic, one record a line.

    Each line is the data of one record, verbatim; empty lines are left out. What was sent is said
    on standard error, also after Ctrl-C. Each batch has a key of its own, so that nothing is
    written twice when a connection breaks.

    Example: echo '{"n": 1}' | topics append orders
    """
    lines = lines_of(records=records, text=text)
    with server.connected(url, token, server.PATIENT) as client:
        sender = Sender(client, topic, lines, node=node, create=create)
        sender.run(files or ["-"], as_json=as_json)
