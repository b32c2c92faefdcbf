"""`topics erase`: one erasure through the log, its files, and the lake."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from topics.cli import exits, server
from topics.cli.lake import DEFAULT_LAKE
from topics.client.client import Client
from topics.client.values import Match
from topics.engine.offline.traces import Traces
from topics.errors import NotFound, TopicNotFound, Unreachable


def register(app: typer.Typer) -> None:
    app.command()(erase)


def erase(
    topic: server.Topic,
    tag: Annotated[str, typer.Option(help="Of this tag; a * at the end: of this prefix.")],
    prove: Annotated[
        bool, typer.Option("--prove", help="Search the files afterwards; exit 1 if any is left.")
    ] = False,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="URI",
            envvar="TOPICS_LAKE",
            help="The lake; else ./topics-lake, where there is one.",
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            envvar="TOPICS_DATA_DIR",
            help="Search the server's files, too; else its answer is the proof.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Erase the records of a tag from the log, its files and the lake.

    The log deletes them, its files are written anew without them, the lake's rows go, and with them
    every older version of that table. Records that are written later stay.

    Example: topics erase orders --tag customer-42 --prove --lake ./lake
    """  # fmt: skip
    _check_places(lake, data_dir)
    if not server.is_sure(f"Erase {tag} from {topic} everywhere, for good?", yes):
        raise typer.Exit(exits.NOT_SO)
    root = lake or (DEFAULT_LAKE if os.path.isdir(DEFAULT_LAKE) else None)
    with server.connected(url, token, server.PATIENT) as client:
        done = _erase(client, topic, tag, root, data_dir, prove=prove)
    if as_json:
        server.write_json(done)
    else:
        _show(done)
    if done["left"]:
        raise typer.Exit(exits.NOT_SO)


def _check_places(lake: str | None, data_dir: str | None) -> None:
    """Before anything is erased: nothing may be left out because of a slip."""
    if lake is not None and "://" not in lake and not os.path.isdir(lake):
        raise NotFound(f"there is no lake at {lake}")
    if data_dir is not None and not os.path.isdir(data_dir):
        raise NotFound(f"there is no directory {data_dir}")


def _erase(
    client: Client, topic: str, tag: str, root: str | None, data_dir: str | None, *, prove: bool
) -> dict[str, Any]:
    match: Match = ("tag", "Glob" if tag.endswith("*") else "Eq", tag)
    place, table = _table(root, topic)
    traces = Traces()
    done: dict[str, Any] = {"topic": topic, "tag": tag, "deleted": 0, "lake": None, "left": None}
    if prove and table is not None:
        from topics.lake.erasing import tagged

        for row in tagged(table, tag):
            traces.add(*row)
    try:
        if prove:
            _add_log(traces, client, topic, match)
        done["deleted"] = client.delete(topic, match=match).deleted
        rewritten = client.rewrite(topic)
        done |= {"bytes_before": rewritten.bytes_before, "bytes_after": rewritten.bytes_after}
    except TopicNotFound:
        # Its table may still be there.
        if table is None:
            raise
    if table is not None:
        from topics.lake.erasing import erase as erase_rows

        found = erase_rows(place, client, topic, tag)
        done["lake"] = {
            "rows_deleted": found.rows_deleted, "rows_emptied": found.rows_emptied,
            "files_removed": found.files_removed,
        }  # fmt: skip
    if prove:
        done["left"] = [*_left_in_log(client, topic, match, traces, data_dir)]
        if place is not None:
            from topics.lake.erasing import left_in_lake

            done["left"] += left_in_lake(place, topic, tag, traces.places, list(traces.texts()))
    return done


def _table(root: str | None, topic: str) -> tuple[Any, Any]:
    """The lake, and the topic's table in it; None where there is none."""
    if root is None:
        return None, None
    from topics.lake.layout import Lake
    from topics.lake.table import Table

    lake = Lake(root)
    return lake, Table(lake, topic) if topic in lake.tables() else None


def _left_in_log(
    client: Client, topic: str, match: Match, traces: Traces, data_dir: str | None
) -> list[str]:
    """What of the records that were there the server still has, and its files."""
    left = []
    now = Traces()
    try:
        _add_log(now, client, topic, match)
    except TopicNotFound:
        pass
    # Records of the same tag that came since are not those that were erased.
    left += [f"record {seq} of epoch {epoch}" for epoch, seq in sorted(now.places & traces.places)]
    if data_dir is not None:
        try:
            left += _left_in_directory(traces, data_dir)
        except OSError as error:
            raise Unreachable(f"{data_dir} can not be searched: {error}") from None
    return left


def _add_log(traces: Traces, client: Client, topic: str, match: Match) -> None:
    """The records of a topic that match. Raises TopicNotFound."""
    at = 0
    while True:
        page = client.range(topic, from_seq=at, match=match)
        for record in page.records:
            traces.add(page.epoch, record.seq, record.ts, bytes(record.data))
        at = page.next_from_seq
        if page.complete:
            return


def _left_in_directory(traces: Traces, directory: str) -> Iterator[str]:
    """Files of a data directory that hold one of the records. Raises OSError."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    if not os.fstat(file.fileno()).st_size:
                        continue
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                        is_left = traces.is_in(content)
            except FileNotFoundError:
                # The server removes files while we look.
                continue
            if is_left:
                yield path


def _show(done: dict[str, Any]) -> None:
    server.tell(f"log: {done['deleted']} records deleted, its files written anew without them")
    if done["lake"] is not None:
        rows = done["lake"]
        server.tell(
            f"lake: {rows['rows_deleted']} rows deleted, {rows['rows_emptied']} emptied, "
            f"{rows['files_removed']} files removed"
        )
    for place in done["left"] or ():
        server.write_line(f"left: {place}")
    if done["left"] == []:
        server.tell("nothing of it is left")
