"""`topics backup`: make a backup, list them, verify them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from topics.cli import directory, exits, server
from topics.client.client import Client
from topics.client.values import BackupState
from topics.engine.engine import Engine
from topics.engine.offline import backups
from topics.errors import StorageError, Unreachable
from topics.storage import vault
from topics.storage.fs import OsFs, shown
from topics.storage.readonly import ReadOnlyFs
from topics.storage.tiers import SCHEME, Store, open_store

POLL_S = 0.2
DATA_DIR = "topics-data"


def register(app: typer.Typer) -> None:
    app.command()(backup)


def backup(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[ls|verify] DEST", help="A directory, s3://…, gs://… or az://…"),
    ],
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Back up this directory, which no server is using."),
    ] = None,
    cold_dir: directory.ColdDir = "",
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Back up all to a directory or a bucket; list and verify backups.

    The running server copies beside its work what DEST does not have yet, under a key with the
    scope admin; a directory is one of the server. Where none runs, the directory that it would
    serve (TOPICS_DATA_DIR) is opened and backed up. `ls` lists the backups in DEST, `verify` reads
    every byte of them: exit 1 with what is wrong, 3 where DEST can not be read.

    Example: topics backup s3://backups/orders
    """
    verb, dest = _asked(words)
    if verb:
        with reading(dest) as store:
            if verb == "ls":
                _list(store, as_json=as_json)
            else:
                _verify(store, dest, as_json=as_json)
    else:
        dest = dest if SCHEME.match(dest) else os.path.abspath(dest)
        done = _offline(dest, data_dir, cold_dir) if data_dir else None
        if done is None:
            done = _through_server(dest, url, token, cold_dir)
        _told(done, as_json=as_json)


def _asked(words: list[str]) -> tuple[str, str]:
    if len(words) == 1 and words[0] in ("ls", "verify"):
        raise typer.BadParameter(f"{words[0]} needs DEST; ./{words[0]} is a directory of that name")
    if len(words) == 1:
        return "", _named(words[0])
    if len(words) == 2 and words[0] in ("ls", "verify"):
        return words[0], _named(words[1])
    raise typer.BadParameter("it takes DEST, ls DEST or verify DEST")


def _named(dest: str) -> str:
    """Refuses the value of a variable that was not set: it would be the current directory."""
    if not dest:
        raise typer.BadParameter("DEST is empty; . is the directory you are in")
    return dest


def store_at(dest: str) -> Store:
    """A place with backups, to be read."""
    if SCHEME.match(dest) is None and not os.path.isdir(dest):
        raise Unreachable(f"{dest} is not a directory")
    try:
        return open_store(dest, ReadOnlyFs(OsFs()))
    except StorageError as error:
        raise Unreachable(error.message) from None


@contextmanager
def reading(dest: str) -> Iterator[Store]:
    """A place with backups; exit code 3 where it can not be read, as where it is not there."""
    try:
        yield store_at(dest)
    except OSError as error:
        raise Unreachable(f"{dest} can not be read: {error.strerror or error}") from None


def _list(store: Store, *, as_json: bool) -> None:
    found, report = backups.listed(store)
    if as_json:
        server.write_json(found)
    else:
        _print_list(found)
    for problem in report.problems:
        server.tell(shown(f"problem {problem['detail']}"))
    if report.problems:
        raise typer.Exit(exits.NOT_SO)


def _print_list(found: list[backups.BackupLine]) -> None:
    headings = ("BACKUP", "FROM", "TO", "TOPICS", "BYTES", "NEW")
    server.print_table(headings, [
        (
            each.id, server.when(each.from_ms), server.when(each.to_ms), each.topics,
            server.amount(each.bytes), server.amount(each.bytes_copied),
        )
        for each in found
    ])  # fmt: skip


def _verify(store: Store, dest: str, *, as_json: bool) -> None:
    with directory.progress_bar("verifying") as progress:
        found = backups.verify(store, progress)
    if not found.backups and found.ok:
        # Nothing is damaged; but who asks relies on a backup, and the first was perhaps cut short.
        nothing = {"path": vault.MANIFESTS, "problem": "no_backup", "detail": backups.NOTHING}
        found = msgspec.structs.replace(found, ok=False, problems=[nothing])
    if as_json:
        server.write_json(found)
    else:
        for problem in found.problems:
            server.write_line(shown(f"problem {problem['path']}: {problem['detail']}"))
        verdict = "ok" if found.ok else server.counted(len(found.problems), "problem")
        server.write_line(shown(
            f"{dest}: {verdict}: {server.counted(found.backups, 'backup')}, "
            f"{server.counted(found.objects, 'object')}, "
            f"{server.amount(found.bytes)}"
        ))  # fmt: skip
    if not found.ok:
        raise typer.Exit(exits.NOT_SO)


def _through_server(dest: str, url: str | None, token: str | None, cold_dir: str) -> BackupState:
    with server.connected(url, token) as client:
        try:
            begun = client.begin_backup(dest)
        except Unreachable:
            path = os.environ.get("TOPICS_DATA_DIR", DATA_DIR)
            if url is not None or not os.path.isfile(os.path.join(path, "FORMAT")):
                raise
            server.tell(f"no server answers; {path} is opened")
            return _offline(dest, path, cold_dir)
        return _followed(client, begun)


def _followed(client: Client, done: BackupState) -> BackupState:
    """Waits for its end, with a bar for people."""
    with directory.progress_bar("backing up") as progress:
        while done.state == "running":
            time.sleep(POLL_S)
            done = client.backup()
            if progress is not None:
                progress(done.bytes_done, max(done.bytes, done.bytes_done))
    return done


def _offline(dest: str, path: str, cold_dir: str) -> BackupState:
    with directory.reaching(path, as_json=False):
        directory.require_format(path)
        with Engine.open(path, settings=directory.settings_for(cold_dir)) as engine:
            fields: dict[str, Any] = msgspec.structs.asdict(engine.backup(dest))
    return BackupState(**fields)


def _told(done: BackupState, *, as_json: bool) -> None:
    if as_json:
        server.write_json(done)
    if done.state != "done":
        raise StorageError(f"the backup failed and is not there: {done.error}")
    if not as_json:
        server.write_line(
            f"{done.id}: {server.counted(done.topics or 0, 'topic')}, "
            f"{server.amount(done.bytes)}, of which {server.amount(done.bytes_copied)} new; "
            f"from {server.when(done.from_ts)} to {server.when(done.to_ts)}"
        )
