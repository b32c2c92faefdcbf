"""The list of commands, and a group that loads one only when it is run: help is for the impatient.

What a command says of itself in the list stands here; a test holds it to the first line of its
help.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

# In the order of the list: what a module is called, and its one line.
COMMANDS = {
    "serve": "Serve a data directory over HTTP.",
    "append": "Append lines of JSON to a topic, one record a line.",
    "tail": "Show the last records of topics, and with -f what comes.",
    "export": "Write a topic to a file: JSON lines or Parquet.",
    "diff": "Read one page of a topic, as a consumer does.",
    "delete": "Delete records for good, by seq, by tag, or both.",
    "explain": "Draw what became of every seq: live, deleted, or lost and why.",
    "topic": "Create, list, show, change and remove topics.",
    "cursor": "List, set and remove the named places of readers.",
    "kv": "Put, get, list and delete keys of a bucket.",
    "queue": "Produce, claim and work through jobs.",
    "router": "Copy what is written to one topic into another.",
    "lake": "Keep topics as Delta tables, with every loss as a row.",
    "erase": "Erase the records of a tag from the log, its files and the lake.",
    "top": "Watch a server: topics, rates, lag, pressure.",
    "bench": "Measure a server from here: appends, batches, reads, in turn.",
    "config": "Show each setting, its value and where it came from.",
    "backup": "Back up all to a directory or a bucket; list and verify backups.",
    "restore": "Build a data directory from a backup, of its end or of a moment.",
    "check": "Verify a data directory that no server is using. Changes nothing.",
    "repair": "Save what a damaged directory still has; tell the rest as lost.",
    "scrub": "Erase what was deleted, evicted or expired from every file.",
    "version": "Print the versions of topics, Python and the machine.",
}


class LazyGroup(TyperGroup):
    """Knows the names of all commands, and loads the one that is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or cmd_name not in COMMANDS:
            return known
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            # Not at the top: help has no use for it.
            from topics.nearest import meant

            ctx.fail(f"No such command {args[0]!r}{meant(args[0], COMMANDS) or '.'}")
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS and super().get_command(ctx, name) is None:
            command = _as_written(loaded(name))
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _in_words(error)
            raise


# By the type of error of the library that reads values: what was typed, and what it has to be.
_WORDS = {
    "int_parsing": "{0!r} is not a whole number",
    "float_parsing": "{0!r} is not a number",
    "greater_than_equal": "{0} is less than {ge}",
    "less_than_equal": "{0} is more than {le}",
}


def _in_words(error: typer.BadParameter) -> str:
    """What is wrong with a value, with the value: the library does not say what was typed."""
    errors: Any = getattr(error.__cause__, "errors", None)
    if errors is None:
        return error.message
    [first, *_] = errors()
    words = _WORDS.get(first["type"])
    if words is None:
        return error.message.removeprefix("Value error, ")
    return words.format(first["input"], **first.get("ctx", {}))


# What the library that draws help takes for a style, and leaves out: `[server]` is a table of ours.
_STYLE = re.compile(r"\[[a-z#/@][^[]*?]")


def _as_written(command: Any) -> Any:
    """The command, with help that is shown as it stands there."""
    for one in (command, *getattr(command, "commands", {}).values()):
        for said in (one, *one.params):
            said.help = said.help and _STYLE.sub(r"\\\g<0>", said.help)
    return command


def loaded(name: str) -> Any:
    """A command, ready to run."""
    app = typer.Typer()
    import_module(f"topics.cli.{name}").register(app)
    command = get_group(app).commands[name]
    for one in (command, *getattr(command, "commands", {}).values()):
        # Lines end where a terminal does, not where a docstring does.
        paragraphs = (one.help or "").split("\n\n")
        one.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return command
