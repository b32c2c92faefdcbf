"""`topics repair`: open a damaged data directory again, with every loss written down."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import directory, exits
from topics.engine.offline import repair as repairing
from topics.engine.offline.repair import Repaired
from topics.storage.fs import shown

LINES_MAX = 20


def register(app: typer.Typer) -> None:
    app.command()(repair)


def repair(
    path: directory.Directory,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Write the repair; without it, only report.")
    ] = False,
    cold_dir: directory.ColdDir = "",
    as_json: directory.Json = False,
) -> None:
    """Save what a damaged directory still has; tell the rest as lost.

    Without --accept-loss nothing is changed: exits 1 when something would be lost, else 0. With
    it, what can not be read becomes a `corruption` gap that readers are told about, and the old
    files are kept in broken/.

    Example: topics repair topics-data
    """
    with directory.looking(path, cold_dir, as_json=as_json, is_shared=not accept_loss) as at:
        done = repairing.repair(
            at.fs, path, accept_loss=accept_loss, settings=directory.settings_for(""),
            store=at.store, progress=at.progress,
        )  # fmt: skip
    if as_json:
        directory.write_json(done)
    else:
        _print(path, done)
    if done.remaining or (done.loses and not done.applied):
        raise typer.Exit(exits.NOT_SO)


def _print(path: str, done: Repaired) -> None:
    if not done.problems:
        typer.echo(f"{shown(path)}: nothing to repair")
        return
    verb = "is" if done.applied else "would be"
    seqs = sum(lost.last - lost.first + 1 for lost in done.lost)
    lines = [f"lost: {x.topic} seqs {x.first} to {x.last}" for x in done.lost]
    lines += [f"new epoch: {name}: nobody can say how far it went" for name in done.epochs_renewed]
    lines += [f"name lost: the topic {verb} called {name}" for name in done.renamed]
    for line in lines[:LINES_MAX]:
        typer.echo(line)
    if len(lines) > LINES_MAX:
        typer.echo(f"… and {len(lines) - LINES_MAX} more; see --json")
    if done.frames_lost != 0:
        count = "an unknown number of" if done.frames_lost is None else done.frames_lost
        typer.echo(f"{count} frames of the log are missing, with any deletes and topics among them")
    if done.topics_vanished:
        typer.echo(f"{done.topics_vanished} topics are gone altogether, or more; nobody has a name")
    if done.applied:
        typer.echo(
            f"{shown(path)}: repaired; {seqs} seqs are recorded as lost; "
            f"{len(done.set_aside)} old files are in broken/"
        )
    else:
        advice = "restore from a backup, or run again" if done.loses else "run again"
        typer.echo(
            f"{shown(path)}: {seqs} seqs would be lost; nothing was changed; "
            f"{advice} with --accept-loss"
        )
    for item in done.remaining:
        typer.echo(f"still wrong: {shown(str(item['path']))}: {item['detail']}")
