"""What a reader is told, as one table: every way of reading has to tell the same.

A scenario prepares a topic and says where a reader stands and what it looks for. `told` is what it
must be told, in order: the seqs of records, and (gap_from, gap_to, reason) for each gap.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from tests.support.servers import Client, Inside
from topics.types import CRASH

Told = int | tuple[int, int, str]


class Stage:
    """A topic to prepare, over HTTP where HTTP can."""

    def __init__(self, server: Inside, client: Client, topic: str) -> None:
        self.server = server
        self.client = client
        self.topic = topic
        self.path = f"/v0/topics/{topic}"
        self.epoch: str | None = None

    def put(self, **config: Any) -> None:
        assert self.client.put(self.path, config).status in (200, 201)

    def fill(self, count: int, **fields: Any) -> None:
        for number in range(count):
            reply = self.client.post(self.path, {"records": [{"data": number, **fields}]})
            assert reply.status in (200, 201), reply.raw

    def batch(self, count: int, **fields: Any) -> None:
        records = [{"data": number, **fields} for number in range(count)]
        assert self.client.post(self.path, {"records": records}).status in (200, 201)

    def delete(self, **body: Any) -> None:
        assert self.client.post(self.path + "/delete", body).status == 200

    def recreate(self) -> None:
        """Deletes the topic and remembers its epoch."""
        self.epoch = self.client.get(self.path).json["epoch"]
        assert self.client.delete(self.path).json["deleted"]

    def lose(self, count: int) -> None:
        """A hole behind the head, as recovery leaves it after a crash."""

        def add_hole() -> None:
            core = self.server.services.engine.core
            topic = core.by_name[self.topic]
            topic.add_hole(topic.head + 1, topic.head + count, CRASH)
            core.published(topic)

        self.server.run(add_hole)


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    prepare: Callable[[Stage], None]
    told: list[Told]
    from_seq: int = 0
    # The reader names the epoch that the topic had before it was recreated.
    has_old_epoch: bool = False
    look: dict[str, Any] = dataclasses.field(default_factory=dict)


def plain(stage: Stage) -> None:
    stage.fill(3)


def empty(stage: Stage) -> None:
    stage.put()


def evicted(stage: Stage) -> None:
    """1-4 evicted, 5-7 live."""
    stage.put(cap_records=3)
    stage.fill(7)


def evicted_and_deleted(stage: Stage) -> None:
    """1-3 evicted, 4-5 deleted, 6-10 live."""
    stage.put(cap_records=7)
    stage.fill(10)
    stage.delete(before_seq=6)


def deleted_front(stage: Stage) -> None:
    stage.fill(5)
    stage.delete(before_seq=4)


def deleted_middle(stage: Stage) -> None:
    stage.fill(2)
    stage.fill(2, tag="gone")
    stage.fill(2)
    stage.delete(match="gone")


def all_deleted(stage: Stage) -> None:
    stage.fill(3)
    stage.delete(before_seq=4)


def expired(stage: Stage) -> None:
    stage.put(ttl_ms=30)
    stage.fill(3)
    time.sleep(0.06)


def expired_in_part(stage: Stage) -> None:
    stage.put(ttl_ms=400)
    stage.fill(2)
    time.sleep(0.45)
    stage.fill(2)


def lost_twice(stage: Stage) -> None:
    """1 evicted, 2 expired."""
    stage.put(cap_records=1, ttl_ms=30)
    stage.fill(2)
    time.sleep(0.06)


def nodes(stage: Stage) -> None:
    stage.fill(1)
    stage.fill(2, node="me")
    stage.fill(1, node="other")
    stage.fill(1, node="me too")


def echoing(stage: Stage) -> None:
    stage.put(dedupe_node=False)
    nodes(stage)


def recreated(stage: Stage) -> None:
    stage.fill(5)
    stage.recreate()
    stage.fill(2)


def recreated_and_longer(stage: Stage) -> None:
    stage.fill(2)
    stage.recreate()
    stage.fill(4)


def recreated_empty(stage: Stage) -> None:
    stage.fill(2)
    stage.recreate()
    stage.put()


def hole(stage: Stage) -> None:
    """1-2 live, 3-5 lost in a crash, 6-7 live."""
    stage.fill(2)
    stage.lose(3)
    stage.fill(2)


def two_holes(stage: Stage) -> None:
    stage.fill(1)
    stage.lose(1)
    stage.fill(1)
    stage.lose(2)


def evicted_below_a_hole(stage: Stage) -> None:
    stage.put(cap_records=3)
    stage.fill(4)
    stage.lose(2)
    stage.fill(1)


ME = {"node": "me"}
SCENARIOS = [
    Scenario("everything", plain, [1, 2, 3]),
    Scenario("from the middle", plain, [2, 3], from_seq=1),
    Scenario("at the head", plain, [], from_seq=3),
    Scenario("empty topic", empty, []),
    Scenario("evicted", evicted, [(1, 4, "cap"), 5, 6, 7]),
    Scenario("evicted, from within", evicted, [(3, 4, "cap"), 5, 6, 7], from_seq=2),
    Scenario("evicted up to the cursor", evicted, [5, 6, 7], from_seq=4),
    Scenario("evicted below the cursor", evicted, [6, 7], from_seq=5),
    Scenario("gap to the first live one", evicted_and_deleted, [(1, 5, "cap"), 6, 7, 8, 9, 10]),
    Scenario("deleted above the evicted", evicted_and_deleted, [6, 7, 8, 9, 10], from_seq=3),
    Scenario("deleted front", deleted_front, [4, 5]),
    Scenario("deleted front, from within", deleted_front, [4, 5], from_seq=2),
    Scenario("deleted middle", deleted_middle, [1, 2, 5, 6]),
    Scenario("deleted middle, from within", deleted_middle, [5, 6], from_seq=3),
    Scenario("all deleted", all_deleted, []),
    Scenario("expired", expired, [(1, 3, "ttl")]),
    Scenario("expired, read before", expired, [], from_seq=3),
    Scenario("expired in part", expired_in_part, [(1, 2, "ttl"), 3, 4]),
    Scenario("evicted and expired", lost_twice, [(1, 2, "mixed")]),
    Scenario("only what was lost above", lost_twice, [(2, 2, "ttl")], from_seq=1),
    Scenario("own records", nodes, [1, 4, 5], look=ME),
    Scenario("several own nodes", nodes, [1, 4], look={"node": ["me", "me too"]}),
    Scenario("own records to the end", nodes, [4, 5], from_seq=1, look=ME),
    Scenario("node matches exactly", nodes, [1, 2, 3, 4, 5], look={"node": "m"}),
    Scenario("echoes wanted", echoing, [1, 2, 3, 4, 5], look=ME),
    Scenario("one at a time", nodes, [1, 4, 5], look={"limit": 1, **ME}),
    Scenario("byte budget", plain, [1, 2, 3], look={"max_batch_bytes": 1}),
    Scenario("gap, one at a time", evicted, [(1, 4, "cap"), 5, 6, 7], look={"limit": 1}),
    Scenario("cursor from the future", recreated, [(1, 2, "recreated"), 1, 2], from_seq=5),
    Scenario("at the new head, no epoch", recreated, [], from_seq=2),
    Scenario(
        "old epoch", recreated_and_longer, [(1, 4, "recreated"), 1, 2, 3, 4], 2, has_old_epoch=True
    ),
    Scenario("old epoch, empty", recreated_empty, [(1, 0, "recreated")], 2, has_old_epoch=True),
    Scenario("hole", hole, [1, 2, (3, 5, "crash"), 6, 7]),
    Scenario("hole at the cursor", hole, [(3, 5, "crash"), 6, 7], from_seq=2),
    Scenario("from within a hole", hole, [(5, 5, "crash"), 6, 7], from_seq=4),
    Scenario("hole at the head", two_holes, [1, (2, 2, "crash"), 3, (4, 5, "crash")]),
    Scenario(
        "evicted below a hole", evicted_below_a_hole, [(1, 2, "cap"), 3, 4, (5, 6, "crash"), 7]
    ),
]
