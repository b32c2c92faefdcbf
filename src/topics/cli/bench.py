"""`topics bench`: what a server does, as this machine sees it. The topic it uses is removed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from topics.cli import server
from topics.client.client import Client
from topics.client.values import RecordFields

READ_RECORDS = 1000


class Durability(StrEnum):
    fsync = "fsync"
    disk = "disk"
    memory = "memory"
    ephemeral = "ephemeral"


class Measured(msgspec.Struct, frozen=True):
    """`count` calls of one kind, and how long each took."""

    what: str
    count: int
    records_per_s: int
    p50_ms: float
    p99_ms: float


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="How long each kind of call is made.")
    ] = 2.0,
    size: Annotated[str, typer.Option(metavar="SIZE", help="The data of one record.")] = "256",
    batch: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many records a batch has.")
    ] = READ_RECORDS,
    durability: Annotated[
        Durability, typer.Option(help="The durability of the topic that is written.")
    ] = Durability.disk,
    as_json: server.Json = False,
    url: server.Url = None,
    token: server.Token = None,
) -> None:
    """Measure a server from here: appends, batches, reads, in turn.

    It makes a topic of its own and removes it. One client that waits for each answer measures the
    way there and back; what many clients get together is more.

    Example: topics bench --seconds 0.5 --durability fsync
    """
    data: RecordFields = {
        "data": msgspec.Raw(b'"%b"' % (b"x" * max(server.size_bytes(size) - 2, 0)))
    }
    topic = f"bench-{secrets.token_hex(6)}"
    with server.connected(url, token) as client:
        client.create_topic(topic, durability=durability.value)
        try:
            found = _measure(client, topic, [data] * batch, seconds)
        finally:
            client.delete_topic(topic)
    if as_json:
        server.write_json(
            {"durability": durability, "size": server.size_bytes(size), "measured": found}
        )
        return
    rows = [
        (one.what, one.count, one.records_per_s, f"{one.p50_ms:.3f}", f"{one.p99_ms:.3f}")
        for one in found
    ]
    server.print_table(("call", "calls", "records/s", "p50 ms", "p99 ms"), rows)


def _measure(
    client: Client, topic: str, records: list[RecordFields], seconds: float
) -> list[Measured]:
    at = 0

    def read() -> int:
        nonlocal at
        page = client.diff(topic, from_seq=at, limit=READ_RECORDS)
        at = 0 if page.caught_up else page.next_from_seq
        return len(page.records)

    def written(count: int) -> Callable[[], int]:
        return lambda: client.append(topic, records[:count]).count

    parts: list[tuple[str, Callable[[], int]]] = [
        ("append one record", written(1)),
        (f"append a batch of {len(records)}", written(len(records))),
        (f"read up to {READ_RECORDS} records", read),
        ("read the state of the topic", lambda: len([client.topic(topic)])),
    ]
    return [_repeat(what, call, seconds) for what, call in parts]


def _repeat(what: str, call: Callable[[], int], seconds: float) -> Measured:
    # The first call pays for connections and for what is not there yet.
    call()
    took_s: list[float] = []
    records, began_s = 0, time.perf_counter()
    last_s = began_s
    while last_s < began_s + seconds:
        records += call()
        now_s = time.perf_counter()
        took_s.append(now_s - last_s)
        last_s = now_s
    took_s.sort()
    return Measured(
        what, len(took_s), int(records / (last_s - began_s)),
        round(took_s[len(took_s) // 2] * 1000, 3), round(took_s[len(took_s) * 99 // 100] * 1000, 3),
    )  # fmt: skip
