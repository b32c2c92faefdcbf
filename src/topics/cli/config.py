"""`topics config`: each setting, its value, where it came from."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from topics.cli import profiles, server
from topics.cli.profiles import DEFAULT
from topics.server.config import defaults, load, read_file, without_services
from topics.settings import PREFIX

File = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A file as for `topics serve`.")
]
SECRET = frozenset({"api_keys", "token"})


def register(app: typer.Typer) -> None:
    app.command()(config)


def config(as_json: server.Json = False, path: File = None) -> None:
    """Show each setting, its value and where it came from.

    Settings of a server are variables and flags of `topics serve`; `url`, `token` and `ca_file` are
    those of all other commands, which a profile of the config file can have. Keys are not shown.
    Exits 1 when the environment or the file has one that can not be.

    Example: topics --profile production config
    """
    file = read_file(path) if path else {}
    environment = without_services(os.environ)
    load(environment, {}, file)
    target = profiles.target(None, None)
    found = [
        _row("profile", target.profile.value, target.profile.source),
        _row("profiles", ", ".join(target.profiles), str(profiles.config_file())),
        *(_row(name, one.value, one.source) for name, one in (
            ("url", target.url), ("token", target.token), ("ca_file", target.ca_file)
        )),
    ]  # fmt: skip
    for name, default in defaults().items():
        key = PREFIX + name.upper()
        if key in environment:
            found.append(_row(name, environment[key], key))
        elif name in file:
            found.append(_row(name, file[name], str(path)))
        else:
            found.append(_row(name, default, DEFAULT))
    if as_json:
        server.write_json(found)
        return
    rows = [(one["name"], str(one["value"]), one["source"]) for one in found]
    server.print_table(("setting", "value", "from"), rows)


def _row(name: str, value: Any, source: str) -> dict[str, Any]:
    is_hidden = name in SECRET and value
    return {"name": name, "value": "(hidden)" if is_hidden else value, "source": source}
