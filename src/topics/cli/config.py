"""`topics config`: each setting, its value, where it came from."""

from __future__ import annotations

import os

import typer

from topics.cli import server
from topics.client.options import URL_DEFAULT
from topics.server.config import defaults, load
from topics.settings import PREFIX

CLIENT = {"url": URL_DEFAULT, "token": ""}
SECRET = frozenset({"api_keys", "token"})


def register(app: typer.Typer) -> None:
    app.command()(config)


def config(as_json: server.Json = False) -> None:
    """Show each setting, its value and where it came from.

    Settings of a server are variables and flags of `topics serve`; `url` and `token` are those of
    all other commands. Keys are not shown. Exits 1 when the environment has one that can not be.

    Example: topics config
    """
    load(os.environ, {})
    found = []
    for name, default in {**CLIENT, **defaults()}.items():
        key = PREFIX + name.upper()
        text = os.environ.get(key)
        value = default if text is None else "(hidden)" if name in SECRET else text
        found.append({"name": name, "value": value, "source": "default" if text is None else key})
    if as_json:
        server.write_json(found)
        return
    rows = [(one["name"], str(one["value"]), one["source"]) for one in found]
    server.print_table(("setting", "value", "from"), rows)
