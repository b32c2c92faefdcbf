"""What the commands that speak to a server share: options, the client, times, tables, output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from topics.cli import profiles
from topics.client.client import Client
from topics.client.retries import RetryPolicy
from topics.errors import InvalidRequest, TopicsError, Unreachable
from topics.storage.fs import shown
from topics.surrogates import masked

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The server; else of the profile, or TOPICS_URL."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="KEY", help="The API key; else of the profile, or TOPICS_TOKEN."
    ),
]
# A person waits; what writes or follows has more patience, and says that it has.
BRIEF = RetryPolicy(give_up_after_s=2.0)
PATIENT = RetryPolicy(give_up_after_s=30.0)
_ONE = msgspec.json.Decoder(msgspec.Raw)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", re.IGNORECASE)


@contextmanager
def connected(url: str | None, token: str | None, retries: RetryPolicy = BRIEF) -> Iterator[Client]:
    """A client of the server that the command's flags, profile and variables name.

    One that is patient says soon that it has to be.
    """
    if retries is not BRIEF:
        with connected(url, token) as client:
            try:
                meet(client)
            except Unreachable as error:
                tell(f"{error.message}; waiting for it, up to {retries.give_up_after_s:.0f} s")
    found = profiles.target(url, token)
    ca_file = found.ca_file.value or None
    try:
        client = Client(found.url.value, found.token.value, ca_file=ca_file, retries=retries)
    except InvalidRequest as error:
        if url is None or "url" not in error.detail:
            raise
        raise typer.BadParameter(error.message, param_hint="--url") from None
    with client:
        yield client


def meet(client: Client) -> None:
    """Raises Unreachable when there is no server; whatever one answers is fine."""
    try:
        client.health()
    except Unreachable:
        raise
    except TopicsError:
        return


def duration_ms(text: str) -> int:
    """`90s`, `10m`, `1.5h`, `7d`, `0`. Raises a usage error for anything else."""
    if text.strip() == "0":
        return 0
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration such as 90s, 10m, 1.5h or 7d")
    return int(float(found[1]) * _UNITS_MS[found[2]])


def size_bytes(text: str) -> int:
    """`4096`, `64k`, `10MiB`. Raises a usage error for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size such as 4096, 64k or 10MiB")
    return int(float(found[1]) * _SIZES[found[2].lower()])


def now_ms() -> int:
    return int(time.time() * 1000)


def when(ts_ms: int | None) -> str:
    """A time as people read it, in their own zone."""
    if ts_ms is None:
        return "never"
    moment = datetime.fromtimestamp(ts_ms / 1000).astimezone()
    return moment.isoformat(sep=" ", timespec="milliseconds")[:23]


def amount(size: int) -> str:
    """Bytes as people read them."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def json_fault(text: bytes) -> str | None:
    """Why a text is not one JSON value; None when it is. Half a surrogate pair is JSON."""
    try:
        # The decoder takes bytes of a string as they are.
        text.decode()
        _ONE.decode(masked(text))
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    except RecursionError:
        return "it is nested too deeply"
    except msgspec.DecodeError as error:
        return str(error).removeprefix("JSON is malformed: ")
    return None


def write_json(value: Any) -> None:
    """One JSON value on standard output."""
    sys.stdout.write(json_text(value) + "\n")


def write_array(values: Iterable[Any]) -> None:
    """One JSON array on standard output, as it comes; nothing where the first one fails."""
    rest = iter(values)
    for value in rest:
        sys.stdout.write("[" + json_text(value))
        break
    else:
        write_line("[]")
        return
    for value in rest:
        sys.stdout.write("," + json_text(value))
    write_line("]")


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")


def tell(text: str) -> None:
    """A line for people, on standard error."""
    typer.echo(text, err=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers to the right. What a terminal would act on is escaped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(headings):
        is_number = any(isinstance(row[index], int) for row in rows)
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(shown(_cell(value))) for value in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width to keep to.
        console.width = 10_000
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values under each other."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        write_line(f"{name:<{width}}  {shown(_cell(value))}")


def is_sure(question: str, yes: bool) -> bool:
    """Asks where a person can answer; a script has meant what it wrote."""
    if yes or not sys.stdin.isatty():
        return True
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        # Ctrl-C, or the end of the input.
        raise KeyboardInterrupt from None
