"""`topics check`: is everything in a data directory as it was written? Changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from topics.cli import directory, exits
from topics.engine.offline import check as checking
from topics.engine.offline.findings import Report
from topics.storage.fs import shown


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    path: directory.Directory,
    cold: Annotated[
        bool, typer.Option("--cold", help="Read the objects in the cold store too.")
    ] = False,
    cold_dir: directory.ColdDir = "",
    as_json: directory.Json = False,
) -> None:
    """Verify a data directory that no server is using. Changes nothing.

    Exits 0 when all is well, 1 with problems, 3 when the directory can not be read or is in use.

    Example: topics check topics-data
    """
    if cold and not cold_dir:
        raise typer.BadParameter("--cold needs --cold-dir or TOPICS_COLD_DIR")
    with directory.looking(path, cold_dir if cold else "", as_json=as_json) as at:
        found = checking.check(at.fs, path, store=at.store, progress=at.progress)
    if as_json:
        directory.write_json(found)
    else:
        directory.print_findings(found)
        _print_summary(path, found)
    if not found.ok:
        raise typer.Exit(exits.NOT_SO)


def _print_summary(path: str, found: Report) -> None:
    looked = found.checked
    verdict = "[green]ok[/]" if found.ok else f"[red]{len(found.problems)} problems[/]"
    Console(highlight=False, soft_wrap=True, emoji=False).print(
        f"{escape(shown(path))}: {verdict}: {looked.topics} topics with {looked.records} records, "
        f"{looked.segments} segments, {looked.snapshots} snapshots, {looked.frames} frames of the "
        f"log; {looked.bytes / 1e6:.1f} MB in {looked.files} files"
    )
    if not found.ok:
        typer.echo("nothing was changed; `topics repair` says what can be saved")
