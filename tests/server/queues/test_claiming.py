"""Claims: what a worker gets, for how long, and what the counters say of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.queues.conftest import Queue, jobs_of
from tests.support.servers import Client, inside
from topics.server.queues.shapes import AckAnswer, ClaimAnswer, ExtendAnswer, NackAnswer

Beside = Callable[..., Future[Any]]
Waiting = Callable[[Queue, int], None]


def test_a_claim_leases_jobs_in_order(queue: Queue) -> None:
    seqs = queue.fill("a", "b", "c")
    answer = queue.done("claim", node="w1", max=2)
    assert answer["topic"] == queue.name
    assert answer["count"] == 2
    assert answer["ready"] == 1
    assert [job["$seq"] for job in answer["claimed"]] == seqs[:2]
    assert [job["data"] for job in answer["claimed"]] == ["a", "b"]
    assert queue.counts == (1, 2, 0)
    assert queue.claim_seqs("w2", 5) == seqs[2:]
    assert queue.claim("w3") == []


def test_a_claim_is_for_one_job_unless_it_says_more(queue: Queue) -> None:
    queue.fill(1, 2)
    assert queue.done("claim", node="w")["count"] == 1


def test_an_empty_queue_is_no_error(queue: Queue) -> None:
    answer = queue.done("claim", node="w", max=8)
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)


def test_a_job_carries_its_record_and_its_lease(queue: Queue) -> None:
    record = {"data": {"n": 1.50}, "tag": "t:1", "node": "producer", "meta": {"trace": "z9"}}
    queue.client.post(queue.path, {"records": [record, {"data": None}]})
    before_ms = time.time() * 1000
    first, second = queue.claim("w", 2, lease_ms=5000)
    after_ms = time.time() * 1000
    assert first["data"] == {"n": 1.50}
    assert (first["$tag"], first["$node"], first["meta"]) == ("t:1", "producer", {"trace": "z9"})
    assert first["deliveries"] == 1
    # From two clocks, each in whole milliseconds.
    assert before_ms - 2 <= first["deadline"] - 5000 <= after_ms + 2
    assert first["lease_id"] != second["lease_id"]
    assert second["data"] is None
    # What a record does not have is absent, not null.
    expected = {"$seq", "$ts", "data", "lease_id", "deadline", "deliveries"}
    assert second.keys() == expected


def test_data_is_verbatim(queue: Queue) -> None:
    spelled = b'{"b": 1.0, "a": 1e2, "b": 1e400}'
    queue.client.post(queue.path, b'{"records":[{"data":' + spelled + b"}]}")
    raw = queue.client.post(f"{queue.path}/claim", {"node": "w"}).raw
    assert b"".join(spelled.split()) in b"".join(raw.split())


def test_the_lease_is_the_topics_unless_the_claim_says_another(queue: Queue) -> None:
    queue.configure(lease_ms=60_000)
    queue.fill(1, 2, 3, 4)
    for given, lasts_ms in ((None, 60_000), (5000, 5000), (1, 100), (10**12, 86_400_000)):
        fields = {} if given is None else {"lease_ms": given}
        (job,) = queue.claim("w", **fields)
        assert abs(job["deadline"] - lasts_ms - time.time() * 1000) < 2000


@pytest.mark.parametrize(("given", "got"), [(0, 1), (1001, 1000), (2**63, 1000)])
def test_max_is_clamped(queue: Queue, given: int, got: int) -> None:
    queue.fill(*range(1200))
    assert queue.done("claim", node="w", max=given)["count"] == got


def test_an_answer_has_a_budget_of_bytes_and_says_how_many_are_left(
    queue: Queue, beside: Beside, waiting: Waiting
) -> None:
    """Eight mebibytes, and the job that crosses them; whoever waits gets as much."""
    for _ in range(3):
        queue.fill(*["x" * 1_000_000] * 10)
    answer = queue.done("claim", node="w", max=1000)
    assert (answer["count"], answer["ready"]) == (9, 21)
    assert queue.counts == (21, 9, 0)
    assert queue.claim_seqs("w", 1000) == list(range(10, 19))
    queue.claim("w", 1000)
    queue.claim("w", 1000)
    assert queue.counts == (0, 30, 0)
    late = beside(Queue.claim_seqs, queue, "late", 1000, wait_ms=20_000)
    waiting(queue, 1)
    queue.nack("w", *range(1, 31))
    assert late.result() == list(range(1, 10))


def test_the_operator_sets_how_many_jobs_a_call_may_name(tmp_path: Path) -> None:
    with inside(tmp_path, TOPICS_MAX_CLAIM="3") as served, served.client() as client:
        queue = Queue(client, "jobs").configure()
        queue.fill(*range(10))
        assert len(queue.claim("w", 9)) == 3
        assert queue.call("ack", node="w", seqs=[1, 2, 3, 4]).code == "batch_too_large"
        assert queue.ack("w", 1, 2, 3)["acked"] == 3
        with queue.work("w", "max=9") as events:
            jobs_of(events, 3)
            assert queue.counts == (4, 3, 0)


def test_deliveries_count_every_claim(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    for delivery in (1, 2, 3):
        (job,) = queue.claim(f"w{delivery}")
        assert (job["$seq"], job["deliveries"]) == (seq, delivery)
        queue.nack(f"w{delivery}", seq)


def test_what_came_back_goes_first(queue: Queue) -> None:
    first, second, third = queue.fill(1, 2, 3)
    assert queue.claim_seqs("w", 2) == [first, second]
    queue.nack("w", second)
    assert queue.claim_seqs("w") == [second]
    assert queue.claim_seqs("w") == [third]


def test_an_expired_lease_is_claimable_and_counts_as_ready(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    (first,) = queue.claim("slow", lease_ms=100)
    assert queue.counts == (0, 1, 0)
    # The claim waits for the lease to end: it comes back without anybody asking.
    (second,) = queue.claim("next", wait_ms=10_000)
    assert second["$seq"] == seq
    assert second["deliveries"] == 2
    assert second["lease_id"] != first["lease_id"]
    assert time.time() * 1000 > first["deadline"]
    assert queue.ack("slow", seq)["skipped"] == [seq]
    assert queue.ack("next", seq)["acked"] == 1


def test_the_holder_of_an_expired_lease_stays_until_another_has_it(queue: Queue) -> None:
    (seq,) = queue.fill("job")
    queue.claim("slow", lease_ms=100)
    while queue.counts != (1, 0, 0):
        pass
    answer = queue.ack("slow", seq)
    assert (answer["acked"], answer["ready"], answer["in_flight"]) == (1, 0, 0)


def test_jobs_are_visible_to_readers_whatever_their_lease(queue: Queue) -> None:
    queue.fill("a", "b", "c")
    queue.claim("w", 2)
    queue.ack("w", 1)
    page = queue.client.diff(queue.name).json
    assert [record["data"] for record in page["records"]] == ["b", "c"]
    assert page["tombstone"] is None
    assert queue.counts == (1, 1, 0)
    assert queue.client.get(queue.path).json["count"] == 2


def test_state_has_a_queue_object_on_queues_only(queue: Queue, client: Client) -> None:
    state = client.get(queue.path).json
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 0}
    client.write(queue.name + "-log", 1)
    log = client.get(f"{queue.path}-log").json
    assert log["type"] == "log"
    assert "queue" not in log


def test_the_config_is_echoed_as_it_stands(client: Client, topic: str) -> None:
    given = {
        "type": "queue", "lease_ms": 1, "claim_jitter_ms": 9999, "max_deliveries": 5,
        "dead_letter": "elsewhere", "leases_durable": True,
    }  # fmt: skip
    config = client.put(f"/v0/topics/{topic}", given).json["config"]
    stands = given | {"lease_ms": 100, "claim_jitter_ms": 5000}
    assert {key: config[key] for key in given} == stands
    assert client.get(f"/v0/topics/{topic}").json["config"] == config


def test_a_type_does_not_change(queue: Queue, client: Client) -> None:
    reply = client.put(queue.path, {"type": "log"})
    assert (reply.status, reply.code) == (409, "topic_exists_incompatible")
    # Without a type the topic keeps its own.
    assert client.put(queue.path, {"lease_ms": 1000}).json["config"]["type"] == "queue"


def test_ready_and_in_flight_are_exact(queue: Queue) -> None:
    seqs = queue.fill(*range(10))
    queue.claim("w", 6)
    assert queue.ack("w", *seqs[:2])["in_flight"] == 4
    assert queue.nack("w", seqs[2])["ready"] == 5
    assert queue.nack("w", seqs[3], delay_ms=60_000)["ready"] == 5
    assert queue.counts == (5, 2, 0)
    # Deleting takes ready, leased and delayed jobs alike.
    queue.client.post(f"{queue.path}/delete", {"before_seq": seqs[5]})
    assert queue.counts == (4, 1, 0)
    metrics = queue.client.metrics()
    assert metrics["topics_topic_queue_ready"][queue.name] == 4
    assert metrics["topics_topic_queue_in_flight"][queue.name] == 1
    assert metrics["topics_queue_leases_in_flight"] >= 1
    assert metrics["topics_queue_topics"] >= 1


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_answers_are_of_their_types(
    client: Client, topic: str, durability: str, leases_durable: bool
) -> None:
    queue = Queue(client, topic).configure(durability=durability, leases_durable=leases_durable)
    queue.fill("a", "b", "c", "d")
    expected: list[tuple[str, Any, dict[str, Any]]] = [
        ("claim", ClaimAnswer, {"node": "w", "max": 3}),
        ("extend", ExtendAnswer, {"node": "w", "seqs": [1, 2, 9], "lease_ms": 60_000}),
        ("nack", NackAnswer, {"node": "w", "seqs": [1, 9]}),
        ("ack", AckAnswer, {"node": "w", "seqs": [2, 3, 9]}),
    ]
    for verb, answer, body in expected:
        reply = queue.call(verb, **body)
        assert reply.status == 200, reply.raw
        found = msgspec.json.decode(reply.raw, type=answer, strict=True)
        assert found.topic == topic
        spent = found.performance
        assert spent.server_total_ms > 0
        if verb == "ack":
            assert (spent.fsync_ms > 0) == (durability == "fsync")
    assert queue.counts == (2, 0, 0)
