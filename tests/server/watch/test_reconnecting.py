"""A reader whose connection breaks all the time misses nothing and sees nothing twice.

It remembers the id of what it has processed, as a browser does. Its topics are written all the
while; one of them loses records to its cap, another is deleted and comes back.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable

import pytest

from tests.server.watch.conftest import watch
from tests.support.servers import Client, Inside
from tests.support.streams import Event, EventSource
from tests.support.tiers import quick_first

WRITES = 400


class Ledger:
    """What a reader knows of each topic: every seq is a record or in a gap, in order, once."""

    def __init__(self) -> None:
        self.cursors: dict[str, int] = {}
        self.epochs: dict[str, str] = {}
        self.lost = self.recreated = 0

    def process(self, event: Event) -> None:
        data = event.data
        if event.name not in ("record", "tombstone"):
            return
        name = data["topic"]
        cursor = self.cursors.get(name, 0)
        if event.name == "tombstone" and data["reason"] == "recreated":
            assert data["epoch"] != self.epochs.get(name)
            self.cursors[name] = data["earliest_seq"] - 1
            self.recreated += 1
        elif event.name == "tombstone":
            assert data["gap_from"] == cursor + 1
            self.cursors[name] = data["gap_to"]
            self.lost += data["gap_to"] - cursor
        else:
            assert data["from_seq"] == cursor
            seqs = [record["$seq"] for record in data["records"]]
            assert seqs == list(range(cursor + 1, data["to_seq"] + 1))
            assert self.epochs.get(name, data["epoch"]) == data["epoch"]
            self.cursors[name] = data["to_seq"]
        self.epochs[name] = data["epoch"]


def keep_writing(client: Client, names: list[str], seed: int) -> Callable[[], None]:
    chance = random.Random(seed)

    def run() -> None:
        for number in range(WRITES):
            name = chance.choice(names)
            if number == WRITES // 2:
                client.delete(f"/v0/topics/{names[2]}")
            client.write(name, *range(chance.randint(1, 9)))
        for name in names:
            client.write(name, "last")

    return run


@pytest.mark.parametrize("seed", quick_first(range(3), 1))
def test_every_record_is_processed_once_or_told_as_lost(
    server: Inside, client: Client, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    names = [f"{topic}-{number}" for number in range(3)]
    for name, config in zip(names, ({}, {"cap_records": 5}, {}), strict=True):
        client.put(f"/v0/topics/{name}", config)
    session = watch(client, {name: {} for name in names}, limit=7)
    with server.client() as other:
        writer = threading.Thread(target=keep_writing(other, names, seed))
        writer.start()
        ledger, last_id = Ledger(), ""
        done = False
        while not done:
            is_over = not writer.is_alive()
            with EventSource(server.port, session["stream_url"], last_id=last_id) as events:
                left = 10**9 if is_over else chance.randint(1, 12)
                live: set[str] = set()
                events.socket.settimeout(5 if is_over else 0.3)
                # Without news the connection breaks too.
                with contextlib.nullcontext() if is_over else contextlib.suppress(TimeoutError):
                    for event in events.events():
                        ledger.process(event)
                        last_id = events.last_id
                        left -= 1
                        if event.name in ("caught-up", "topic-deleted"):
                            live.add(event.data["topic"])
                        done = is_over and live == set(names)
                        if done or left <= 0:
                            break
        writer.join()
    heads = {name: client.get(f"/v0/topics/{name}").json["head_seq"] for name in names}
    assert ledger.cursors == heads
    assert ledger.lost > 0
