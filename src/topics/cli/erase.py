"""`topics erase`: one erasure through the log, its files, and the lake."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from topics.cli import exits, server
from topics.cli.directory import progress_bar
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
    with (
        server.connected(url, token, server.PATIENT) as client,
        progress_bar("erasing") as progress,
    ):
        erasure = _Erasure(client, topic, tag, root, data_dir)
        erasure.run(progress, prove=prove)
    done = erasure.done
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


class _Erasure:
    """One erasure in its steps, and what became of it."""

    def __init__(
        self, client: Client, topic: str, tag: str, root: str | None, data_dir: str | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._tag = tag
        self._match: Match = ("tag", "Glob" if tag.endswith("*") else "Eq", tag)
        self._place, self._table = _table(root, topic)
        self._data_dir = data_dir
        self._traces = Traces()
        self.done: dict[str, Any] = {
            "topic": topic, "tag": tag, "deleted": 0, "lake": None, "left": None,
        }  # fmt: skip

    def run(self, progress: Callable[[int, int], None] | None, *, prove: bool) -> None:
        steps = [*(self._looking() if prove else ()), self._delete, self._rewrite]
        if self._table is not None:
            steps.append(self._erase_rows)
        if prove:
            self.done["left"] = []
            steps += self._proving()
        for count, step in enumerate(steps, 1):
            step()
            if progress is not None:
                progress(count, len(steps))

    # -- erasing -----------------------------------------------------------------------------

    def _delete(self) -> None:
        with self._in_log():
            self.done["deleted"] = self._client.delete(self._topic, match=self._match).deleted

    def _rewrite(self) -> None:
        with self._in_log():
            found = self._client.rewrite(self._topic)
            self.done |= {"bytes_before": found.bytes_before, "bytes_after": found.bytes_after}

    @contextmanager
    def _in_log(self) -> Iterator[None]:
        try:
            yield
        except TopicNotFound:
            # Its table may still be there.
            if self._table is None:
                raise

    def _erase_rows(self) -> None:
        from topics.lake.erasing import erase as erase_rows

        found = erase_rows(self._place, self._client, self._topic, self._tag)
        self.done["lake"] = {
            "rows_deleted": found.rows_deleted, "rows_emptied": found.rows_emptied,
            "files_removed": found.files_removed,
        }  # fmt: skip

    # -- proving -----------------------------------------------------------------------------

    def _looking(self) -> Iterator[Callable[[], None]]:
        """What is to be gone has to be known before."""
        if self._table is not None:
            yield self._trace_rows
        yield self._trace_records

    def _trace_rows(self) -> None:
        from topics.lake.erasing import tagged

        for row in tagged(self._table, self._tag):
            self._traces.add(*row)

    def _trace_records(self) -> None:
        with self._in_log():
            _add_log(self._traces, self._client, self._topic, self._match)

    def _proving(self) -> Iterator[Callable[[], None]]:
        yield self._search_log
        if self._data_dir is not None:
            yield self._search_directory
        if self._place is not None:
            yield self._search_lake

    def _search_log(self) -> None:
        now = Traces()
        try:
            _add_log(now, self._client, self._topic, self._match)
        except TopicNotFound:
            return
        # Records of the same tag that came since are not those that were erased.
        both = sorted(now.places & self._traces.places)
        self.done["left"] += [f"record {seq} of epoch {epoch}" for epoch, seq in both]

    def _search_directory(self) -> None:
        assert self._data_dir is not None
        try:
            self.done["left"] += _left_in_directory(self._traces, self._data_dir)
        except OSError as error:
            raise Unreachable(f"{self._data_dir} can not be searched: {error}") from None

    def _search_lake(self) -> None:
        from topics.lake.erasing import left_in_lake

        traces = self._traces
        self.done["left"] += left_in_lake(
            self._place, self._topic, self._tag, traces.places, list(traces.texts())
        )


def _table(root: str | None, topic: str) -> tuple[Any, Any]:
    """The lake, and the topic's table in it; None where there is none."""
    if root is None:
        return None, None
    from topics.lake.layout import Lake
    from topics.lake.table import Table

    lake = Lake(root)
    return lake, Table(lake, topic) if topic in lake.tables() else None


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
