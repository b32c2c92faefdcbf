"""The `topics` command: global options, the list of commands, and the last guard.

A command reports failure by raising: a TopicsError becomes one line on standard error and an
exit code from `exits`. Only a bug shows a traceback. To add a command, write `cli/<name>.py`
with `register(app)` and name it in `commands.COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from topics import __version__
from topics.cli import chosen, exits
from topics.cli.commands import LazyGroup
from topics.errors import TopicsError, Unreachable

# What to try, by the code of an error.
HINTS = {
    "topic_not_found": "`topics topic ls` lists the topics",
    "router_not_found": "`topics router ls` lists the routers",
    "bucket_not_found": "the first `topics kv put` makes it",
    "unauthorized": "set TOPICS_TOKEN, or use --token or a profile; `topics config` says which",
    "forbidden": "use a key that may do this",
    "not_a_queue": "`topics topic create NAME --queue` makes a queue",
    "cursor_regressed": "--reset sets it back",
    "topic_full": "consume or delete records first, or raise its cap",
    "throttled": "try again in a moment",
    "outcome_unknown": "look before you repeat it",
    "unreachable": "start a server with `topics serve`, or name one with --url, TOPICS_URL or "
    "a profile; `topics config` says which it is",
}

app = typer.Typer(
    name="topics",
    cls=LazyGroup,
    help="A persistent event log whose every loss is explicit.",
    epilog=(
        "Exit codes: 0 done; 1 what was asked about is not so; 2 usage; "
        "3 the server or store can not be reached; 130 interrupted."
    ),
    no_args_is_help=True,
    # Loading rich would double the time of `topics --help`; the commands' own help has it.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topics {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The server and key of this name in ~/.config/topics/config.toml; "
            "else TOPICS_PROFILE.",
        ),
    ] = None,
) -> None:
    del show_version
    chosen.profile = profile


def main() -> None:
    """The process of a command. An interrupted one ends here, without the interpreter's end.

    Threads of the HTTP library that are still at work would abort that, and an import that was
    interrupted makes Python end by the signal: scripts have to see the exit code.
    """
    try:
        command()
    except SystemExit as ended:
        # Spark has a process of its own to end.
        if ended.code == exits.INTERRUPTED and "pyspark" not in sys.modules:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(exits.INTERRUPTED)
        raise


def command() -> None:
    """Runs the command line and raises SystemExit; never returns."""
    if not __debug__:
        _fail("python -O removes the checks that keep data safe; run without it", exits.NOT_SO)
    try:
        app(prog_name="topics")
    except TopicsError as error:
        # Only a server that does not answer has a URL; a store has words of its own.
        is_away = isinstance(error, Unreachable)
        hint = HINTS.get(error.code, "") if not is_away or "url" in error.detail else ""
        code = exits.UNREACHABLE if is_away else exits.NOT_SO
        _fail(f"{error.message}; {hint}" if hint else error.message, code)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is missing: pip install 'topics-log[spark]'", exits.NOT_SO)
    except (ConnectionError, TimeoutError) as error:
        _fail(str(error) or type(error).__name__, exits.UNREACHABLE)
    except OSError as error:
        is_named = error.filename is not None and error.strerror is not None
        _fail(f"{error.filename}: {error.strerror}" if is_named else str(error), exits.NOT_SO)
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)


def _fail(message: str, code: int) -> None:
    # Not at the top: help has no use for it.
    from topics.storage.fs import shown

    typer.echo("topics: " + shown(" ".join(message.split())), err=True)
    sys.exit(code)
