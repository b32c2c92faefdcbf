"""The `topics` command: global options, the list of commands, and the last guard.

A command reports failure by raising: a TopicsError becomes one line on standard error and an
exit code from `exits`. Only a bug shows a traceback. To add a command, write `cli/<name>.py`
with `register(app)` and name it in COMMANDS.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from topics import __version__
from topics.cli import check, exits, repair, scrub, serve, version
from topics.errors import TopicsError, Unreachable
from topics.storage.fs import shown

COMMANDS = (serve, check, repair, scrub, version)

app = typer.Typer(
    name="topics",
    help="A persistent event log whose every loss is explicit.",
    epilog=(
        "Exit codes: 0 done; 1 what was asked about is not so; 2 usage; "
        "3 the server or store can not be reached; 130 interrupted."
    ),
    no_args_is_help=True,
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
) -> None:
    del show_version


for _command in COMMANDS:
    _command.register(app)


def main() -> None:
    """Runs the command line and exits; never returns."""
    if not __debug__:
        _fail("python -O removes the checks that keep data safe; run without it", exits.NOT_SO)
    try:
        app(prog_name="topics")
    except Unreachable as error:
        _fail(error.message, exits.UNREACHABLE)
    except TopicsError as error:
        _fail(error.message, exits.NOT_SO)
    except (ConnectionError, TimeoutError) as error:
        _fail(str(error) or type(error).__name__, exits.UNREACHABLE)
    except OSError as error:
        _fail(str(error), exits.NOT_SO)
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)


def _fail(message: str, code: int) -> None:
    typer.echo("topics: " + shown(" ".join(message.split())), err=True)
    sys.exit(code)
