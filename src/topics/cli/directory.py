"""What the commands on a stopped data directory share: options, opening, output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID

from topics import settings
from topics.engine.offline.findings import Report, in_words
from topics.errors import DirectoryLocked, FormatMismatch, StorageError, Unreachable
from topics.settings import Settings
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, Misplaced, OsFs, join, shown
from topics.storage.readonly import ReadOnlyFs
from topics.storage.tiers import Store, open_store

PROBLEMS_SHOWN_MAX = 20

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The data directory.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]
ColdDir = Annotated[
    str,
    typer.Option(
        envvar="TOPICS_COLD_DIR", metavar="URI", help="The cold store: a directory or a bucket."
    ),
]


@contextmanager
def reaching(path: str, *, as_json: bool) -> Iterator[None]:
    """A directory that can not be read or is in use ends the command with exit code 3."""
    try:
        _require_ours(path)
        yield
    except (
        DirectoryLocked,
        FormatMismatch,
        PermissionError,
        Misplaced,
        Unreachable,
    ) as error:
        message = str(error)
        if as_json:
            problem = "locked" if isinstance(error, DirectoryLocked) else "unreadable"
            found = Report()
            found.problem(shown(path), problem, shown(message))
            write_json(found)
        raise Unreachable(message) from None


@dataclass(frozen=True, slots=True)
class Looked:
    """A directory to look through: its filesystem, its cold store, and the call for progress."""

    fs: Fs
    store: Store | None
    progress: Any


@contextmanager
def looking(path: str, cold_dir: str, *, as_json: bool, is_shared: bool = True) -> Iterator[Looked]:
    """Keeps servers away from a directory while it is looked through, unless the work does so."""
    with reaching(path, as_json=as_json):
        fs = OsFs()
        lock = fs.lock_shared(join(path, "LOCK")) if is_shared else None
        try:
            with progress_bar("checking") as progress:
                yield Looked(fs, store_of(cold_dir, ReadOnlyFs(fs)), progress)
        finally:
            if lock is not None:
                lock.release()


def _require_ours(path: str) -> None:
    """Ends at once what would only list somebody else's files."""
    if not os.path.isdir(path):
        is_there = os.path.lexists(path)
        raise Unreachable(f"{path} is not a directory" if is_there else f"there is no {path}")
    if not os.listdir(path):
        raise Unreachable(f"{path} is empty: no server or engine has used it")
    fs = OsFs()
    DataDir(fs, fs.resolve(path)).check_ours()


def require_format(path: str) -> None:
    """Refuses to turn a mistyped path into a new data directory."""
    if not os.path.isfile(os.path.join(path, "FORMAT")):
        raise Unreachable(f"{path} is not a topics directory: it has no FORMAT file")


def settings_for(cold_dir: str) -> Settings:
    """The settings of the environment; one thread is enough for a tool."""
    found = settings.from_environment(os.environ)
    return msgspec.structs.replace(found, cold_dir=cold_dir, threads=False)


def store_of(cold_dir: str, fs: Fs) -> Store | None:
    if not cold_dir:
        return None
    if "://" not in cold_dir and not os.path.isdir(cold_dir):
        raise Unreachable(f"the cold store {cold_dir} is not a directory")
    try:
        return open_store(cold_dir, fs)
    except StorageError as error:
        raise Unreachable(error.message) from None


def write_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


@contextmanager
def progress_bar(words: str) -> Iterator[Any]:
    """A bar on standard error when a person looks at it; yields the call that moves it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task: TaskID = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_findings(found: Report) -> None:
    """A line for each problem and warning, the first of each kind."""
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for style, word, items in (
        ("red", "problem", found.problems),
        ("yellow", "warning", found.warnings),
    ):
        for item in items[:PROBLEMS_SHOWN_MAX]:
            words = escape(shown(in_words(item)))
            console.print(f"[{style}]{word}[/] {words}")
        if len(items) > PROBLEMS_SHOWN_MAX:
            console.print(f"… and {len(items) - PROBLEMS_SHOWN_MAX} more; see --json")
