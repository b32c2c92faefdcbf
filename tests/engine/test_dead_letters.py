"""Dead letters: a job that was delivered too often moves to another topic, whole and once."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from tests.support.engines import ENDINGS, PATH, Ending, World, explained
from tests.support.tiers import quick_first
from topics.engine.engine import Engine
from topics.engine.state.queue_values import Claimant
from topics.errors import DiskFull, Poisoned
from topics.settings import KIB
from topics.types import Record

CLASSES = ("ephemeral", "memory", "disk", "fsync")
CONFIG: dict[str, Any] = {
    "type": "queue", "lease_ms": 1000, "max_deliveries": 2, "dead_letter": "dlq",
    "durability": "fsync",
}  # fmt: skip


@pytest.fixture
def queue(world: World) -> World:
    world.engine.put_topic("q", CONFIG)
    return world


def fail_all(engine: Engine, most: int = 100) -> list[int]:
    """One round in which every job that is delivered is given back."""
    got = engine.claim("q", "a", most).seqs
    if got:
        engine.nack("q", "a", got)
    return got


def letters(world: World) -> list[Record]:
    return world.engine.diff("dlq", include_tags=True).records


def test_a_job_moves_when_it_would_be_delivered_once_too_often(queue: World) -> None:
    """Tag, node, meta and data stay as they are; meta says where it is from."""
    body = (
        b'{"records":[{"data":{"n":1.0, "n":2e400},"tag":"t","node":"eu","meta":{"k":"v",'
        b'"$dead_letter_from":"elsewhere"}},{"data":"plain"}]}'
    )
    queue.engine.append_json("q", body)
    assert [fail_all(queue.engine) for _ in range(3)] == [[1, 2], [1, 2], []]
    one, two = letters(queue)
    assert bytes(one.data) == b'{"n":1.0, "n":2e400}'
    assert (one.tag, one.node, two.tag, two.node) == ("t", "eu", None, None)
    provenance = {"$dead_letter_from": "q", "$dead_letter_deliveries": "2"}
    assert one.meta == {"k": "v", **provenance, "$dead_letter_src_seq": "1"}
    assert two.meta == {**provenance, "$dead_letter_src_seq": "2"}
    state = queue.engine.queue_state("q")
    assert (state.ready, state.in_flight, state.dead_lettered) == (0, 0, 2)
    assert explained(queue.engine, "q") == ((1, 2, "deleted"),)
    assert queue.engine.state("dlq").config.type == "log"


def test_expiry_counts_like_a_nack_and_fresh_jobs_are_still_handed_out(queue: World) -> None:
    """The same pass that moves the doomed ones serves the others, and counts exactly."""
    queue.fill("q", 3)
    for _ in range(2):
        assert queue.engine.claim("q", "a", 2).seqs == [1, 2]
        queue.clock.advance(1001)
    claimed = queue.engine.claim("q", "b", 5)
    assert (claimed.seqs, claimed.ready, claimed.in_flight) == ([3], 0, 1)
    assert [record.seq for record in letters(queue)] == [1, 2]
    assert queue.engine.queue_state("q").dead_lettered == 2


@pytest.mark.parametrize("dest", CLASSES)
@pytest.mark.parametrize("source", quick_first(CLASSES, 2))
@pytest.mark.parametrize("how", ENDINGS)
def test_a_move_stands_whatever_ends_the_process(
    world: World, source: str, dest: str, how: Ending
) -> None:
    """In one place, never in both: as durable as the classes, in shards of their own."""
    world.engine.put_topic("q", CONFIG | {"durability": source})
    world.engine.put_topic("dlq", {"durability": dest})
    world.fill("q", 2)
    for _ in range(3):
        fail_all(world.engine, 1)
    assert world.engine.queue_state("q").dead_lettered == 1
    world.restart(how)
    left = {record.meta["$dead_letter_src_seq"] for record in letters(world) if record.meta}
    stands = {str(record.seq) for record in world.engine.diff("q").records}
    assert not left & stands
    if source == "fsync":
        assert stands == {"2"} or (dest == "ephemeral" and how == "crash")
        assert left == (set() if dest == "ephemeral" else {"1"})


def test_a_move_whose_delete_was_lost_is_finished_by_recovery(queue: World) -> None:
    """The frame in the destination is what counts: the job does not come back."""
    queue.fill("q", 2)
    for _ in range(2):
        fail_all(queue.engine, 1)
    queue.engine.submit_claims("q", [Claimant("a")])
    queue.restart("crash")
    assert [record.seq for record in letters(queue)] == [1]
    assert queue.look("q").seqs == (2,)
    assert queue.engine.queue_state("q").dead_lettered == 1
    queue.engine.checkpoint()
    queue.engine.checkpoint()
    queue.restart("crash")
    assert queue.look("q").seqs == (2,)
    assert queue.engine.queue_state("q").dead_lettered == 1


@pytest.mark.parametrize("config", [{"max_deliveries": 0}, {"dead_letter": None}])
def test_without_a_limit_or_a_place_to_go_a_job_comes_back_for_ever(
    world: World, config: dict[str, Any]
) -> None:
    """Both are needed for a job to move."""
    world.engine.put_topic("q", CONFIG | config)
    world.fill("q", 1)
    assert [fail_all(world.engine) for _ in range(5)] == [[1]] * 5
    assert world.engine.queue_state("q").dead_lettered == 0


def test_a_destination_that_may_not_be_created_is_none(world: World) -> None:
    """Without auto_create the job keeps coming back until the topic is there."""
    world.engine.put_topic("q", CONFIG | {"auto_create": False})
    world.fill("q", 1)
    assert [fail_all(world.engine) for _ in range(4)] == [[1]] * 4
    world.engine.put_topic("dlq")
    assert fail_all(world.engine) == []
    assert letters(world)[0].meta == {
        "$dead_letter_from": "q", "$dead_letter_deliveries": "4", "$dead_letter_src_seq": "1",
    }  # fmt: skip


def test_a_full_destination_keeps_jobs_neither_delivered_nor_lost(queue: World) -> None:
    """They are tried again later; as many go as there is room for."""
    queue.engine.put_topic("dlq", {"cap_records": 2, "discard": "reject"})
    queue.fill("q", 3)
    for _ in range(3):
        fail_all(queue.engine)
    assert len(letters(queue)) == 2
    state = queue.engine.queue_state("q")
    assert (state.ready, state.in_flight, state.dead_lettered) == (0, 0, 2)
    assert queue.look("q").count == 1
    queue.clock.advance(1000)
    assert fail_all(queue.engine) == []
    queue.engine.delete("dlq", before_seq=3)
    assert fail_all(queue.engine) == []
    queue.clock.advance(1000)
    assert fail_all(queue.engine) == []
    assert queue.look("q").count == 0
    assert [record.meta["$dead_letter_src_seq"] for record in letters(queue) if record.meta] == [
        "3"
    ]


def test_a_full_disk_moves_nothing(queue: World) -> None:
    """Neither topic has changed, and the job moves when there is room again."""
    queue.engine.append("q", [{"data": "x" * (40 * KIB)}])
    for _ in range(2):
        fail_all(queue.engine)
    queue.engine.put_topic("dlq", {"durability": "fsync"})
    queue.disk.capacity_bytes = queue.disk.used_bytes()
    with contextlib.suppress(DiskFull):
        while True:
            queue.engine.append("dlq", [{"data": "x" * (20 * KIB)}])
    head = queue.engine.state("dlq").head_seq
    assert fail_all(queue.engine) == []
    assert queue.engine.state("dlq").head_seq == head
    assert queue.look("q").count == 1
    queue.disk.capacity_bytes = None
    queue.clock.advance(1000)
    assert fail_all(queue.engine) == []
    assert queue.look("q").count == 0
    assert queue.engine.state("dlq").head_seq == head + 1


def test_a_dead_letter_topic_may_be_a_queue_with_its_own(world: World) -> None:
    """Chains work; each move says where it is from."""
    world.engine.put_topic("q", CONFIG)
    world.engine.put_topic("dlq", CONFIG | {"dead_letter": "end", "max_deliveries": 1})
    world.fill("q", 1)
    for _ in range(3):
        fail_all(world.engine)
    job = msgspec.json.decode(world.engine.claim("dlq", "a").json)[0]
    assert job["meta"]["$dead_letter_from"] == "q"
    world.engine.nack("dlq", "a", [1])
    assert world.engine.claim("dlq", "a").seqs == []
    (last,) = world.engine.diff("end").records
    assert last.meta == {
        "$dead_letter_from": "dlq", "$dead_letter_deliveries": "1", "$dead_letter_src_seq": "1",
    }  # fmt: skip


def test_a_capped_queue_replays_its_moves_in_the_order_in_which_they_were(world: World) -> None:
    """A moved job makes room; after a crash no other job was evicted in its stead."""
    world.engine.put_topic("q", CONFIG | {"cap_records": 4})
    world.fill("q", 4)
    for _ in range(3):
        fail_all(world.engine, 1)
    world.fill("q", 1)
    assert world.look("q").seqs == (2, 3, 4, 5)
    world.restart("crash")
    assert world.look("q").seqs == (2, 3, 4, 5)


def test_a_router_copies_dead_letters_like_any_records(queue: World) -> None:
    """Copies of them are made again after a crash from the frames that moved them."""
    queue.engine.put_topic("dlq", {"durability": "fsync"})
    queue.engine.put_topic("copy", {"durability": "fsync"})
    queue.engine.put_router("r", {"source": "dlq", "dest": "copy"})
    queue.fill("q", 2)
    for _ in range(3):
        fail_all(queue.engine)
    while queue.engine.forward():
        pass
    queue.engine.sync()
    before = queue.engine.diff("copy").records
    assert len(before) == 2
    queue.restart("crash")
    assert queue.engine.diff("copy").records == before


def test_a_failed_sync_leaves_the_move_to_recovery(queue: World) -> None:
    """The claim is not answered; after a restart the job is in one place."""
    queue.fill("q", 1)
    for _ in range(2):
        fail_all(queue.engine)

    def fail(_number: int, operation: str, _path: str) -> None:
        if operation == "sync":
            raise OSError(5, "input/output error")

    queue.disk.on_mutation = fail
    with pytest.raises(Poisoned):
        queue.engine.claim("q", "a")
    queue.disk.on_mutation = None
    assert queue.disk.exists(f"{PATH}/POISONED")
    queue.restart("kill")
    moved = len(letters(queue)) if "dlq" in queue.engine.list_topics() else 0
    assert moved + queue.look("q").count == 1
