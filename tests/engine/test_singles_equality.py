"""A single record is the same whether it shares a frame or has one of its own.

Every shape of write, good and bad, is given to two engines: one lets singles share frames, the
other stages each as a batch of one. Answers, errors, what readers see and what a new process finds
are equal.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.support.engines import Look, World, read_all
from tests.support.tiers import quick_first
from topics.engine.commit.ticket import Ticket
from topics.engine.ops import append
from topics.engine.ops.told import TICKETS
from topics.engine.state.batch import Batch
from topics.engine.state.write_request import Request, decode_write, request_of
from topics.errors import TopicsError
from topics.testing import FakeDisk
from topics.types import ROUTER_META

CONFIGS: dict[str, dict[str, Any]] = {
    "fsync": {"durability": "fsync"},
    "disk": {"durability": "disk"},
    "memory": {"durability": "memory"},
    "ephemeral": {"durability": "ephemeral"},
    "capped": {"durability": "disk", "cap_records": 7},
    "rejecting": {"durability": "disk", "cap_bytes": 3000, "discard": "reject"},
    "expiring": {"durability": "memory", "ttl_ms": 40, "idempotency_window_ms": 30},
}
SETTINGS = {"max_record_bytes": 400, "max_idempotency_keys": 4}


def body_of(choice: random.Random) -> bytes:
    """A write of one record, of any shape; some are refused."""
    record: dict[str, Any] = {"data": "x" * choice.choice((0, 1, 5, 90, 390, 500))}
    write: dict[str, Any] = {"records": [record]}
    if choice.random() < 0.4:
        record["tag"] = choice.choice(("a", "b", "bé", "t" * 300, "t" * 70_000))
    if choice.random() < 0.4:
        record["node"] = choice.choice(("n1", "n2", 'quo"ted', "n" * 70_000))
    if choice.random() < 0.2:
        write["node"] = choice.choice(("n3", "n1"))
    if choice.random() < 0.3:
        many = {str(n): "" for n in range(100)}
        record["meta"] = choice.choice(
            ({}, {"k": "v"}, {"k": "é", "l": "\n"}, many, {"k": "v" * 380}, {ROUTER_META: "x"})
        )
    if choice.random() < 0.4:
        write["idempotency_key"] = choice.choice(("1", "2", "3", "4", "", "k" * 300, "é"))
    if choice.random() < 0.1:
        write["config"] = {"cap_records": 1}
    return json.dumps(write, ensure_ascii=choice.random() < 0.5).encode()


def submit(world: World, request: Request, is_shared: bool) -> Ticket[Any]:
    if is_shared:
        return world.engine.submit_append("t", request)
    core = world.engine.core
    batch = Batch(request.records, request.node, core.settings)
    ticket: Ticket[Any] = Ticket()
    key = request.idempotency_key
    append.append(core, core.by_name["t"], batch, ticket, TICKETS, key=key, created=False)
    return ticket


def told(error: TopicsError) -> tuple[Any, ...]:
    return type(error), error.code, error.message, error.detail


class Side:
    """One of the two engines, and everything that can be seen of it."""

    def __init__(self, config: dict[str, Any], is_shared: bool) -> None:
        self.world = World(disk=FakeDisk(), **SETTINGS)
        self.world.engine.put_topic("t", config)
        self.is_shared = is_shared
        self.tickets: list[Ticket[Any]] = []

    def write(self, body: bytes) -> Any:
        request = decode_write(body, self.world.settings)
        try:
            self.tickets.append(submit(self.world, request, self.is_shared))
        except TopicsError as error:
            return told(error)
        return None

    def write_to_a_full_disk(self) -> list[Any]:
        """What is staged with something too large for the disk gives back its seqs and keys."""
        engine, disk = self.world.engine, self.world.disk
        engine.flush()
        disk.capacity_bytes = disk.used_bytes()
        many = request_of([{"data": "z" * 380}] * 300)
        answers = [self.write(b'{"records":[{"data":1,"tag":"a"}],"idempotency_key":"5"}')]
        answers += [self.write(b'{"records":[{"data":2}]}')]
        try:
            self.tickets.append(engine.submit_append("t", many))
        except TopicsError as error:
            answers.append(told(error))
        engine.flush()
        disk.capacity_bytes = None
        return answers

    def outcomes(self) -> list[Any]:
        return [
            ticket.done and (ticket.result if ticket.error is None else told(ticket.error))
            for ticket in self.tickets
        ]

    def state(self) -> tuple[Any, ...]:
        engine = self.world.engine
        topic = engine.core.by_name["t"]
        pages = [page.records_json for page in read_all(engine, "t", include_tags=True)]
        of_n1 = [page.records_json for page in read_all(engine, "t", node="n1")]
        bare = [page.records_json for page in read_all(engine, "t", include_meta=False)]
        window_ms = topic.config.idempotency_window_ms
        keys = [] if topic.keys is None else [*topic.keys.dump()]
        tags = (
            {} if topic.tags is None else {tag: topic.tags.exact(tag) for tag in ("a", "b", "bé")}
        )
        return (
            b",".join(pages), b",".join(of_n1), b",".join(bare), Look.at(engine, "t"),
            topic.last_ts, topic.pending_bytes, engine.core.pending_bytes, tags,
            [key for key in keys if key[3] >= topic.last_ts - window_ms],
        )  # fmt: skip


@pytest.mark.parametrize("seed", quick_first(range(6), 2))
@pytest.mark.parametrize("config", CONFIGS)
def test_every_shape_is_the_same_both_ways(config: str, seed: int) -> None:
    choice = random.Random(f"{config}-{seed}")
    shared, single = sides = [Side(CONFIGS[config], is_shared) for is_shared in (True, False)]
    for _ in range(12):
        for _ in range(choice.randrange(1, 12)):
            body, later_ms = body_of(choice), choice.choice((0, 0, 0, 1, 15))
            assert shared.write(body) == single.write(body), body
            for side in sides:
                side.world.clock.advance(later_ms)
        if choice.random() < 0.3:
            assert shared.write_to_a_full_disk() == single.write_to_a_full_disk()
        for side in sides:
            side.world.engine.sync()
        assert shared.outcomes() == single.outcomes()
        assert shared.state() == single.state()
        if choice.random() < 0.3:
            for side in sides:
                side.world.restart("kill")
            assert shared.state() == single.state()


def test_those_with_node_tag_meta_and_key_share_a_frame() -> None:
    """One frame for all; each key answers with the seq of its own record, after a restart too."""
    world = World()
    world.engine.put_topic("t", {"durability": "memory"})
    world.engine.sync()
    before = world.engine.wal_stats.frames_total
    shapes: list[dict[str, Any]] = [
        {"records": [{"data": 1}]},
        {"records": [{"data": 2, "tag": "x"}], "idempotency_key": "two"},
        {"records": [{"data": 3, "node": "n"}]},
        {"records": [{"data": 4, "meta": {"k": "v"}}], "idempotency_key": "four"},
        {"records": [{"data": 5}], "node": "m"},
    ]
    for shape in shapes:
        world.engine.submit_append("t", decode_write(json.dumps(shape).encode(), world.settings))
    world.engine.sync()
    assert world.engine.wal_stats.frames_total - before == 1
    page = world.engine.diff("t", include_tags=True).records_json
    for _ in range(2):
        assert world.engine.diff("t", include_tags=True).records_json == page
        assert world.engine.core.idempotency_keys == 2
        for key, seq in (("two", 2), ("four", 4)):
            again = world.engine.append("t", [{"data": 0}], idempotency_key=key)
            assert (again.deduped, again.first_seq, again.count) == (True, seq, 1)
        world.restart("kill")
