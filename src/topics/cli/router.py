"""`topics router`: copies from topic to topic."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli import exits, server
from topics.errors import Forbidden, RouterNotFound

group = typer.Typer(no_args_is_help=True, help="Copy what is written to one topic into another.")
Router = Annotated[str, typer.Argument(metavar="ROUTER", help="The router.")]


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="router")


@group.command()
def create(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Where records are read.")],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Where copies are written.")],
    name: Annotated[str | None, typer.Option(help="Its name; SOURCE->DEST if none.")] = None,
    tag: Annotated[
        str | None, typer.Option(help="Only records of this tag; a * at the end: of this prefix.")
    ] = None,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Copy nothing twice, after a crash either.")
    ] = False,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Copy what is written to SOURCE into DEST from now on.

    A router of that name which is there goes on from its place, as it is described now.

    Example: topics router create orders audit --tag 'tenant42:*'
    """
    kind = "Glob" if tag is not None and tag.endswith("*") else "Eq"
    router = name or f"{source}->{dest}"
    with server.connected(url, token) as client:
        try:
            before = client.router(router)
        except (RouterNotFound, Forbidden):
            before = None
        answer = client.create_router(
            router, source=source, dest=dest,
            filter=None if tag is None else ("tag", kind, tag),
            guarantee="exactly_once" if exactly_once else None,
        )  # fmt: skip
    if as_json:
        server.write_json(answer)
        return
    server.tell(f"{answer.router} {'created' if answer.created else 'exists'}")
    for field in ("filter", "guarantee") if before is not None else ():
        was, now = getattr(before, field), getattr(answer, field)
        if was != now:
            server.tell(f"{field}: {server.json_text(was)} → {server.json_text(now)}")


@group.command()
def ls(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin so.")] = "",
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """List routers.

    Example: topics router ls
    """
    with server.connected(url, token) as client:
        found = list(client.all_routers(prefix=prefix))
    if as_json:
        server.write_json(found)
        return
    rows = [(one.router, one.source, one.dest, one.guarantee, one.forwarded_total) for one in found]
    server.print_table(("router", "source", "dest", "guarantee", "copied"), rows)


@group.command()
def show(
    router: Router,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Show a router: what it copies, how far it is, what keeps it back.

    Example: topics router show 'orders->audit'
    """
    with server.connected(url, token) as client:
        state = client.router(router)
    if as_json:
        server.write_json(state)
        return
    server.print_fields(
        [
            ("router", state.router), ("source", state.source), ("dest", state.dest),
            ("filter", None if state.filter is None else " ".join(state.filter)),
            ("guarantee", state.guarantee), ("copied", state.forwarded_total), ("lag", state.lag),
            ("blocked", state.blocked),
        ]
    )  # fmt: skip


@group.command()
def rm(
    router: Router,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Stop a router; its copies stay. Exits 1 when there was none.

    Example: topics router rm 'orders->audit'
    """
    with server.connected(url, token) as client:
        answer = client.delete_router(router)
    if as_json:
        server.write_json(answer)
    server.tell(f"{router} {'removed' if answer.deleted else 'was not there'}")
    if not answer.deleted:
        raise typer.Exit(exits.NOT_SO)
