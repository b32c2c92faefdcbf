"""`topics serve`: the server. Every setting is a `TOPICS_` variable and a flag of the same name."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from topics.cli.log_lines import JsonLines, TextLines
from topics.errors import InvalidRequest
from topics.server import config as configuration
from topics.server.about import PANELS
from topics.settings import PREFIX

_WORDS = {True: "true", False: "false"}


def register(app: typer.Typer) -> None:
    app.command()(_with_flags())


def serve(**flags: Any) -> None:
    """Serve a data directory over HTTP.

    Each option is also a variable, and a name in the table [server] of a --config file:
    --max-topics is TOPICS_MAX_TOPICS and max_topics. The option wins, then the variable. Unknown
    TOPICS_ variables and names are an error.

    Example: topics serve --data-dir topics-data --port 4000
    """
    path = flags.pop("config", None)
    given = {name: text for name, text in _texts(flags) if text is not None}
    config = _load(given, path)
    # Digests are all that is needed from here on.
    os.environ.pop("TOPICS_API_KEYS", None)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if sys.stderr.isatty() else JsonLines())
    level = logging.getLevelNamesMapping()[config.options.log_level.upper()]
    logging.getLogger("topics").setLevel(level)
    # Libraries write down what they parse, keys and payloads included, below this.
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))
    # Not at the top: every other command would pay for it.
    import uvloop

    from topics.server.process import serve as serve_process

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_process(config))


def _load(flags: dict[str, str], path: str | None) -> configuration.Config:
    """The config of flags, environment and file; a flag that can not be is a usage error."""
    file = configuration.read_file(path) if path else {}
    environment = configuration.without_services(os.environ)
    try:
        return configuration.load(environment, flags, file)
    except InvalidRequest as error:
        name = error.detail.get("setting", "")
        if name in file and name not in flags and PREFIX + name.upper() not in environment:
            raise InvalidRequest(f"{path}: {error.message}") from None
        if name not in flags:
            raise
        typed = _flag(name) if name == configuration.API_KEYS else f"{_flag(name)} {flags[name]}"
        words = error.message.replace(PREFIX + name.upper(), "it", 1)
        raise typer.BadParameter(f"{typed}: {words}") from None


def _texts(flags: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Flags as settings: `no_threads` is false for `threads`."""
    switches = {
        name for name, default in configuration.defaults().items() if isinstance(default, bool)
    }
    for name, value in flags.items():
        if name in switches or name.removeprefix("no_") in switches:
            if value:
                yield name.removeprefix("no_"), _WORDS[name in switches]
        else:
            yield name, value


def _with_flags() -> Any:
    """The command with one option for each setting, none of them set."""
    serve.__signature__ = inspect.Signature([*_parameters()])  # type: ignore[attr-defined]
    serve.__annotations__ = {}
    return serve


def _parameters() -> Iterator[inspect.Parameter]:
    defaults = configuration.defaults()
    about = "TOML file with settings in its table [server]; variables and options win."
    panel = next(iter(PANELS))
    yield _parameter("config", str, help=about, rich_help_panel=panel, metavar="FILE")
    for panel, names in PANELS.items():
        for name, words in names.items():
            default = defaults[name]
            shown = _WORDS[default] if isinstance(default, bool) else str(default)
            help_ = f"{words} Default {shown}." if shown else words
            if isinstance(default, bool):
                # Help has the one that changes something: both would not fit into 80 columns.
                yield _parameter(name, bool, help=help_, rich_help_panel=panel, hidden=default)
                yield _parameter(
                    f"no_{name}", bool, help=help_, rich_help_panel=panel, hidden=not default
                )
            else:
                metavar = type(default).__name__.upper()
                yield _parameter(name, str, help=help_, rich_help_panel=panel, metavar=metavar)


def _parameter(name: str, kind: Any, **look: Any) -> inspect.Parameter:
    option = typer.Option(_flag(name), show_default=False, **look)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
