"""`topics serve`: the server. Every setting is a `TOPICS_` variable and a flag of the same name."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from typing import Annotated, Any

import msgspec
import typer

from topics.server import config as configuration
from topics.server.about import ABOUT


class JsonLines(logging.Formatter):
    """One JSON object a line. Neither keys nor payloads are in it: nothing here logs requests."""

    _PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in self._PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode("utf-8", "replace")


def register(app: typer.Typer) -> None:
    app.command()(_with_flags())


def serve(**flags: Any) -> None:
    """Serve a data directory over HTTP.

    Each option is also a variable: --max-topics is TOPICS_MAX_TOPICS; the option wins. Unknown
    TOPICS_ variables are an error.
    """
    texts = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in flags.items()
    }
    config = configuration.load(os.environ, texts)
    # Digests are all that is needed from here on.
    os.environ.pop("TOPICS_API_KEYS", None)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    level = logging.getLevelNamesMapping()[config.options.log_level.upper()]
    logging.getLogger("topics").setLevel(level)
    # Libraries write down what they parse, keys and payloads included, below this.
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))
    # Not at the top: every other command would pay for it.
    import uvloop

    from topics.server.process import serve as serve_process

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_process(config))


def _with_flags() -> Any:
    """The command with one option for each setting, none of them set."""
    parameters = []
    for name, default in configuration.defaults().items():
        kind = type(default)
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        about = ABOUT.get(name, "")
        flag = name.replace("_", "-")
        option = typer.Option(
            f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
            help=f"{about} Default {shown}.".strip() if shown else about,
            metavar=None if kind is bool else kind.__name__.upper(),
            show_default=False,
        )
        parameters.append(_parameter(name, bool if kind is bool else str, option))
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {}
    return serve


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )
