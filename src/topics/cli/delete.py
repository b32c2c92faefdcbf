"""`topics delete`: records, for good."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import exits, server
from topics.client.values import Match


def register(app: typer.Typer) -> None:
    app.command()(delete)


def delete(
    topic: server.Topic,
    before: Annotated[
        int | None, typer.Option("--before", min=0, metavar="SEQ", help="All below this seq.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="Those of this tag; a * at the end: of this prefix.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Delete records for good, by seq, by tag, or both.

    It is effective at once for every reader, and silent: nobody is told of a gap. Records that are
    written later stay, whatever their tag.

    Example: topics delete orders --tag 'tenant42:*' --before 480000
    """
    if before is None and tag is None:
        raise typer.BadParameter("name --before, --tag or both")
    match: Match | None = None
    if tag is not None:
        match = ("tag", "Glob" if tag.endswith("*") else "Eq", tag)
    if not server.is_sure(f"Delete these records of {topic} for good?", yes):
        raise typer.Exit(exits.NOT_SO)
    with server.connected(url, token) as client:
        answer = client.delete(topic, before_seq=before, match=match)
    if as_json:
        server.write_json(answer)
    else:
        server.tell(f"{answer.deleted} deleted; {answer.count} left")
