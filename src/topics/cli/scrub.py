"""`topics scrub`: erase from the disk what was deleted, evicted or expired."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import directory
from topics.engine.engine import Engine
from topics.storage.fs import OsFs, shown
from topics.storage.readonly import ReadOnlyFs


def register(app: typer.Typer) -> None:
    app.command()(scrub)


def scrub(
    path: directory.Directory,
    keep_aside: Annotated[
        bool,
        typer.Option("--keep-aside", help="Leave broken/ and quarantine/, whatever they hold."),
    ] = False,
    cold_dir: directory.ColdDir = "",
    as_json: directory.Json = False,
) -> None:
    """Erase what was deleted, evicted or expired from every file.

    Segments are written anew without it; the old ones, spent log files, old snapshots and all
    copies in broken/ and quarantine/ are removed. No server may be using the directory.

    Example: topics scrub topics-data
    """
    with directory.reaching(path, as_json=as_json):
        directory.require_format(path)
        directory.store_of(cold_dir, ReadOnlyFs(OsFs()))
        with (
            directory.progress_bar("scrubbing") as progress,
            Engine.open(path, settings=directory.settings_for(cold_dir)) as engine,
        ):
            done = engine.scrub(keep_aside=keep_aside, progress=progress)
    if as_json:
        directory.write_json(done)
        return
    typer.echo(
        f"{shown(path)}: erased {done.records_erased} records ({done.bytes_erased} bytes) from "
        f"{done.segments_rewritten} segments; removed {done.segments_removed} old segments and "
        f"{len(done.copies_removed)} copies"
    )
    for name in done.left:
        typer.echo(f"left alone: {name}")
