"""`topics lake`: topics as Delta tables, with a ledger of gaps and an audit."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topics.cli import exits, server
from topics.errors import InvalidRequest, NotFound, TopicsError

if TYPE_CHECKING:
    from topics.lake.layout import Lake
    from topics.lake.loop import SyncLoop
    from topics.lake.schemas import Extras
    from topics.lake.sync import Moved
    from topics.lake.table import Stored


class Partition(StrEnum):
    """How new tables are parted."""

    day = "day"


group = typer.Typer(
    no_args_is_help=True, help="Keep topics as Delta tables, with every loss as a row."
)

DEFAULT_LAKE = "./topics-lake"
GIVE_UP_ONCE_S, GIVE_UP_S = 45.0, 600.0

Root = Annotated[
    str,
    typer.Option(
        "--lake", metavar="URI", envvar="TOPICS_LAKE", help="A directory or an object store."
    ),
]
Patterns = Annotated[
    list[str] | None, typer.Argument(metavar="PATTERN", help="Shell patterns; else all.")
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema", metavar="FILE", help="A JSON Schema: columns, and dead letters it rejects."
    ),
]
Variant = Annotated[
    bool, typer.Option("--variant", help="Tables have the data as a column data_variant, too.")
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the table.")]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="lake")


@group.command()
def sync(
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN", help="Shell patterns.")],
    lake: Root = DEFAULT_LAKE,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the heads that are there at the start.")
    ] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until it is stopped; the default.")
    ] = False,
    propagate_deletes: Annotated[
        bool, typer.Option("--propagate-deletes", help="What the log deletes leaves the tables.")
    ] = False,
    give_up_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Without the server: 10m; 45s with --once."),
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Keep a table of the latest value of each tag, too.")
    ] = False,
    partition_by: Annotated[
        Partition | None, typer.Option(help="New tables have a folder for each day.")
    ] = None,
    schema: SchemaFile = None,
    variant: Variant = False,
    master: Annotated[
        str, typer.Option(metavar="URL", envvar="TOPICS_SPARK_MASTER", help="Any Spark master.")
    ] = "local[*]",
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Bring the records and gaps of topics into their tables.

    A table is made for each topic that matches, an empty one for an empty topic. Rows and position
    are one commit: a sync that is killed goes on where its tables are. A schema is kept in the lake
    for later syncs. With --json it ends with [{topic, epoch, seq, head_seq, lag, rows, rejected}].

    Example: topics lake sync 'orders*' --lake ./lake --once
    """
    if once and continuous:
        raise typer.BadParameter("--once and --continuous exclude each other")
    from topics.lake.layout import Lake
    from topics.lake.loop import SyncLoop, Wishes

    extras = _extras(schema, variant)
    give_up_s = GIVE_UP_ONCE_S if once else GIVE_UP_S
    if give_up_after is not None:
        give_up_s = server.duration_ms(give_up_after) / 1000
    # Brief: the loop has the patience, and says so.
    with server.connected(url, token, server.BRIEF) as client:
        loop = SyncLoop(
            Lake(lake), client, patterns, _Session(master, once=once).get,
            give_up_after_s=give_up_s, told=_tell, says=server.tell,
            wishes=Wishes(propagate_deletes, latest, partition_by is not None, extras),
        )  # fmt: skip
        code = _run(loop, once=once)
    if as_json:
        server.write_json([loop.results[topic] for topic in sorted(loop.results)])
    if code:
        raise typer.Exit(code)


def _extras(schema: Path | None, variant: bool) -> Extras:
    from topics.lake.schemas import Extras, read_schema

    try:
        return Extras(None if schema is None else read_schema(schema), variant)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None


def _run(loop: SyncLoop, *, once: bool) -> int:
    """Until it is through, or a signal stops it: an interrupt is no success, a stop is one."""
    caught: list[int] = []

    def stop(number: int, _: object) -> None:
        caught.append(number)
        loop.stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        loop.once() if once else loop.forever()
    except TopicsError:
        if not caught:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return exits.INTERRUPTED if signal.SIGINT in caught else exits.OK


class _Session:
    """One Spark session, started by the first thread that has something to read."""

    def __init__(self, master: str, *, once: bool) -> None:
        self._master = master
        self._more = {"spark.scheduler.mode": "FAIR"}
        if once and master.startswith("local"):
            # Half of the processor time of a short life goes into compiling and collecting well.
            self._more["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        self._lock = threading.Lock()
        self._found: Any = None

    def get(self) -> Any:
        with self._lock:
            if self._found is None:
                from pyspark.errors import PySparkException

                from topics.spark.jars import JarMissing
                from topics.spark.session import session

                server.tell(f"starting Spark ({self._master})")
                try:
                    self._found = session(self._master, with_delta=True, more=self._more)
                except JarMissing as error:
                    raise NotFound(str(error)) from None
                except PySparkException as error:
                    raise NotFound(f"Spark does not start: {error}") from None
                self._found.sparkContext.setLogLevel("ERROR")
            return self._found


def _tell(topic: str, moved: Moved) -> None:
    done = moved.seq * 100 // max(moved.head, 1)
    rows = f"{moved.rows:,} rows" + (f", {moved.rejected:,} rejected" if moved.rejected else "")
    server.tell(f"{topic}: {rows}, seq {moved.seq:,} of {moved.head:,} ({done} %)")


@group.command()
def audit(
    patterns: Patterns = None,
    lake: Root = DEFAULT_LAKE,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Hold every seq of the tables against the server's own account.

    From seq 1 to where each table stands, in every epoch: each seq is one record, in one gap, or
    deleted as the server says. Exit 1 with findings, 3 when the server is away.

    Example: topics lake audit 'orders*' --lake ./lake
    """
    from topics.lake.audit import audit as audited

    place, topics = _tables(lake, patterns, with_gone=True)
    with server.connected(url, token) as client:
        # A lake without tables is no reason to say that the server is there.
        client.topics(page_size=1)
        problems = [found for topic in topics for found in audited(place, client, topic)]
    if as_json:
        server.write_json({"ok": not problems, "problems": problems})
    else:
        for found in problems:
            typer.echo(
                f"{found['topic']} epoch {found['epoch']} {found['first']}..{found['last']}: "
                f"{found['problem']}"
            )
        server.tell(f"{len(topics)} tables, {len(problems)} problems")
    if problems:
        raise typer.Exit(exits.NOT_SO)


@group.command()
def gaps(
    patterns: Patterns = None, lake: Root = DEFAULT_LAKE, as_json: server.Json = False
) -> None:
    """List every range that was lost, and why: the ledger.

    Example: topics lake gaps --json
    """
    from topics.lake.reports import gaps as found_in

    place, topics = _tables(lake, patterns)
    found = found_in(place, topics)
    _show(found, "{topic} epoch {epoch} {first}..{last} {reason}", as_json=as_json)


@group.command()
def rejected(
    patterns: Patterns = None, lake: Root = DEFAULT_LAKE, as_json: server.Json = False
) -> None:
    """List every record that a schema has rejected, and why: the dead letters.

    Example: topics lake rejected 'orders*' --json
    """
    from topics.lake.dead_letters import listed

    place, topics = _tables(lake, patterns)
    found = [each for topic in topics for each in listed(place, topic)]
    _show(found, "{topic} epoch {epoch} {seq} {reason}", as_json=as_json)


@group.command()
def status(
    patterns: Patterns = None,
    lake: Root = DEFAULT_LAKE,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Show how far each table is behind its topic.

    Example: topics lake status
    """
    from topics.lake.reports import status as found_in

    place, topics = _tables(lake, patterns)
    with server.connected(url, token) as client:
        client.topics(page_size=1)
        found = found_in(place, client, topics)
    _show(found, "{topic}: seq {seq} of {head_seq}, lag {lag} (epoch {epoch})", as_json=as_json)


@group.command()
def optimize(
    patterns: Patterns = None, lake: Root = DEFAULT_LAKE, as_json: server.Json = False
) -> None:
    """Make large files of small ones.

    Example: topics lake optimize 'orders*'
    """
    found = _upkeep(lake, patterns, lambda table: table.optimize())
    _show(found, "{topic}: {files_removed} files became {files_added}", as_json=as_json)


@group.command()
def vacuum(
    patterns: Patterns = None,
    lake: Root = DEFAULT_LAKE,
    retention_hours: Annotated[
        int, typer.Option(min=0, help="What a version so young needs stays.")
    ] = 168,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: server.Json = False,
) -> None:
    """Remove files that no version within the retention needs.

    With --retention-hours 0 only what the tables hold now is left; a reader of an older version,
    at this moment, loses its files.

    Example: topics lake vacuum --retention-hours 168
    """
    found = _upkeep(
        lake, patterns, lambda table: {"files": table.vacuum(retention_hours, is_dry=dry_run)}
    )
    ended = "would go" if dry_run else "gone"
    _show(found, "{topic}: {files} files " + ended, as_json=as_json)


@group.command()
def restore(
    topic: Topic,
    to: Annotated[int, typer.Option("--to", metavar="VERSION", min=0, help="A table's version.")],
    lake: Root = DEFAULT_LAKE,
    as_json: server.Json = False,
) -> None:
    """Bring a table back to one of its versions; the next sync goes on from there.

    Example: topics lake restore orders --to 12
    """
    from topics.lake.dead_letters import DeadLetters
    from topics.lake.layout import Lake
    from topics.lake.table import Table

    place = Lake(lake)
    place.check()
    table = Table(place, topic)
    table.snapshot()
    with place.writing(topic):
        version = table.restore(to)
        DeadLetters(place, topic).follow(table.snapshot())
    if as_json:
        server.write_json({"topic": topic, "restored_to": to, "version": version})
    else:
        typer.echo(f"{topic}: version {version} is what version {to} was")


def _show(found: Sequence[Mapping[str, Any]], line: str, *, as_json: bool) -> None:
    """What was found, as one value or each in a line of this form."""
    if as_json:
        server.write_json(found)
        return
    for each in found:
        typer.echo(line.format_map(each))


def _upkeep(
    lake: str, patterns: list[str] | None, work: Callable[[Stored], dict[str, int]]
) -> list[dict[str, Any]]:
    """Does it to all tables of each topic that matches, while nobody else writes them."""
    from topics.lake.table import Stored

    place, topics = _tables(lake, patterns)
    found = []
    for topic in topics:
        uris = place.table_uri(topic), place.letters_uri(topic), place.latest_uri(topic)
        first, *others = (Stored(uri, topic) for uri in uris)
        with place.writing(topic):
            done = Counter(work(first))
            for table in others:
                if table.is_there:
                    done.update(work(table))
            found.append({"topic": topic, **done})
    return found


def _tables(
    lake: str, patterns: list[str] | None, *, with_gone: bool = False
) -> tuple[Lake, list[str]]:
    """The lake, and the topics in it that match. Raises NotFound where none does."""
    from topics.lake.layout import Lake, matching

    place = Lake(lake)
    place.check()
    topics = matching(patterns or ["*"], place.met() if with_gone else place.tables())
    if patterns and not topics:
        raise NotFound(f"no table of the lake matches {' or '.join(map(repr, patterns))}")
    return place, topics
