"""`topics restore`: a new data directory from a backup."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from topics.cli import directory, server
from topics.cli.backup import reading
from topics.engine.offline import backups
from topics.engine.offline.restore import restore as build
from topics.storage.fs import OsFs, shown


def register(app: typer.Typer) -> None:
    app.command()(restore)


def restore(
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="Where the backups are: a directory or a bucket.")
    ],
    to: Annotated[str, typer.Option(metavar="DIR", help="The directory to make; new or empty.")],
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="As of a moment: 2026-11-16T15:04:05Z, or in ms."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="With --seq: when the topic got it.")
    ] = None,
    seq: Annotated[
        int | None, typer.Option(metavar="SEQ", min=1, help="The head that --topic has then.")
    ] = None,
    backup: Annotated[
        str | None, typer.Option(metavar="ID", help="Not the newest backup that has the moment.")
    ] = None,
    keep_epochs: Annotated[
        bool,
        typer.Option("--keep-epochs", help="The original has written nothing since the backup."),
    ] = False,
    as_json: server.Json = False,
) -> None:
    """Build a data directory from a backup, of its end or of a moment.

    A moment has to lie in the span of a backup, which `topics backup ls` shows.

    What the backup knows to be deleted stays deleted. Every topic opens with a new epoch, because
    the original may have gone on, unless --keep-epochs says that it has not. The directory appears
    when it is whole and was checked.

    Example: topics restore s3://backups/orders --to ./data --at 2026-11-16T15:00:00Z
    """
    if (topic is None) != (seq is None) or (at is not None and topic is not None):
        raise typer.BadParameter("it takes --at, or --topic and --seq together")
    if keep_epochs and (at is not None or topic is not None):
        raise typer.BadParameter("--keep-epochs is for the end of a backup: heads moved back else")
    at_ms = None if at is None else moment_ms(at)
    with reading(dest) as store:
        manifest, moment = backups.choose(store, backup, at_ms=at_ms, topic=topic, seq=seq)
    with directory.progress_bar("restoring") as progress:
        done = build(
            OsFs(), store, to, manifest, moment=moment, keep_epochs=keep_epochs, progress=progress
        )
    if as_json:
        server.write_json(done)
        return
    when = "the end" if done.at_ms is None else server.when(done.at_ms)
    server.write_line(
        f"{shown(to)}: {server.counted(done.topics, 'topic')} as of {when} of backup "
        f"{done.backup}; checked. {server.counted(done.deleted_later, 'record')} and "
        f"{server.counted(done.topics_dropped_later, 'topic')} that were deleted later stay so; "
        f"{server.counted(done.epochs_renewed, 'topic')} with a new epoch"
    )


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, or a time of ISO 8601, which is local without a zone."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time such as 2026-11-16T15:04:05Z") from None
    return int(moment.timestamp() * 1000)
