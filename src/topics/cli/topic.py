"""`topics topic`: create, list, show, change and remove topics."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, get_args

import msgspec
import typer

from topics.cli import exits, server
from topics.client import log_calls
from topics.client.paging import pages
from topics.client.values import TopicState
from topics.configs import LEASE_MS_MAX, LEASE_MS_MIN
from topics.errors import Incompatible, TopicNotFound
from topics.types import Discard, Durability

group = typer.Typer(no_args_is_help=True, help="Create, list, show, change and remove topics.")


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="topic")


class Sort(Enum):
    NAME = "name"
    BYTES = "bytes"
    COUNT = "count"
    LAG = "lag"


Ttl = Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="Keep records so long: 7d.")]
CapRecords = Annotated[int | None, typer.Option(min=0, help="Keep so many records; 0: all.")]
CapBytes = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Keep so many bytes: 10GiB; 0: all.")
]
DiscardOption = Annotated[
    Discard | None,
    typer.Option(metavar="|".join(get_args(Discard)), help="What a full topic does."),
]
DurabilityOption = Annotated[
    Durability | None,
    typer.Option(metavar="|".join(get_args(Durability)), help="The class of the topic."),
]
Priority = Annotated[
    int | None, typer.Option(min=-1000, max=1000, help="Served first, from -1000 to 1000.")
]
Lease = Annotated[
    str | None, typer.Option("--lease", metavar="TIME", help="How long a claim holds: 30s.")
]
MaxDeliveries = Annotated[
    int | None, typer.Option(min=0, help="Then it is a dead letter; 0: never.")
]
DeadLetter = Annotated[str | None, typer.Option(metavar="TOPIC", help="Where dead letters go.")]


def _config(
    ttl: str | None,
    cap_records: int | None,
    cap_bytes: str | None,
    discard: str | None,
    durability: str | None,
    priority: int | None,
    lease: str | None,
    max_deliveries: int | None,
    dead_letter: str | None,
) -> dict[str, Any]:
    given = {
        "ttl_ms": None if ttl is None else server.duration_ms(ttl),
        "cap_records": cap_records,
        "cap_bytes": None if cap_bytes is None else server.size_bytes(cap_bytes),
        "discard": discard, "durability": durability, "priority": priority,
        "lease_ms": None if lease is None else _lease_ms(lease),
        "max_deliveries": max_deliveries, "dead_letter": dead_letter,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _lease_ms(text: str) -> int:
    """A server would take the nearest that it has; somebody who typed another is told."""
    lease_ms = server.duration_ms(text)
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise typer.BadParameter(
            f"--lease {text}: it must be from {LEASE_MS_MIN} ms to {LEASE_MS_MAX} ms"
        )
    return lease_ms


@group.command()
def create(
    topic: server.Topic,
    queue: Annotated[bool, typer.Option("--queue", help="A queue of jobs, not a log.")] = False,
    ttl: Ttl = None,
    cap_records: CapRecords = None,
    cap_bytes: CapBytes = None,
    discard: DiscardOption = None,
    durability: DurabilityOption = None,
    priority: Priority = None,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Create a topic. One that exists with the same config is fine; with another it is an error.

    Example: topics topic create orders --durability fsync --ttl 30d
    """
    config = _config(
        ttl, cap_records, cap_bytes, discard, durability, priority, lease, max_deliveries,
        dead_letter,
    )  # fmt: skip
    if queue:
        config["type"] = "queue"
    with server.connected(url, token) as client:
        try:
            standing = client.topic(topic, touch=False).config
            created = False
        except TopicNotFound:
            answer = client.create_topic(topic, **config)
            standing, created = answer.config, answer.created
    different = [name for name, value in config.items() if getattr(standing, name) != value]
    if different and not created:
        raise Incompatible(
            f"{topic} exists with another {', '.join(different)}; "
            "`topics topic set` changes what can be changed"
        )
    server.tell(f"{topic} {'created' if created else 'exists'}")
    if as_json:
        server.write_json({"topic": topic, "created": created, "config": standing})


@group.command("set")
def change(
    topic: server.Topic,
    ttl: Ttl = None,
    cap_records: CapRecords = None,
    cap_bytes: CapBytes = None,
    discard: DiscardOption = None,
    durability: DurabilityOption = None,
    priority: Priority = None,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Change some settings of a topic and leave the rest.

    Example: topics topic set orders --ttl 60d
    """
    config = _config(
        ttl, cap_records, cap_bytes, discard, durability, priority, lease, max_deliveries,
        dead_letter,
    )  # fmt: skip
    if not config:
        raise typer.BadParameter("name at least one setting, such as --ttl 60d")
    with server.connected(url, token) as client:
        answer = client.change_topic(topic, **config)
    if as_json:
        server.write_json(answer)
        return
    for name, (before, now) in answer.changed.items():
        server.tell(f"{name}: {before} → {now}")
    if not answer.changed:
        server.tell("nothing changed")


@group.command()
def ls(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that begin so.")] = "",
    sort: Annotated[Sort, typer.Option(help="By name, or the largest first.")] = Sort.NAME,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """List topics.

    Example: topics topic ls tenant42: --sort bytes
    """
    with server.connected(url, token) as client:
        by = None if sort is Sort.NAME else sort.value
        listed = pages(client, lambda at: log_calls.topics(prefix=prefix, cursor=at, sort=by))
        found = [one for page in listed for one in page.topics]
    if as_json:
        server.write_json(found)
        return
    rows = [
        (one.topic, one.type, one.count, server.amount(one.bytes), one.earliest_seq, one.head_seq)
        for one in found
    ]
    server.print_table(("topic", "type", "records", "size", "first", "head"), rows)


@group.command()
def show(
    topic: server.Topic,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Show a topic: its seqs, size, config, cursors, and the counters of a queue.

    Example: topics topic show orders
    """
    with server.connected(url, token) as client:
        state = client.topic(topic, touch=False)
    if as_json:
        server.write_json(state)
        return
    server.print_fields(_fields(state))


def _fields(state: TopicState) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = [
        ("topic", state.topic), ("epoch", state.epoch),
        ("records", state.count), ("size", server.amount(state.bytes)),
        ("first seq", state.earliest_seq), ("head", state.head_seq),
        ("last write", server.when(state.last_write_ts)),
        ("last read", server.when(state.last_read_ts)),
        ("effective priority", state.effective_priority),
    ]  # fmt: skip
    if state.queue is not None:
        fields += [
            ("ready", state.queue.ready), ("in flight", state.queue.in_flight),
            ("dead letters", state.queue.dead_lettered),
        ]  # fmt: skip
    standing = msgspec.structs.asdict(state.config)
    fields += [(name, value) for name, value in standing.items() if value is not msgspec.UNSET]
    fields += [(f"cursor {one.cursor}", f"{one.seq}, lag {one.lag}") for one in state.cursors]
    return fields


@group.command()
def rm(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics.")],
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only without records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: server.Url = None,
    token: server.Token = None,
    as_json: server.Json = False,
) -> None:
    """Remove topics with their records and routers, for good. Exits 1 when one was not there.

    Example: topics topic rm --if-empty scratch
    """
    if not server.is_sure(f"Remove {', '.join(topics)} for good?", yes):
        raise typer.Exit(exits.NOT_SO)
    answers = []
    with server.connected(url, token) as client:
        for topic in topics:
            answer = client.delete_topic(topic, if_empty=if_empty)
            # At once: the next one may fail, and this is done.
            server.tell(f"{topic} {'removed' if answer.deleted else 'was not there'}")
            answers.append(answer)
    if as_json:
        server.write_json(answers)
    if not all(answer.deleted for answer in answers):
        raise typer.Exit(exits.NOT_SO)
