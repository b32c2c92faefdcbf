"""`topics version`: what is installed, for a bug report."""

from __future__ import annotations

import platform

import typer

import topics


def register(app: typer.Typer) -> None:
    app.command()(version)


def version() -> None:
    """Print the versions of topics, Python and the machine."""
    typer.echo(f"topics {topics.__version__}")
    typer.echo(f"python {platform.python_version()} ({platform.python_implementation()})")
    typer.echo(f"{platform.system().lower()} {platform.release()} {platform.machine()}")
