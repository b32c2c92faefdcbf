"""`topics version`: what is installed, for a bug report."""

from __future__ import annotations

import platform

import typer

import topics
from topics.cli import server


def register(app: typer.Typer) -> None:
    app.command()(version)


def version(as_json: server.Json = False) -> None:
    """Print the versions of topics, Python and the machine.

    Example: topics version --json
    """
    found = {
        "topics": topics.__version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system().lower(),
        "release": platform.release(),
        "machine": platform.machine(),
    }
    if as_json:
        server.write_json(found)
        return
    typer.echo(f"topics {found['topics']}")
    typer.echo(f"python {found['python']} ({found['implementation']})")
    typer.echo(f"{found['system']} {found['release']} {found['machine']}")
